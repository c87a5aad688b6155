// A random permutation of [0, n) in O(1) memory: a balanced Feistel network over the smallest even
// number of bits, at least 6, that holds n, eight rounds with Philox as the round function, walked
// until it falls below n again (Black and Rogaway, "Ciphers with arbitrary finite domains", CT-RSA
// 2002). A network is a bijection whatever its round function is, and so is the walk.
#ifndef FSDP_TRAIN_TRAINER_DATA_PERMUTATION_H_
#define FSDP_TRAIN_TRAINER_DATA_PERMUTATION_H_

#include <cstdint>
#include <string_view>

#include "trainer/core/philox.h"

namespace fsdp {

class Permutation {
 public:
  // One permutation for each (n, seed, tweak), unrelated between tweaks. 1 <= n <= 2^62, otherwise
  // std::invalid_argument.
  Permutation(int64_t n, uint64_t seed, uint64_t tweak);

  // The image of i in [0, n). Up to 4 walks on average (64 / n for n < 16) of 0.3 us each
  // (one core of a 2-core Xeon virtual machine).
  int64_t operator()(int64_t i) const;

 private:
  uint64_t n_;
  int half_bits_;
  PhiloxKey key_;
  uint64_t tweak_;
};

// Which tokens sample i of a run is made of: a pure function of (tokens, seq_len, shuffle, seed,
// i). No state, no tables: a resumed run needs its step and nothing else, and the world size does
// not enter (promise 3 of design.md).
//
// A window is seq_len + 1 tokens, inputs [0, seq_len) and targets [1, seq_len]; window w starts at
// token w * seq_len, so neighbours share one token and every token but the first is a target once
// an epoch. Up to seq_len - 1 tokens at the end make no window. Epochs follow each other without a
// seam: sample i belongs to epoch i / Windows(), each epoch in an order of its own.

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

#endif  // FSDP_TRAIN_TRAINER_DATA_PERMUTATION_H_
