// What the executor asks of an optimizer.
#ifndef FSDP_TRAIN_TRAINER_FSDP_SHARD_UPDATE_H_
#define FSDP_TRAIN_TRAINER_FSDP_SHARD_UPDATE_H_

#include <functional>

#include "trainer/core/view.h"

namespace fsdp {

// Of the shard of a flat parameter that trains: its update.
struct ShardUpdate {
  int flat = 0;
  View master;
  ConstView gradient;
  ConstView coefficient;  // [1], fp32: multiplies the gradient; NaN there changes nothing at all.
  View copy = {};         // What is computed with; empty where that is the master itself.
  // Where the others of its shards are, that are spilled; null: none is.
  std::function<View(const View& shard)> in_memory = nullptr;

  // Of NewShards(): where it is now.
  View Shard(const View& shard) const { return in_memory ? in_memory(shard) : shard; }
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_FSDP_SHARD_UPDATE_H_
