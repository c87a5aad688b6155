#include "trainer/generate/sliding_rows.h"

#include <algorithm>

#include "trainer/core/check.h"

namespace fsdp {

SlidingRows::SlidingRows(LogitsSource& source)
    : source_(source), seen_(static_cast<size_t>(source.rows())) {}

bool SlidingRows::IsFull(size_t row) const {
  return static_cast<int64_t>(seen_[row].size()) > source_.capacity();
}

std::span<const int32_t> SlidingRows::Window(size_t row) const {
  const std::span<const int32_t> all = seen_[row];
  const int64_t length = std::min<int64_t>(std::ssize(seen_[row]), source_.capacity());
  return all.last(static_cast<size_t>(length));
}

std::span<const float> SlidingRows::Start(int64_t row, std::span<const int32_t> prompt) {
  const auto r = static_cast<size_t>(row);
  seen_.at(r).assign(prompt.begin(), prompt.end());
  slid_ |= IsFull(r);
  return source_.Start(row, Window(r));
}

std::span<const float> SlidingRows::Next(std::span<const int32_t> tokens,
                                         std::span<const int32_t> positions) {
  FSDP_CHECK_EQ(tokens.size(), seen_.size());
  std::vector<int32_t> next(tokens.begin(), tokens.end());
  std::vector<int32_t> places(positions.begin(), positions.end());
  std::vector<size_t> anew;  // Rows that have got a token and no place for it.
  bool any = false;          // Rows that have.
  for (size_t r = 0; r < seen_.size(); ++r) {
    std::vector<int32_t>& seen = seen_[r];
    const bool grows = !seen.empty() && positions[r] == std::ssize(seen);
    if (grows) seen.push_back(tokens[r]);
    if (!IsFull(r)) {
      any |= grows;
      continue;
    }
    if (grows) anew.push_back(r);
    next[r] = seen.back();  // The source's own logits of it go unread.
    places[r] = static_cast<int32_t>(source_.capacity()) - 1;
  }
  if (anew.empty()) return source_.Next(next, places);
  slid_ = true;
  const auto vocab = static_cast<size_t>(vocab_size());
  logits_.resize(seen_.size() * vocab);
  if (any) {
    const std::span<const float> of_all = source_.Next(next, places);
    std::copy(of_all.begin(), of_all.end(), logits_.begin());
  }
  for (const size_t r : anew) {
    const std::span<const float> of_row = source_.Start(static_cast<int64_t>(r), Window(r));
    std::copy(of_row.begin(), of_row.end(), logits_.begin() + static_cast<int64_t>(r * vocab));
  }
  return logits_;
}

}  // namespace fsdp
