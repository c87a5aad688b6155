// Options of schedules without a model: an embedding and a head in the root, blocks between them.
#ifndef FSDP_TRAIN_TESTS_TESTING_BLOCK_SCHEDULE_H_
#define FSDP_TRAIN_TESTS_TESTING_BLOCK_SCHEDULE_H_

#include <vector>

#include "trainer/fsdp/schedule.h"

namespace fsdp {

// Each block is a unit of its own: units 1 to `blocks`.
inline ScheduleOptions OfBlocks(int blocks, int shards) {
  ScheduleOptions options;
  options.shards = shards;
  options.units.resize(blocks + 1);
  options.segments.resize(blocks + 2);
  for (int i = 1; i <= blocks; ++i) options.segments[i].unit = i;
  return options;
}

template <typename Row>
void SetAll(std::vector<Row>& rows, bool Row::*member, bool value = true) {
  for (Row& row : rows) row.*member = value;
}

}  // namespace fsdp

#endif  // FSDP_TRAIN_TESTS_TESTING_BLOCK_SCHEDULE_H_
