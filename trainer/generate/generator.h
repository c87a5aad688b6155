// Text from a model that is there: one process, the whole model in memory, keys and values of what
// has been seen in a cache.
#ifndef FSDP_TRAIN_TRAINER_GENERATE_GENERATOR_H_
#define FSDP_TRAIN_TRAINER_GENERATE_GENERATOR_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "models/shape.h"
#include "trainer/autograd/kv_cache.h"
#include "trainer/checkpoint/checkpoint_hold.h"
#include "trainer/data/tokenizer.h"
#include "trainer/fsdp/executor.h"
#include "trainer/fsdp/pooled_allocator.h"
#include "trainer/generate/sampler.h"
#include "trainer/nn/model.h"
#include "trainer/runtime/device.h"
#include "trainer/weights/run_tokenizer.h"

namespace fsdp {

// A model to generate from, as found on disk.
struct StoredModel {
  std::string directory;
  ModelShape shape;
  std::unique_ptr<Model> model;     // All of it frozen; a checkpoint's adapters are merged.
  Executor::FillParameter weights;  // Reads them.
  RunTokenizer tokenizer;           // Its name is empty where the files name none.
  std::vector<int32_t> eos;         // What ends a text; empty where that is the tokenizer's to say.
  CheckpointHold hold;              // Its run does not remove it before all is read.
};

// `path`: a Hugging Face directory, one of our checkpoints, or a run directory, whose latest
// checkpoint is meant. Reading a weight that is not finite throws CheckpointError that names it.
// Throws CheckpointError.
StoredModel OpenStoredModel(const std::string& path);

struct GeneratorOptions {
  int64_t rows = 1;      // Sequences at a time.
  int64_t capacity = 0;  // Tokens of a sequence, prompt included; at most the model's positions.
  int threads = 1;
};

class Generator {
 public:
  // Reads all weights: blocks. Throws MemoryError before it allocates where they will not fit,
  // CheckpointError.
  Generator(StoredModel model, const GeneratorOptions& options);

  int64_t vocab_size() const { return model_->vocab_size(); }
  int64_t rows() const { return options_.rows; }

  // The logits of what follows, [vocab], until the next call; both block. Throw
  // Error(kNotFinite) for logits that are not, DataError for a token outside the vocabulary or a
  // position outside the cache: after either no other call may follow.
  // Starts `row` anew with a prompt of 1 to capacity tokens.
  std::span<const float> Start(int64_t row, std::span<const int32_t> prompt);
  // One more token for each row, tokens[r] at positions[r], which follows what the row has. A row
  // that is finished may repeat its last position: the others do not see it. [rows, vocab].
  std::span<const float> Next(std::span<const int32_t> tokens, std::span<const int32_t> positions);

 private:
  std::span<const float> Run(int64_t first_row, int64_t rows, std::span<const int32_t> tokens,
                             std::span<const int32_t> positions);
  KvCache CacheOf(int64_t first_row, int64_t rows) const;

  const GeneratorOptions options_;
  const std::unique_ptr<Model> model_;
  const std::unique_ptr<Device> device_;
  PooledAllocator allocator_;
  const MeshCommunicators alone_{Mesh(0, 1, 1), /*queues=*/1, nullptr};
  std::unique_ptr<Executor> executor_;
  std::vector<KvCache::Layer> cache_;  // Of all rows.
  View logits_, host_logits_;
};

// A continuation, and why it ended.
struct Continuation {
  std::vector<int32_t> tokens;  // New ones alone; without the end-of-text token.
  enum class End { kLength, kEndOfText, kContext } end = End::kLength;
};

struct GenerateOptions {
  int64_t max_tokens = 200;
  Sampling sampling;
  uint64_t seed = 0;
  int32_t vocab = 0;         // Tokens that may come out: [0, vocab).
  std::vector<int32_t> eos;  // Each ends a continuation.
};

// Continues each prompt (at most the generator's rows of them, each of 1 to capacity tokens). Token
// i of prompt p is drawn with RandomStream(seed, "generate", first + p).Uniform(i), so it does not
// depend on what else is in the batch. `on_token` (may be null) hears of each token as it comes.
std::vector<Continuation> Generate(
    Generator& generator, const std::vector<std::vector<int32_t>>& prompts,
    const GenerateOptions& options, int64_t capacity, uint64_t first,
    const std::function<void(size_t prompt, int32_t token)>& on_token);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_GENERATE_GENERATOR_H_
