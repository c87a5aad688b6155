// Text from a model that is there: one process, the whole model in memory, keys and values of what
// has been seen in a cache.
#ifndef FSDP_TRAIN_TRAINER_GENERATE_GENERATOR_H_
#define FSDP_TRAIN_TRAINER_GENERATE_GENERATOR_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "models/shape.h"
#include "trainer/autograd/kv_cache.h"
#include "trainer/data/tokenizer.h"
#include "trainer/fsdp/executor.h"
#include "trainer/fsdp/pooled_allocator.h"
#include "trainer/generate/sampler.h"
#include "trainer/nn/model.h"
#include "trainer/runtime/choose_device.h"
#include "trainer/runtime/device.h"
#include "trainer/weights/initial_weights.h"
#include "trainer/weights/run_tokenizer.h"

namespace fsdp {

// A model to generate from, as found on disk.
struct StoredModel {
  std::string directory;
  ModelShape shape;
  std::unique_ptr<Model> model;  // All of it frozen; a checkpoint's adapters are merged.
  WeightSource weights;          // Reads them.
  RunTokenizer tokenizer;        // Its name is empty where the files name none.
  std::vector<int32_t> eos;      // What ends a text; empty where that is the tokenizer's to say.
};

// `path`: a Hugging Face directory, one of our checkpoints, or a run directory, whose latest
// checkpoint is meant. Reading a weight that is not finite throws CheckpointError that names it.
// Throws CheckpointError.
StoredModel OpenStoredModel(const std::string& path);

struct GeneratorOptions {
  int64_t rows = 1;      // Sequences at a time.
  int64_t capacity = 0;  // Tokens of a sequence, prompt included; at most the model's positions.
  int threads = 1;
  ChosenDevice device = {};
};

class Generator : public LogitsSource {
 public:
  // Reads all weights: blocks. Throws MemoryError before it allocates where they will not fit,
  // CheckpointError.
  Generator(StoredModel model, const GeneratorOptions& options);

  int64_t rows() const override { return options_.rows; }
  int64_t vocab_size() const override { return model_->autoregressive()->outputs(); }
  int64_t capacity() const override { return options_.capacity; }

  // Both block. Throw Error(kNotFinite) for logits that are not, DataError for a token outside the
  // vocabulary or a position outside the cache: after either no other call may follow.
  std::span<const float> Start(int64_t row, std::span<const int32_t> prompt) override;
  std::span<const float> Next(std::span<const int32_t> tokens,
                              std::span<const int32_t> positions) override;

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

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_GENERATE_GENERATOR_H_
