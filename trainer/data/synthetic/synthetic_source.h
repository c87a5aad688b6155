// Tokens from a rule with noise: something to learn, at a known price, with no file. Token t is
//   with probability noise (and for t = 0): drawn evenly from the vocabulary
//   otherwise:                              (multiplier * token[t - 1] + increment) mod V
// with multiplier and V coprime, so that every token is equally frequent. Only the token before
// matters, so no model does better than
//   H = -q ln q - (V - 1) r ln r  nats a token,  r = noise / V,  q = 1 - noise + r,
// while one that learnt nothing pays ln V. The rule is a function of V alone: sources of different
// seeds are samples of one language.
// Tests: tests/trainer/data/tokens/token_source_test.cc
#ifndef FSDP_TRAIN_TRAINER_DATA_SYNTHETIC_SYNTHETIC_SOURCE_H_
#define FSDP_TRAIN_TRAINER_DATA_SYNTHETIC_SYNTHETIC_SOURCE_H_

#include <string>
#include <vector>

#include "trainer/core/philox.h"
#include "trainer/data/tokens/token_source.h"

namespace fsdp {

struct SyntheticOptions {
  int32_t vocab_size = 256;  // V, >= 2.
  int64_t num_tokens = 1 << 20;
  double noise = 0.1;  // In (0, 1]. A read walks back 1 / noise tokens on average.
  uint64_t seed = 0;
};

class SyntheticSource : public TokenSource {
 public:
  explicit SyntheticSource(const SyntheticOptions& options);  // Throws std::invalid_argument.

  int64_t size() const override { return options_.num_tokens; }
  int32_t vocab_size() const override { return options_.vocab_size; }
  void Read(int64_t offset, std::span<int32_t> out) const override;
  std::string Describe() const override;
  std::string Where(int64_t offset) const override;
  std::vector<DataFile> Files() const override { return {}; }

  int32_t Next(int32_t token) const;  // By the rule, without noise.
  double Entropy() const;             // H above.

 private:
  bool IsDrawn(int64_t offset) const;
  int32_t Draw(int64_t offset) const;

  SyntheticOptions options_;
  RandomStream noise_, draws_;
  int64_t multiplier_, increment_;
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_DATA_SYNTHETIC_SYNTHETIC_SOURCE_H_
