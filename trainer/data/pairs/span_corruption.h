// Span corruption (Raffel et al. 2020, arXiv:1910.10683, section 3.1.4), as the authors'
// random_spans_noise_mask has it (github.com/google-research/text-to-text-transfer-transformer,
// preprocessors.py): a text loses spans, in whose places sentinels stand; the target is each
// sentinel and the span that it stands for. Both end with the end-of-text token.
//   noise = round(length x noise_density), in [1, length - 1]   spans = max(1, round(noise / mean))
//   input: length - noise + spans + 1 tokens            target: noise + spans + 1
// The text is cut into spans of noise and as many of what stays, in turn, the first of what stays;
// every way to do so is as likely as any other.
// Tests: tests/trainer/data/pairs/span_corruption_test.cc
#ifndef FSDP_TRAIN_TRAINER_DATA_PAIRS_SPAN_CORRUPTION_H_
#define FSDP_TRAIN_TRAINER_DATA_PAIRS_SPAN_CORRUPTION_H_

#include <cstdint>
#include <optional>
#include <span>

#include "trainer/data/pairs/pair_batch.h"

namespace fsdp {

struct SpanOptions {
  double noise_density = 0.15;  // In (0, 1).
  double mean_span = 3;         // Tokens, >= 1.

  bool operator==(const SpanOptions&) const = default;
};

// A text has `length` tokens, >= 2.
struct SpanLengths {
  int64_t length = 0, noise = 0, spans = 0;
  int64_t input() const { return length - noise + spans + 1; }
  int64_t target() const { return noise + spans + 1; }
};
SpanLengths SpansOf(const SpanOptions& options, int64_t length);

// The lengths for the longest text whose input has at most `input` tokens. Empty: there is none.
std::optional<SpanLengths> LongestText(const SpanOptions& options, int64_t input);

// The sentinel of span i, from 0, of a text in bytes: the last ids of the vocabulary, counted down.
inline int32_t ByteSentinel(int64_t i, int64_t vocab) {
  return static_cast<int32_t>(vocab - 1 - i);
}

// The length of a part that is still to come. Cuts n elements into k parts of at least one: k - 1
// of n - 1 places, each choice as likely (Knuth, "Seminumerical Algorithms", algorithm 3.4.2 S).
class RandomParts {
 public:
  // `random(i, n)`: the i-th number drawn, in [0, n).
  RandomParts(int64_t n, int64_t k) : left_(n), parts_(k) {}
  template <typename Below>
  int64_t Next(const Below& random) {
    int64_t length = 1;
    for (--left_; left_ > 0; --left_, ++length) {
      const auto cut = static_cast<int64_t>(random(draws_++, static_cast<uint64_t>(left_)));
      if (cut < parts_ - 1) break;
    }
    --parts_;
    return length;
  }

 private:
  int64_t left_, parts_;
  uint64_t draws_ = 0;
};

// Writes the row of a text. `sentinels`: at least lengths.spans. A function of seed and sample.
void CorruptSpans(std::span<const int32_t> text, const SpanLengths& lengths,
                  std::span<const int32_t> sentinels, int32_t eot, uint64_t seed, int64_t sample,
                  const PairRow& row);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_DATA_PAIRS_SPAN_CORRUPTION_H_
