#include "trainer/data/tokens/token_source.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <stdexcept>

#include "trainer/core/errors.h"
#include "trainer/core/units.h"

namespace fsdp {
namespace {

class Slice : public TokenSource {
 public:
  Slice(std::shared_ptr<const TokenSource> source, int64_t begin, int64_t end)
      : source_(std::move(source)), begin_(begin), end_(end) {}

  int64_t size() const override { return end_ - begin_; }
  int32_t vocab_size() const override { return source_->vocab_size(); }
  std::optional<int32_t> eot() const override { return source_->eot(); }
  void Read(int64_t offset, std::span<int32_t> out) const override {
    internal::CheckRange(*this, offset, std::ssize(out));
    source_->Read(begin_ + offset, out);
  }
  int64_t Count(int64_t offset, int64_t count, int32_t token) const override {
    internal::CheckRange(*this, offset, count);
    return source_->Count(begin_ + offset, count, token);
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

class Documents : public TokenSource {
 public:
  Documents(std::shared_ptr<const TokenSource> source, int32_t eot)
      : source_(std::move(source)), eot_(eot) {}

  int64_t size() const override { return source_->size(); }
  int32_t vocab_size() const override { return source_->vocab_size(); }
  std::optional<int32_t> eot() const override { return eot_; }
  void Read(int64_t offset, std::span<int32_t> out) const override { source_->Read(offset, out); }
  int64_t Count(int64_t offset, int64_t count, int32_t token) const override {
    return source_->Count(offset, count, token);
  }
  std::string Describe() const override { return source_->Describe(); }
  std::string Where(int64_t offset) const override { return source_->Where(offset); }
  std::vector<DataFile> Files() const override { return source_->Files(); }

 private:
  std::shared_ptr<const TokenSource> source_;
  int32_t eot_;
};

}  // namespace

int64_t TokenSource::Count(int64_t offset, int64_t count, int32_t token) const {
  internal::CheckRange(*this, offset, count);
  std::array<int32_t, 1 << 10> chunk;
  int64_t found = 0;
  for (int64_t done = 0; done < count; done += std::ssize(chunk)) {
    const auto tokens = std::span(chunk).first(
        static_cast<size_t>(std::min<int64_t>(std::ssize(chunk), count - done)));
    Read(offset + done, tokens);
    found += std::count(tokens.begin(), tokens.end(), token);
  }
  return found;
}

std::shared_ptr<const TokenSource> WithEot(std::shared_ptr<const TokenSource> source, int32_t eot) {
  return std::make_shared<Documents>(std::move(source), eot);
}

std::shared_ptr<const TokenSource> SliceSource(std::shared_ptr<const TokenSource> source,
                                               int64_t begin, int64_t end) {
  if (begin < 0 || begin >= end || end > source->size()) {
    throw std::invalid_argument("[SliceSource] tokens [" + std::to_string(begin) + ", " +
                                std::to_string(end) + ") of " + std::to_string(source->size()));
  }
  return std::make_shared<Slice>(std::move(source), begin, end);
}

TrainAndValid SplitSource(const std::shared_ptr<const TokenSource>& source, double valid_fraction) {
  if (!(valid_fraction > 0 && valid_fraction < 1)) {
    throw std::invalid_argument("[SplitSource] valid_fraction is " + Shortest(valid_fraction) +
                                ", want it between 0 and 1");
  }
  const int64_t size = source->size();
  const int64_t valid =
      static_cast<int64_t>(std::floor(static_cast<double>(size) * valid_fraction));
  if (valid < 1 || valid >= size) {
    throw DataError("data: a fraction of " + Shortest(valid_fraction) + " of the " +
                    std::to_string(size) + " tokens of " + source->Describe() +
                    " leaves nothing on one side: give more data or another data.valid");
  }
  return {SliceSource(source, 0, size - valid), SliceSource(source, size - valid, size)};
}

void CheckTokens(const TokenSource& source, int32_t vocab_size) {
  if (source.vocab_size() <= vocab_size) return;
  constexpr int64_t kStretch = 1 << 14, kStretches = 1 << 10, kAll = int64_t{1} << 26;
  const int64_t size = source.size();
  std::vector<int32_t> tokens(static_cast<size_t>(std::min(size, kStretch)));
  const int64_t last = size - std::ssize(tokens);  // Where the last stretch begins.
  const int64_t stretches = size > kAll ? kStretches : (size - 1) / kStretch + 1;
  for (int64_t i = 0; i < stretches; ++i) {
    // As a quotient and a rest: the product of the whole could overflow.
    const int64_t at =
        size > kAll ? last / (stretches - 1) * i + last % (stretches - 1) * i / (stretches - 1)
                    : std::min(i * kStretch, last);
    source.Read(at, tokens);
    const auto place = [&](int64_t token) { return PlaceIn(source, at + token); };
    CheckRow({.tokens = tokens}, {vocab_size}, place);
  }
}

TokenPlace PlaceIn(const TokenSource& source, int64_t offset) {
  return {source.Where(offset), "",
          "this data needs a larger model.vocab_size, at most " +
              std::to_string(source.vocab_size()) + ", or is another tokenizer's"};
}

namespace internal {

void CheckRange(const TokenSource& source, int64_t offset, int64_t count) {
  if (offset < 0 || count < 0 || count > source.size() || offset > source.size() - count) {
    throw std::invalid_argument("[TokenSource::Read] " + std::to_string(count) +
                                " tokens at offset " + std::to_string(offset) + " of " +
                                std::to_string(source.size()));
  }
}

}  // namespace internal
}  // namespace fsdp
