#ifndef FSDP_TRAIN_TRAINER_CORE_AVAILABLE_CORES_H_
#define FSDP_TRAIN_TRAINER_CORE_AVAILABLE_CORES_H_

namespace fsdp {

// Cores that the calling thread may run on, at least 1: taskset, cpusets and Slurm leave fewer than
// the host has.
int AvailableCores();

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_CORE_AVAILABLE_CORES_H_
