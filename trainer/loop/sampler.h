// Text from logits.
#ifndef FSDP_TRAIN_TRAINER_LOOP_SAMPLER_H_
#define FSDP_TRAIN_TRAINER_LOOP_SAMPLER_H_

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace fsdp {

// A token from softmax(logits / temperature) over the first `vocab` logits; temperature 0: the
// likeliest, the first of equals. `uniform` in (0, 1). Logits that are NaN count as -infinity.
int32_t PickToken(std::span<const float> logits, int64_t vocab, double temperature, double uniform);

struct SampleOptions {
  int64_t max_tokens = 200;
  double temperature = 0.8;
  int64_t vocab = 256;   // Tokens that may come out.
  int64_t context = 64;  // At most so many tokens are looked at: the window slides.
  uint64_t seed = 0;     // Token i is drawn with RandomStream(seed, "sample", step).Uniform(i).
  uint64_t step = 0;
};

// `logits(tokens)` gives those of the token after the last one of `tokens` (1 to context of them),
// to be read before the next call. Returns the new tokens alone.
std::vector<int32_t> Sample(
    const SampleOptions& options, std::vector<int32_t> prompt,
    const std::function<std::span<const float>(std::span<const int32_t>)>& logits);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_LOOP_SAMPLER_H_
