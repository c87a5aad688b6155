// Tests: tests/trainer/fsdp/schedule_test.cc
#ifndef FSDP_TRAIN_TRAINER_FSDP_SCHEDULE_CHECK_H_
#define FSDP_TRAIN_TRAINER_FSDP_SCHEDULE_CHECK_H_

#include "trainer/fsdp/schedule.h"

namespace fsdp {

// Throws std::invalid_argument for options out of range.
void CheckScheduleOptions(const ScheduleOptions& options);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_FSDP_SCHEDULE_CHECK_H_
