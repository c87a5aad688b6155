// Which tokens sample i of a run is made of: a pure function of (tokens, seq_len, shuffle, seed,
// i). No state, no tables: a resumed run needs its step and nothing else, and the world size does
// not enter (promise 3 of design.md).
//
// A window is seq_len + 1 tokens, inputs [0, seq_len) and targets [1, seq_len]; window w starts at
// token w * seq_len, so neighbours share one token and every token but the first is a target once
// an epoch. Up to seq_len - 1 tokens at the end make no window. Epochs follow each other without a
// seam: sample i belongs to epoch i / Windows(), each epoch in an order of its own.
#ifndef FSDP_TRAIN_TRAINER_DATA_SAMPLE_INDEX_H_
#define FSDP_TRAIN_TRAINER_DATA_SAMPLE_INDEX_H_

#include <cstdint>
#include <string_view>

namespace fsdp {

class SampleIndex {
 public:
  // Throws DataError, which calls the data `what`, if they do not fill one window; seq_len < 1 is a
  // std::invalid_argument.
  SampleIndex(int64_t num_tokens, int64_t seq_len, bool shuffle, uint64_t seed,
              std::string_view what = "the data");

  int64_t Windows() const { return windows_; }  // In an epoch.
  // Offset of the first token of sample i >= 0, counted from the start of the run.
  int64_t TokenOffset(int64_t sample) const;

 private:
  int64_t seq_len_, windows_;
  bool shuffle_;
  uint64_t seed_;
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_DATA_SAMPLE_INDEX_H_
