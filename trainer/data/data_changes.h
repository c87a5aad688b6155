// Whether the files that a run is resumed with are those that it was trained on.
#ifndef FSDP_TRAIN_TRAINER_DATA_DATA_CHANGES_H_
#define FSDP_TRAIN_TRAINER_DATA_DATA_CHANGES_H_

#include <string>
#include <vector>

#include "trainer/data/data_files.h"

namespace fsdp {

// A sentence for each file of two lists that is not the same, with sizes and hashes of both; empty
// where the lists hold the same contents in the same order, whatever the paths: data may move.
std::vector<std::string> DataChanges(const std::vector<DataFile>& before,
                                     const std::vector<DataFile>& now);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_DATA_DATA_CHANGES_H_
