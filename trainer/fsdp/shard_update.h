// What the executor asks of an optimizer.
// Tests: tests/trainer/engine/bitwise_test.cc
#ifndef FSDP_TRAIN_TRAINER_FSDP_SHARD_UPDATE_H_
#define FSDP_TRAIN_TRAINER_FSDP_SHARD_UPDATE_H_

#include <functional>
#include <optional>

#include "trainer/core/view.h"

namespace fsdp {

// Of the shard of a flat parameter that trains, or of a part of it: its update.
struct ShardUpdate {
  int flat = 0;
  View master;
  ConstView gradient;
  ConstView coefficient;  // [1], fp32: multiplies the gradient; NaN there changes nothing at all.
  View copy = {};         // What is computed with; empty where that is the master itself.
  int part = 0;           // Of SpilledShards::PartsOf().
  // Where that part of its other shards is; null: they are whole, and where they always are.
  std::function<View(const View& shard)> in_memory = nullptr;

  // Of NewShards(): what is updated.
  View Shard(const View& shard) const { return in_memory ? in_memory(shard) : shard; }
};

// Of the rows of embedding tables that this rank has: what a round of an exchange has brought for
// them, as ops/row_adagrad.h takes it.
struct RowUpdate {
  ConstView ids;
  View gradients, table, sums;
  int position = 0, world = 1;
  ConstView coefficient = {}, mean_scale = {};
  std::optional<ConstView> loss_scale = {};
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_FSDP_SHARD_UPDATE_H_
