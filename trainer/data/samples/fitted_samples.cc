#include "trainer/data/samples/fitted_samples.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <utility>

#include "trainer/core/errors.h"
#include "trainer/core/units.h"

namespace fsdp {

FittedSamples::FittedSamples(std::shared_ptr<const SampleStore> store, int64_t seq_len,
                             TooLong too_long)
    : store_(std::move(store)) {
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  if (seq_len < 1 || seq_len > kMost) {
    throw std::invalid_argument("[FittedSamples] seq_len " + std::to_string(seq_len));
  }
  const int64_t size = store_->size();
  const std::string noun = store_->Noun();
  if (size > kMost) {
    throw DataError("data: " + store_->Describe() + ": has " + std::to_string(size) + " " + noun +
                    "s, want at most 2147483647");
  }
  auto kept = std::make_shared<Kept>();
  kept->seq_len = seq_len;
  kept->too_long = too_long;
  Counts& counts = kept->counts;
  counts.noun = noun;
  counts.samples = size;
  int64_t first = 0;  // Among those that do not fit.
  for (int64_t i = 0; i < size; ++i) {
    const int64_t length = store_->Length(i);
    counts.longest = std::max(counts.longest, length);
    if (store_->Targets(i, length) == 0) {
      ++counts.untrained;
      continue;
    }
    if (length > seq_len) {
      if (counts.longer++ == 0) first = i;
      // Where the cut leaves no target, nothing is left.
      const bool cut = too_long == TooLong::kCut && store_->Targets(i, seq_len) > 0;
      counts.lost_tokens += cut ? length - seq_len : length;
      if (!cut && too_long == TooLong::kCut) {
        ++counts.emptied;
        counts.emptied_tokens += length;
      }
      if (!cut) continue;
    }
    kept->samples.push_back(static_cast<int32_t>(i));
  }
  if (counts.longer > 0 && too_long == TooLong::kError) {
    std::string more;
    if (counts.longer > 1) {
      more = " (the first of " + std::to_string(counts.longer) +
             " that do not fit; the longest has " + std::to_string(counts.longest) + ")";
    }
    const std::string cure = store_->CureOfLength(first);
    throw DataError("data: " + store_->Where(first) + ": a " + noun + " of " +
                    std::to_string(store_->Length(first)) +
                    " tokens, but a row has data.seq_len = " + std::to_string(seq_len) + more +
                    ": give " + (cure.empty() ? "" : cure + ", ") +
                    "data.too_long: cut or drop, or a longer data.seq_len");
  }
  if (kept->samples.empty()) {
    throw DataError("data: " + store_->Describe() + ": of " + std::to_string(size) + " " + noun +
                    "s " + std::to_string(counts.longer) +
                    " are longer than data.seq_len = " + std::to_string(seq_len) +
                    " and the others have no target, so nothing is left: give more data, " +
                    (noun == "document" ? "another data.*.eot" : "another data.*.train_on") +
                    " or a longer data.seq_len");
  }
  kept->samples.shrink_to_fit();
  end_ = std::ssize(kept->samples);
  kept_ = std::move(kept);
}

FittedSamples::FittedSamples(const FittedSamples& all, int64_t begin, int64_t end)
    : store_(all.store_), kept_(all.kept_), begin_(all.begin_ + begin), end_(all.begin_ + end) {}

FittedSamples::Parts FittedSamples::HoldOut(double fraction) const {
  if (!(fraction > 0 && fraction < 1)) {
    throw std::invalid_argument("[FittedSamples::HoldOut] fraction is " + Shortest(fraction) +
                                ", want it between 0 and 1");
  }
  const int64_t tokens = store_->Begin(store_->size());
  const int64_t from =
      tokens - static_cast<int64_t>(std::floor(static_cast<double>(tokens) * fraction));
  const std::span<const int32_t> samples =
      std::span(kept_->samples).subspan(static_cast<size_t>(begin_), static_cast<size_t>(size()));
  const int64_t train = std::partition_point(samples.begin(), samples.end(),
                                             [&](int32_t i) { return store_->Begin(i) < from; }) -
                        samples.begin();
  if (train == 0 || train == size()) {
    throw DataError("data: a fraction of " + Shortest(fraction) + " of the " +
                    std::to_string(tokens) + " tokens of " + store_->Describe() +
                    " leaves no whole " + store_->Noun() +
                    " on one side: give more data or another data.valid");
  }
  const auto part = [&](int64_t begin, int64_t end) {
    return std::shared_ptr<const SampleSource>(new FittedSamples(*this, begin, end));
  };
  return {part(0, train), part(train, size())};
}

int32_t FittedSamples::Length(int64_t i) const {
  return static_cast<int32_t>(std::min(store_->Length(At(i)), kept_->seq_len));
}

std::string FittedSamples::Describe() const {
  if (size() == std::ssize(kept_->samples)) return store_->Describe();
  return store_->Noun() + "s [" + std::to_string(begin_) + ", " + std::to_string(end_) + ") of " +
         store_->Describe();
}

Tally FittedSamples::Count() const {
  const Counts& counts = kept_->counts;
  const int64_t cut = kept_->too_long == TooLong::kCut ? counts.longer - counts.emptied : 0;
  return {{counts.noun + "s", counts.samples},
          {"longest", counts.longest},
          {"cut", cut},
          {"dropped", counts.longer - cut},
          {"without targets", counts.untrained}};
}

void FittedSamples::Read(int64_t i, std::span<int32_t> tokens, std::span<float> weights) const {
  if (i < 0 || i >= size() || std::ssize(tokens) != Length(i) || weights.size() != tokens.size()) {
    throw std::invalid_argument("[FittedSamples::Read] " + std::to_string(tokens.size()) +
                                " tokens of sample " + std::to_string(i));
  }
  store_->Read(At(i), tokens, weights);
}

}  // namespace fsdp
