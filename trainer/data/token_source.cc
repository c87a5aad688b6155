#include "trainer/data/token_source.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "trainer/core/errors.h"

namespace fsdp {
namespace {

class Slice : public TokenSource {
 public:
  Slice(std::shared_ptr<const TokenSource> source, int64_t begin, int64_t end)
      : source_(std::move(source)), begin_(begin), end_(end) {}

  int64_t size() const override { return end_ - begin_; }
  int32_t vocab_size() const override { return source_->vocab_size(); }
  void Read(int64_t offset, std::span<int32_t> out) const override {
    internal::CheckRange(*this, offset, out);
    source_->Read(begin_ + offset, out);
  }
  std::string Describe() const override {
    return "tokens [" + std::to_string(begin_) + ", " + std::to_string(end_) + ") of " +
           source_->Describe();
  }
  std::string Where(int64_t offset) const override { return source_->Where(begin_ + offset); }
  std::vector<DataFile> Files() const override { return source_->Files(); }

 private:
  std::shared_ptr<const TokenSource> source_;
  int64_t begin_, end_;
};

}  // namespace

std::shared_ptr<const TokenSource> SliceSource(std::shared_ptr<const TokenSource> source,
                                               int64_t begin, int64_t end) {
  if (begin < 0 || begin >= end || end > source->size()) {
    throw std::invalid_argument("[SliceSource] tokens [" + std::to_string(begin) + ", " +
                                std::to_string(end) + ") of " + std::to_string(source->size()));
  }
  return std::make_shared<Slice>(std::move(source), begin, end);
}

TrainAndValid SplitSource(std::shared_ptr<const TokenSource> source, double valid_fraction) {
  if (!(valid_fraction > 0 && valid_fraction < 1)) {
    throw std::invalid_argument("[SplitSource] valid_fraction is " +
                                std::to_string(valid_fraction) + ", want it between 0 and 1");
  }
  const int64_t size = source->size();
  const int64_t valid =
      static_cast<int64_t>(std::floor(static_cast<double>(size) * valid_fraction));
  if (valid < 1 || valid >= size) {
    throw DataError("data: a fraction of " + std::to_string(valid_fraction) + " of the " +
                    std::to_string(size) + " tokens of " + source->Describe() +
                    " leaves nothing on one side: give more data or another data.valid");
  }
  return {SliceSource(source, 0, size - valid), SliceSource(source, size - valid, size)};
}

void CheckTokens(const TokenSource& source, int32_t vocab_size) {
  if (source.vocab_size() <= vocab_size) return;
  std::vector<int32_t> chunk(static_cast<size_t>(std::min<int64_t>(source.size(), 1 << 16)));
  for (int64_t at = 0; at < source.size(); at += std::ssize(chunk)) {
    const std::span<int32_t> tokens =
        std::span(chunk).first(std::min<int64_t>(std::ssize(chunk), source.size() - at));
    source.Read(at, tokens);
    internal::CheckVocabulary(source, at, tokens, vocab_size);
  }
}

namespace internal {

void CheckRange(const TokenSource& source, int64_t offset, std::span<const int32_t> out) {
  const int64_t count = std::ssize(out);
  if (offset < 0 || count > source.size() || offset > source.size() - count) {
    throw std::invalid_argument("[TokenSource::Read] " + std::to_string(count) +
                                " tokens at offset " + std::to_string(offset) + " of " +
                                std::to_string(source.size()));
  }
}

void CheckVocabulary(const TokenSource& source, int64_t offset, std::span<const int32_t> tokens,
                     int32_t vocab_size) {
  uint32_t largest = 0;  // A negative token becomes a large one. A loop that vectorises.
  for (const int32_t token : tokens) largest = std::max(largest, static_cast<uint32_t>(token));
  if (largest < static_cast<uint32_t>(vocab_size)) return;
  const auto bad = std::find_if(tokens.begin(), tokens.end(),
                                [&](int32_t token) { return token < 0 || token >= vocab_size; });
  throw DataError("data: " + source.Where(offset + (bad - tokens.begin())) + ": token " +
                  std::to_string(*bad) + " is outside the vocabulary of " +
                  std::to_string(vocab_size) + " tokens: this data needs a model.vocab_size of " +
                  std::to_string(source.vocab_size()));
}

}  // namespace internal
}  // namespace fsdp
