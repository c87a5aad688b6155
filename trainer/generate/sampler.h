// Text from logits.
#ifndef FSDP_TRAIN_TRAINER_GENERATE_SAMPLER_H_
#define FSDP_TRAIN_TRAINER_GENERATE_SAMPLER_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

namespace fsdp {

// Among which tokens one is drawn, and how.
struct Sampling {
  double temperature = 0.8;  // Divides the logits; 0: the likeliest token, the first of equals.
  int64_t top_k = 0;         // Only the k likeliest, 0: all.
  // Of those, the likeliest that together have this probability (Holtzman et al. 2020,
  // arXiv:1904.09751), in (0, 1]; 1: all.
  double top_p = 1;
};

// A token from softmax(logits / temperature) over the first `vocab` logits, or what `sampling`
// leaves of them. `uniform` in (0, 1). Logits that are NaN count as -infinity.
int32_t PickToken(std::span<const float> logits, int64_t vocab, const Sampling& sampling,
                  double uniform);

struct SampleOptions {
  int64_t max_tokens = 200;
  Sampling sampling;
  int64_t vocab = 256;   // Tokens that may come out.
  int64_t context = 64;  // At most so many tokens are looked at: the window slides.
  std::optional<int32_t> end = std::nullopt;  // The last token, where it comes.
  uint64_t seed = 0;  // Token i is drawn with RandomStream(seed, "sample", step).Uniform(i).
  uint64_t step = 0;
};

// `logits(tokens)` gives those of the token after the last one of `tokens` (1 to context of them),
// to be read before the next call. Returns the new tokens alone.
std::vector<int32_t> Sample(
    const SampleOptions& options, std::vector<int32_t> prompt,
    const std::function<std::span<const float>(std::span<const int32_t>)>& logits);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_GENERATE_SAMPLER_H_
