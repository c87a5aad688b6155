// The tokens of each expert in one step, as a picture.
// Tests: tests/trainer/observe/report/expert_map_test.cc
#ifndef FSDP_TRAIN_TRAINER_OBSERVE_REPORT_EXPERT_MAP_H_
#define FSDP_TRAIN_TRAINER_OBSERVE_REPORT_EXPERT_MAP_H_

#include <string>

#include "trainer/observe/expert_loads.h"

namespace fsdp {

// HTML: a row of cells for each layer, a cell for each expert, the darker the more tokens: none, up
// to a quarter of the layer's mean, ..., at least twice the mean. At most 16 bytes a cell of 1,000
// by 1,000. Empty without a layer.
std::string ExpertMap(const ExpertsRecord& record);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OBSERVE_REPORT_EXPERT_MAP_H_
