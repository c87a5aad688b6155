// Rows of any inputs that a model declares, drawn at random: no file, and nothing to learn but the
// noise. int32 are drawn evenly from their range, fp32 from a normal distribution, weights are 1.
// Sample i of an epoch is the same in every epoch.
// Tests: tests/trainer/data/tokens/token_source_test.cc
#ifndef FSDP_TRAIN_TRAINER_DATA_SYNTHETIC_SYNTHETIC_H_
#define FSDP_TRAIN_TRAINER_DATA_SYNTHETIC_SYNTHETIC_H_

#include <cstdint>
#include <string>
#include <vector>

#include "trainer/core/batch.h"
#include "trainer/core/philox.h"
#include "trainer/data/row_source.h"
#include "trainer/data/tokens/token_source.h"

namespace fsdp {

class SyntheticRows final : public RowSource {
 public:
  static constexpr int64_t kEpoch = int64_t{1} << 16;

  struct Source {
    uint64_t seed = 0;
    double weight = 1;
    int64_t first = 0, rows = kEpoch;  // A source's samples.
  };

  // `seed`: of the mixture. Throws std::invalid_argument for derived inputs that do not pass
  // CheckDerived(), for int32 without a range, and for no sources.
  SyntheticRows(const BatchSpec& spec, std::vector<Source> sources, uint64_t seed);

  const Mixture& mixture() const override { return mixture_; }
  int64_t sources() const override { return std::ssize(sources_); }
  int64_t Rows(int64_t source) const override { return sources_.at(source).rows; }
  std::string Describe() const override { return "source `synthetic`"; }
  void CheckViews(const Batch& out, int64_t rows) const override;
  void Fill(int64_t sample, int64_t row, const Batch& out) const override;
  void Derive(const Batch& batch) const override;
  int64_t Targets(int64_t begin, int64_t end) const override {
    return (end - begin) * spec_.targets;
  }
  int64_t InputTokens(int64_t begin, int64_t end) const override {
    return (end - begin) * spec_.Counted();  // Full samples', whatever lengths are drawn.
  }
  std::string WhyNoTargets(const std::string& of) const override { return of + " has no samples"; }

 private:
  const BatchSpec spec_;
  const std::vector<Source> sources_;
  const Mixture mixture_;
};

// Tokens from a rule with noise: something to learn, at a known price, with no file. Token t is
//   with probability noise (and for t = 0): drawn evenly from the vocabulary
//   otherwise:                              (multiplier * token[t - 1] + increment) mod V
// with multiplier and V coprime, so that every token is equally frequent. Only the token before
// matters, so no model does better than
//   H = -q ln q - (V - 1) r ln r  nats a token,  r = noise / V,  q = 1 - noise + r,
// while one that learnt nothing pays ln V. The rule is a function of V alone: sources of different
// seeds are samples of one language.

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

#endif  // FSDP_TRAIN_TRAINER_DATA_SYNTHETIC_SYNTHETIC_H_
