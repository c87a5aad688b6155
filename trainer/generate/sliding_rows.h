// Texts that go on where the positions of a model end.
#ifndef FSDP_TRAIN_TRAINER_GENERATE_SLIDING_ROWS_H_
#define FSDP_TRAIN_TRAINER_GENERATE_SLIDING_ROWS_H_

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "trainer/generate/sampler.h"

namespace fsdp {

// Rows of `source` that never end. Up to its capacity, n tokens, a row is what the source makes of
// it. From there on the source starts with the row's last n tokens for each new token, as in
// SlidingWindow. Every token's position changes, so a cache keeps nothing, and each new token costs
// a pass over n. The source must outlive this; nobody else calls it.
class SlidingRows : public LogitsSource {
 public:
  explicit SlidingRows(LogitsSource& source);

  int64_t rows() const override { return source_.rows(); }
  int64_t vocab_size() const override { return source_.vocab_size(); }
  int64_t capacity() const override { return std::numeric_limits<int64_t>::max(); }
  std::span<const float> Start(int64_t row, std::span<const int32_t> prompt) override;
  std::span<const float> Next(std::span<const int32_t> tokens,
                              std::span<const int32_t> positions) override;

  bool slid() const { return slid_; }  // Some row has more tokens than the source has room for.

 private:
  bool IsFull(size_t row) const;  // Its next token is computed from the last n alone.
  std::span<const int32_t> Window(size_t row) const;

  LogitsSource& source_;
  std::vector<std::vector<int32_t>> seen_;  // By row; empty: not started.
  std::vector<float> logits_;
  bool slid_ = false;
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_GENERATE_SLIDING_ROWS_H_
