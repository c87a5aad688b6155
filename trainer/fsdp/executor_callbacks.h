// The executor asks others for initial values, and an optimizer for updates.
// Tests: tests/trainer/engine/bitwise_test.cc
#ifndef FSDP_TRAIN_TRAINER_FSDP_EXECUTOR_CALLBACKS_H_
#define FSDP_TRAIN_TRAINER_FSDP_EXECUTOR_CALLBACKS_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "trainer/core/view.h"
#include "trainer/fsdp/action.h"

namespace fsdp {

class Communicator;
class ModelBuffer;
class Parameter;
struct EmbeddingTable;
struct ParameterSlice;

// The sources of initial values for Executor::Initialize(). Each writes elements [begin, begin + n)
// of its tensor to `values`, n elements of host memory, on any thread.
using FillParameter = std::function<void(const Parameter&, int64_t begin, std::span<float> values)>;
// `values` has the buffer's dtype.
using FillBuffer = std::function<void(const ModelBuffer&, int64_t begin, const View& values)>;
using FillRows = std::function<void(const EmbeddingTable&, int64_t begin, std::span<float> values)>;

// The source of the records of coded weights, for Executor::InitializeBase().
struct RecordSource {
  // Writes whole records of the slice, from record `first` on, as EncodeRecords()
  // (ops/weight_codes.h) does, and with nested scales the fp32 scales, 256 a record. On any thread.
  std::function<void(const Parameter&, const ParameterSlice&, int64_t first,
                     std::span<uint8_t> records, std::span<float> scales)>
      fill;
  // Whether `fill` writes the slice's nested scales into its records.
  std::function<bool(const ParameterSlice&)> is_whole;
};
// Every rank does `work`; returns what it returned, by rank. Where it throws on any rank, all
// throw. `name` is used once.
using ShareBytes = std::function<std::vector<std::string>(
    const std::string& name, const std::function<std::string()>& work)>;

// A shard of Executor::NewShards(). One with a value for several elements stays in pinned memory
// where the others are spilled.
struct ShardForm {
  DType dtype = DType::kFloat32;
  int64_t elements = 1;  // Per value; a shard's length is a multiple of them. 0: no values.
};

// The update of a trainable flat parameter's shard, or of a part of the shard.
struct ShardUpdate {
  int flat = 0;
  View master;
  ConstView gradient;
  ConstView coefficient;  // [1], fp32: multiplies the gradient; NaN there changes nothing at all.
  View copy = {};         // The copy to compute with; empty where that is the master.
  int part = 0;           // Index in SpilledShards::PartsOf().
  int64_t begin = 0;      // The part's first element in the shard.
  // Where that part of another shard lies; null: shards are whole, in their usual place.
  std::function<View(const View& shard)> in_memory = nullptr;

  // The memory to update of a shard from NewShards().
  View Shard(const View& shard) const { return in_memory ? in_memory(shard) : shard; }
};

// An action on matrices: one of the four on a unit's that are updated whole
// (ActionKind::kMatrixPieces and what follows), or of the five of factored moments (kFactorSums and
// what follows), or a kMove of their buffers. These are the optimizer's: `slot` chooses among
// MatrixSlots().
struct MatrixAction {
  ActionKind kind = ActionKind::kMatrixPieces;
  int unit = 0, slot = 0;
  // kMatrixPieces: by flat parameter of the unit with DTypes::whole, or one part of such a shard,
  // the parts in turn. kFactorSums, kUpdateSquares: by flat parameter of the unit that trains.
  std::vector<ShardUpdate> shards = {};
  Communicator* world = nullptr;  // For what travels: of all ranks.
  Resource to = {};               // kMove, between the device and the host: where to.

  // Without shards and ranks. Empty: the action is the executor's own.
  static std::optional<MatrixAction> Of(const Action& action);
};

// The update of this rank's embedding rows by one round of an exchange, as ops/row_adagrad.h takes
// it.
struct RowUpdate {
  ConstView ids;
  View gradients, table, sums;
  int position = 0, world = 1;
  ConstView coefficient = {}, mean_scale = {};
  std::optional<ConstView> loss_scale = {};
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_FSDP_EXECUTOR_CALLBACKS_H_
