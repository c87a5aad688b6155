// Text from logits, wherever they come from: how tokens are chosen, and the loop that asks for
// more.
#ifndef FSDP_TRAIN_TRAINER_GENERATE_SAMPLER_H_
#define FSDP_TRAIN_TRAINER_GENERATE_SAMPLER_H_

#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace fsdp {

// The tokens among which one is drawn, and how.
struct Sampling {
  double temperature = 0.8;  // Divides the logits; 0: the likeliest token, the first of equals.
  int64_t top_k = 0;         // Only the k likeliest, 0: all.
  // Only the likeliest of those that together have this probability (Holtzman et al. 2020,
  // arXiv:1904.09751), in (0, 1]; 1: all.
  double top_p = 1;
};

// A token from softmax(logits / temperature) over the first `vocab` logits, or what `sampling`
// leaves of them. `uniform` in (0, 1). Logits that are NaN count as -infinity.
int32_t PickToken(std::span<const float> logits, int64_t vocab, const Sampling& sampling,
                  double uniform);

// Where logits come from: a model with a cache (generator.h), or a window (below). Rows are texts
// side by side. Spans hold until the next call.
class LogitsSource {
 public:
  virtual ~LogitsSource() = default;
  virtual int64_t rows() const = 0;
  virtual int64_t vocab_size() const = 0;
  virtual int64_t capacity() const = 0;  // Tokens of a row, the prompt's included.
  // Starts `row` anew with a prompt of at least one token; the logits of what follows, [vocab].
  virtual std::span<const float> Start(int64_t row, std::span<const int32_t> prompt) = 0;
  // One more token for each row, tokens[r] at positions[r], which follows what the row has. A row
  // that is finished may repeat its last position: the others do not see it. [rows, vocab].
  virtual std::span<const float> Next(std::span<const int32_t> tokens,
                                      std::span<const int32_t> positions) = 0;
};

// One row that never ends: each call looks at the last `context` tokens, all of them anew. Samples
// during training use it instead of a cache: a cache orders sums otherwise, which would change a
// run's records.
class SlidingWindow : public LogitsSource {
 public:
  // `logits(tokens)` gives those of the token after the last one of `tokens`, 1 to context of them.
  using Logits = std::function<std::span<const float>(std::span<const int32_t> tokens)>;
  SlidingWindow(int64_t context, int64_t vocab_size, Logits logits)
      : context_(context), vocab_size_(vocab_size), logits_(std::move(logits)) {}

  int64_t rows() const override { return 1; }
  int64_t vocab_size() const override { return vocab_size_; }
  int64_t capacity() const override { return std::numeric_limits<int64_t>::max(); }
  std::span<const float> Start(int64_t row, std::span<const int32_t> prompt) override;
  std::span<const float> Next(std::span<const int32_t> tokens,
                              std::span<const int32_t> positions) override;

 private:
  std::span<const float> OfLast() const;

  const int64_t context_, vocab_size_;
  const Logits logits_;
  std::vector<int32_t> tokens_;
};

// A continuation, and why it ended.
struct Continuation {
  // New ones alone; without the end-of-text token, but with what GenerateOptions::ends saw.
  std::vector<int32_t> tokens;
  enum class End { kLength, kEndOfText, kContext } end = End::kLength;
};

struct GenerateOptions {
  int64_t max_tokens = 200;
  Sampling sampling;
  uint64_t seed = 0;
  std::string_view stream = "generate";  // The stream of random numbers.
  uint64_t first = 0;                    // Number of the first prompt there.
  int32_t vocab = 0;                     // Tokens that may come out: [0, vocab) ...
  std::vector<int32_t> never = {};       // ... but for these.
  std::vector<int32_t> eos;              // Each ends a continuation.
  // Whether prompt p's continuation so far ends with its last token; may be null.
  std::function<bool(size_t p, std::span<const int32_t> tokens)> ends = nullptr;
};

// Continues each prompt (at most the source's rows of them, each of 1 to capacity tokens). Token i
// of prompt p is drawn with RandomStream(seed, stream, first + p).Uniform(i), so it does not depend
// on what else is in the batch. `on_token` (may be null) hears of each token as it comes.
std::vector<Continuation> Generate(
    LogitsSource& source, const std::vector<std::vector<int32_t>>& prompts,
    const GenerateOptions& options,
    const std::function<void(size_t prompt, int32_t token)>& on_token = nullptr);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_GENERATE_SAMPLER_H_
