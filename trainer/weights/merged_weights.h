// The weights of a checkpoint as a model without adapters has them.
// Tests: tests/trainer/weights/hf_export_test.cc
#ifndef FSDP_TRAIN_TRAINER_WEIGHTS_MERGED_WEIGHTS_H_
#define FSDP_TRAIN_TRAINER_WEIGHTS_MERGED_WEIGHTS_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "trainer/checkpoint/checkpoint_reader.h"
#include "trainer/nn/buffer.h"
#include "trainer/nn/parameter.h"
#include "trainer/ops/weight_layout.h"
#include "trainer/weights/coded_base.h"

namespace fsdp {

class Model;

// An adapter of one weight, in memory: W += scale x B A, as a matrix [outputs, inputs].
struct LoraFactors {
  std::vector<float> a, b;  // [rank, in], [out, rank].
  int64_t rank = 0;
  int64_t column = 0, columns = 0;  // It adds to the outputs [column, column + columns).
  double scale = 0;
  WeightLayout layout = WeightLayout::kOutIn;  // The weight's.
};

// Adds it to elements [begin, begin + out.size()) of a weight of this shape: the product in
// float64, rounded once.
void AddLora(const LoraFactors& factors, const Shape& weight, int64_t begin, std::span<float> out);

// For one thread. Holds the adapters of one parameter at a time.
class MergedWeights {
 public:
  // Keeps references. `state`: "master", or "ema" for the averaged weights. Frozen parameters have
  // no average and are read from "master", those of a base from its files. Throws CheckpointError
  // where the checkpoint has no such state, or its parameters or buffers are not the model's.
  MergedWeights(CheckpointReader& reader, const Model& model, std::string state);

  // Fills `out` with elements [begin, begin + out.size()) of the parameter plus its adapters' sum
  // (nn/lora.h): alpha / rank times the product of B and A, in float64, rounded once.
  void Read(const Parameter& parameter, int64_t begin, std::span<float> out);
  // Read() without adapters, which are parameters of their own.
  void ReadPlain(const Parameter& parameter, int64_t begin, std::span<float> out);
  // From here on takes the base of a run with coded weights from `read`: other weights than its
  // own.
  void TakeBase(FillParameter read) { instead_ = std::move(read); }
  // Those of coded weights; nothing where none are coded. Outlives this.
  std::optional<RecordSource> Records();
  // Elements [begin, begin + n) of a buffer, in its dtype, which are the same for every state.
  void ReadBuffer(const ModelBuffer& buffer, int64_t begin, const View& out);
  // Elements [begin, begin + out.size()) of an embedding table, the same for every state. Fast for
  // calls that go on where others ended.
  void ReadTable(int table, int64_t begin, std::span<float> out);

 private:
  // Rows of a table, read at once. Several blocks serve readers in different places.
  struct Block {
    int table = -1;
    int64_t number = 0;
    std::vector<float> values;
  };

  void LoadAdapters(const Parameter& parameter);
  // Opens the weights that the run began with. Throws CheckpointError where they are others now.
  const CodedBase& Base();
  void RequireTables(const Model& model);
  const Block& BlockOf(int table, int64_t number);

  CheckpointReader& reader_;
  const Model& model_;
  std::shared_ptr<const CodedBase> base_;  // From the first use on.
  FillParameter instead_;                  // TakeBase().
  const WeightLayout layout_;
  const std::string state_;
  std::unordered_set<std::string> frozen_, of_base_;  // By name; those of the base are in both.
  const Parameter* loaded_ = nullptr;                 // The parameter whose adapters are held.
  std::vector<LoraFactors> factors_;
  StateFormat tables_;  // As the model has them.
  std::vector<Block> blocks_;
  size_t next_block_ = 0;
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_WEIGHTS_MERGED_WEIGHTS_H_
