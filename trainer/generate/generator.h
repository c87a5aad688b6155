// Text from a stored model: one process, the whole model in memory, keys and values of the tokens
// so far in a cache. A model of an encoder and a decoder encodes a prompt once and begins a target.
// The target sees a second cache: the keys and values that its layers make of the encoded prompt.
// Shapes change from pass to pass, so memory is pooled by size, and not planned as a step's is.
#ifndef FSDP_TRAIN_TRAINER_GENERATE_GENERATOR_H_
#define FSDP_TRAIN_TRAINER_GENERATE_GENERATOR_H_

#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "trainer/autograd/kv_cache.h"
#include "trainer/comm/mesh.h"
#include "trainer/comm/mesh_communicators.h"
#include "trainer/core/batch.h"
#include "trainer/fsdp/pooled_allocator.h"
#include "trainer/generate/sampler.h"
#include "trainer/runtime/choose_device.h"
#include "trainer/runtime/device.h"
#include "trainer/weights/initial_weights.h"
#include "trainer/weights/run_tokenizer.h"

namespace fsdp {

class Executor;
class Model;

// A model to generate from, as found on disk.
struct StoredModel {
  std::string directory;
  ModelShape shape;
  std::shared_ptr<Model> model;     // All of it frozen; a checkpoint's adapters are merged.
  WeightSource weights;             // Reads them.
  RunTokenizer tokenizer;           // Its name is empty where the files name none.
  std::vector<int32_t> eos;         // Tokens that end a text; empty where the tokenizer says them.
  std::vector<int32_t> other_ends;  // Beside these: EndsOfOrigin().
  std::vector<int32_t> own;         // Trained though they may be no token of the tokenizer: `eos`,
                                    // and sentinels of a text in bytes.
  std::vector<std::string> notes = {};  // InitialNotes().
};

// `path`: a Hugging Face directory, one of our checkpoints, or a run directory, whose latest
// checkpoint is meant. Reading a weight that is not finite throws CheckpointError that names it.
// Throws CheckpointError.
StoredModel OpenStoredModel(const std::string& path);

struct GeneratorOptions {
  int64_t rows = 1;      // Sequences at a time.
  int64_t capacity = 0;  // Tokens of a sequence, prompt included; at most the model's positions.
  // Where prompts are encoded: tokens of the longest. `capacity` is then a target's.
  int64_t input = 0;
  int threads = 1;
  ChosenDevice device = {};
};

class Generator : public LogitsSource {
 public:
  // Reads all weights: blocks. Throws MemoryError before it allocates where they will not fit,
  // CheckpointError.
  Generator(StoredModel model, const GeneratorOptions& options);
  ~Generator() override;

  int64_t rows() const override { return options_.rows; }
  int64_t vocab_size() const override;
  int64_t capacity() const override { return options_.input + options_.capacity; }

  // Both block. Throw Error(kNotFinite) for logits that are not, DataError for a token outside the
  // vocabulary or a position outside the cache: after either no other call may follow.
  std::span<const float> Start(int64_t row, std::span<const int32_t> prompt) override;
  std::span<const float> Next(std::span<const int32_t> tokens,
                              std::span<const int32_t> positions) override;

 private:
  struct Fed {
    int64_t first_row, rows;
    std::vector<int32_t> tokens, positions;  // The rows', as many of each.
    bool encodes = false;                    // The rows' inputs, too.
  };

  void TakeCaches(const DecoderShape& decoder);
  std::span<const float> Run(Fed fed);
  void Load(const Fed& fed, const Batch& whole) const;
  Batch PartOf(const Fed& fed, const Batch& whole) const;
  KvCache CacheOf(const Fed& fed) const;

  const GeneratorOptions options_;
  const bool encodes_;  // Prompts.
  const std::shared_ptr<Model> model_;
  const std::unique_ptr<Device> device_;
  PooledAllocator allocator_;
  const MeshCommunicators alone_{Mesh(0, 1, 1), /*queues=*/1, nullptr};
  std::vector<KvCache::Layer> cache_;         // All rows'.
  std::vector<View> encoded_;                 // All rows', by layer: see KvCache::Encoded.
  std::vector<std::vector<int32_t>> inputs_;  // By row, where they are encoded.
  View logits_, host_logits_;
  std::unique_ptr<Executor> executor_;  // Last, as owners of streams are (stream.h).
};

// Texts that go on where the positions of a model end.

// Rows of `source` that never end. Up to its capacity, n tokens, a row is what the source makes of
// it. From there on the source starts with the row's last n tokens for each new token, as in
// SlidingWindow. Every token's position changes, so a cache keeps nothing, and each new token costs
// a pass over n. The source must outlive this; nobody else calls it.
class SlidingRows : public LogitsSource {
 public:
  explicit SlidingRows(LogitsSource& source);

  int64_t rows() const override { return source_.rows(); }
  int64_t vocab_size() const override { return source_.vocab_size(); }
  int64_t capacity() const override { return std::numeric_limits<int64_t>::max(); }
  std::span<const float> Start(int64_t row, std::span<const int32_t> prompt) override;
  std::span<const float> Next(std::span<const int32_t> tokens,
                              std::span<const int32_t> positions) override;

  bool slid() const { return slid_; }  // Some row has more tokens than the source has room for.

 private:
  bool IsFull(size_t row) const;  // Its next token is computed from the last n alone.
  std::span<const int32_t> Window(size_t row) const;

  LogitsSource& source_;
  std::vector<std::vector<int32_t>> seen_;  // By row; empty: not started.
  std::vector<float> logits_;
  bool slid_ = false;
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_GENERATE_GENERATOR_H_
