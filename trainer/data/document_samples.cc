#include "trainer/data/document_samples.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <utility>

#include "trainer/core/errors.h"

namespace fsdp {
namespace {

// visit(begin, end) for each document.
template <typename Visit>
void ForEachDocument(const TokenSource& source, const Visit& visit) {
  constexpr int64_t kChunk = 1 << 15;
  const int64_t size = source.size();
  const int32_t eot = *source.eot();
  std::vector<int32_t> tokens(static_cast<size_t>(std::min(size, kChunk)));
  int64_t begin = 0;
  for (int64_t at = 0; at < size; at += kChunk) {
    const auto here = std::span(tokens).first(static_cast<size_t>(std::min(kChunk, size - at)));
    source.Read(at, here);
    for (auto i = std::find(here.begin(), here.end(), eot); i != here.end();
         i = std::find(i + 1, here.end(), eot)) {
      const int64_t end = at + (i - here.begin()) + 1;
      visit(begin, end);
      begin = end;
    }
  }
  if (begin < size) visit(begin, size);
}

}  // namespace

DocumentSamples::DocumentSamples(std::shared_ptr<const TokenSource> source, int64_t seq_len,
                                 TooLong too_long)
    : source_(std::move(source)) {
  if (!source_->eot() || seq_len < 1 || seq_len > std::numeric_limits<int32_t>::max()) {
    throw std::invalid_argument("[DocumentSamples] seq_len " + std::to_string(seq_len) + " of " +
                                source_->Describe() + ", want an end-of-text token and 1 to 2^31");
  }
  auto index = std::make_shared<Index>();
  Counts& counts = index->counts;
  int64_t first = 0, first_length = 0, longest = 0;  // Those that do not fit.
  ForEachDocument(*source_, [&](int64_t begin, int64_t end) {
    int64_t length = end - begin;
    ++counts.documents;
    if (length == 1) {
      ++counts.single;
      return;
    }
    if (length > seq_len) {
      if (counts.longer++ == 0) {
        first = begin;
        first_length = length;
      }
      longest = std::max(longest, length);
      counts.lost_tokens += too_long == TooLong::kCut ? length - seq_len : length;
      length = seq_len;
      // A cut to one token leaves no target.
      if (too_long != TooLong::kCut || length == 1) return;
    }
    index->starts.push_back(begin);
    index->lengths.push_back(static_cast<int32_t>(length));
  });
  if (counts.longer > 0 && too_long == TooLong::kError) {
    std::string more;
    if (counts.longer > 1) {
      more = " (the first of " + std::to_string(counts.longer) +
             " that do not fit; the longest has " + std::to_string(longest) + ")";
    }
    const bool whole = first_length == source_->size();
    throw DataError("data: " + source_->Where(first) + ": a document of " +
                    std::to_string(first_length) +
                    " tokens, but a row has data.seq_len = " + std::to_string(seq_len) + more +
                    ": give " + (whole ? "the right data.*.eot, " : "") +
                    "data.too_long: cut or drop, or a longer data.seq_len");
  }
  if (index->starts.empty()) {
    throw DataError("data: " + source_->Describe() + ": of " + std::to_string(counts.documents) +
                    " documents " + std::to_string(counts.longer) +
                    " are longer than data.seq_len = " + std::to_string(seq_len) +
                    " and the others have one token, so nothing is left: give more data, a longer "
                    "data.seq_len or another data.*.eot");
  }
  index->starts.shrink_to_fit();
  index->lengths.shrink_to_fit();
  end_ = std::ssize(index->starts);
  index_ = std::move(index);
}

DocumentSamples::DocumentSamples(const DocumentSamples& all, int64_t begin, int64_t end)
    : source_(all.source_),
      index_(all.index_),
      begin_(all.begin_ + begin),
      end_(all.begin_ + end) {}

DocumentSamples::Parts DocumentSamples::HoldOut(double fraction) const {
  if (!(fraction > 0 && fraction < 1)) {
    throw std::invalid_argument("[DocumentSamples::HoldOut] fraction is " +
                                std::to_string(fraction) + ", want it between 0 and 1");
  }
  const int64_t tokens = source_->size();
  const int64_t from =
      tokens - static_cast<int64_t>(std::floor(static_cast<double>(tokens) * fraction));
  const auto starts = std::span(index_->starts).subspan(At(0), static_cast<size_t>(size()));
  const int64_t train = std::lower_bound(starts.begin(), starts.end(), from) - starts.begin();
  if (train == 0 || train == size()) {
    throw DataError("data: a fraction of " + std::to_string(fraction) + " of the " +
                    std::to_string(tokens) + " tokens of " + source_->Describe() +
                    " leaves no whole document on one side: give more data or another data.valid");
  }
  const auto part = [&](int64_t begin, int64_t end) {
    return std::shared_ptr<const SampleSource>(new DocumentSamples(*this, begin, end));
  };
  return {part(0, train), part(train, size())};
}

std::string DocumentSamples::Describe() const {
  if (size() == std::ssize(index_->starts)) return source_->Describe();
  return "documents [" + std::to_string(begin_) + ", " + std::to_string(end_) + ") of " +
         source_->Describe();
}

void DocumentSamples::Read(int64_t i, std::span<int32_t> tokens, std::span<float> weights) const {
  if (i < 0 || i >= size() || std::ssize(tokens) != Length(i) || weights.size() != tokens.size()) {
    throw std::invalid_argument("[DocumentSamples::Read] " + std::to_string(tokens.size()) +
                                " tokens of document " + std::to_string(i));
  }
  source_->Read(index_->starts[At(i)], tokens);
  std::fill(weights.begin(), weights.end() - 1, 1.0f);
  weights.back() = 0;
}

TokenPlace DocumentSamples::PlaceOf(int64_t i, int64_t token) const {
  return PlaceIn(*source_, index_->starts.at(At(i)) + token);
}

}  // namespace fsdp
