#include "trainer/data/samples/packed_rows.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>

#include "trainer/core/errors.h"
#include "trainer/core/philox.h"
#include "trainer/data/permutation.h"

namespace fsdp {
namespace {

// Taken at a time: at least so many samples, and the tokens of so many rows.
constexpr int64_t kSamplesAtOnce = 4096, kRowsAtOnce = 1024;

// Puts `samples` in the order of their rows and appends how many each row has.
class Packer {
 public:
  explicit Packer(int64_t seq_len) : seq_len_(static_cast<int32_t>(seq_len)) {}

  // lengths: of each sample.
  void Pack(std::span<int32_t> samples, std::span<const int32_t> lengths,
            std::vector<int32_t>& counts) {
    const size_t n = samples.size();
    by_length_.resize(n);
    std::iota(by_length_.begin(), by_length_.end(), 0);
    std::sort(by_length_.begin(), by_length_.end(), [&](int32_t a, int32_t b) {
      return lengths[a] != lengths[b] ? lengths[a] > lengths[b] : a < b;
    });
    row_of_.resize(n);
    longest_.clear();
    room_.clear();
    const int32_t shortest = lengths[by_length_.back()];
    for (const int32_t place : by_length_) {
      const int32_t length = lengths[place];
      std::pair<int32_t, int32_t> into;  // Room that is left, and the row.
      if (const auto best = room_.lower_bound({length, 0}); best != room_.end()) {
        into = {best->first - length, best->second};
        room_.erase(best);
      } else {
        into = {seq_len_ - length, static_cast<int32_t>(longest_.size())};
        longest_.push_back(place);
      }
      row_of_[place] = into.second;
      if (into.first >= shortest) room_.insert(into);
    }
    Order(samples, counts);
  }

 private:
  void Order(std::span<int32_t> samples, std::vector<int32_t>& counts) {
    std::vector<int32_t> rows(longest_.size()), rank(longest_.size());
    std::iota(rows.begin(), rows.end(), 0);
    std::sort(rows.begin(), rows.end(),
              [&](int32_t a, int32_t b) { return longest_[a] < longest_[b]; });
    for (size_t i = 0; i < rows.size(); ++i) rank[rows[i]] = static_cast<int32_t>(i);
    const size_t first = counts.size();
    counts.resize(first + rows.size());
    for (const int32_t row : row_of_) ++counts[first + static_cast<size_t>(rank[row])];
    std::vector<int32_t> next(rows.size());
    std::exclusive_scan(counts.begin() + static_cast<int64_t>(first), counts.end(), next.begin(),
                        0);
    taken_.assign(samples.begin(), samples.end());
    for (size_t i = 0; i < taken_.size(); ++i) {
      samples[static_cast<size_t>(next[rank[row_of_[i]]]++)] = taken_[i];
    }
  }

  int32_t seq_len_;
  std::vector<int32_t> by_length_, row_of_, longest_, taken_;
  std::set<std::pair<int32_t, int32_t>> room_;
};

// Fisher and Yates's, in the form of Durstenfeld (1964, doi:10.1145/364520.364540).
void Shuffle(std::span<int32_t> samples, uint64_t seed) {
  const RandomStream random(seed, "data.packing");
  for (size_t i = samples.size(); i-- > 1;) {
    std::swap(samples[i], samples[random.Below(i, i + 1)]);
  }
}

}  // namespace

PackedRows::PackedRows(const SampleSource& source, int64_t seq_len, Packing packing, bool shuffle,
                       uint64_t seed)
    : shuffle_(shuffle), seed_(seed) {
  const int64_t size = source.size();
  if (packing == Packing::kWindows || size < 1) {
    throw std::invalid_argument("[PackedRows] windows, or no samples");
  }
  if (size > std::numeric_limits<int32_t>::max()) {
    throw DataError("data: " + source.Describe() + ": " + std::to_string(size) +
                    " samples, but a source has at most 2^31 - 1: give it as several");
  }
  for (int64_t i = 0; i < size; ++i) {
    const int32_t length = source.Length(i);
    if (length < 1 || length > seq_len) {
      throw std::invalid_argument("[PackedRows] sample " + std::to_string(i) + " has " +
                                  std::to_string(length) + " tokens, want 1 to " +
                                  std::to_string(seq_len));
    }
    tokens_ += length;
  }
  samples_.resize(static_cast<size_t>(size));
  std::iota(samples_.begin(), samples_.end(), 0);
  if (packing == Packing::kNone) {
    ends_.resize(samples_.size());
    std::iota(ends_.begin(), ends_.end(), 1);
    return;
  }
  if (shuffle) Shuffle(samples_, seed);
  Packer packer(seq_len);
  std::vector<int32_t> lengths;
  for (size_t begin = 0; begin < samples_.size();) {
    lengths.clear();
    int64_t tokens = 0;
    size_t end = begin;
    while (end < samples_.size() &&
           (std::ssize(lengths) < kSamplesAtOnce || tokens < kRowsAtOnce * seq_len)) {
      lengths.push_back(source.Length(samples_[end++]));
      tokens += lengths.back();
    }
    packer.Pack(std::span(samples_).subspan(begin, end - begin), lengths, ends_);
    begin = end;
  }
  std::inclusive_scan(ends_.begin(), ends_.end(), ends_.begin());
}

std::span<const int32_t> PackedRows::SamplesOf(int64_t i) const {
  if (i < 0) {
    throw std::invalid_argument("[PackedRows::SamplesOf] row " + std::to_string(i));
  }
  const int64_t epoch = i / Rows(), position = i % Rows();
  const int64_t at =
      shuffle_ ? Permutation(Rows(), seed_, static_cast<uint64_t>(epoch))(position) : position;
  const auto r = static_cast<size_t>(at);
  const auto begin = static_cast<size_t>(r == 0 ? 0 : ends_[r - 1]);
  return std::span(samples_).subspan(begin, static_cast<size_t>(ends_[r]) - begin);
}

}  // namespace fsdp
