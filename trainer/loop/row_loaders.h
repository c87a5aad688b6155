// Tests: tests/trainer/loop/images_test.cc
#ifndef FSDP_TRAIN_TRAINER_LOOP_ROW_LOADERS_H_
#define FSDP_TRAIN_TRAINER_LOOP_ROW_LOADERS_H_

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "trainer/data/loader.h"

namespace fsdp {

// The loaders of a run with one kind of samples.
struct RowLoaders {
  std::unique_ptr<TrainLoader> train;
  std::vector<std::pair<std::string, std::unique_ptr<EvalLoader>>> valid;  // Empty: the only name.
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_LOOP_ROW_LOADERS_H_
