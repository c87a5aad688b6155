// A rank's cores beside its GPU. Memory that a thread pins, and what the host computes, lie and run
// where the kernel puts the thread: on another socket than the GPU's, copies cross the link between
// them.
// Tests: tests/trainer/runtime/near_gpu_test.cc
#ifndef FSDP_TRAIN_TRAINER_RUNTIME_NEAR_GPU_H_
#define FSDP_TRAIN_TRAINER_RUNTIME_NEAR_GPU_H_

#include <string>

namespace fsdp {

// Where the calling thread may run on the whole host, keeps it, and all threads that it starts from
// here on, to the cores of the GPU's NUMA node, as Linux's sysfs has them (local_cpulist and
// numa_node of `pci`, "0000:18:00.0"). Fewer cores are a launcher's choice (srun --cpu-bind,
// taskset, a cpuset) and stay. Returns words for a line, ", on cores 0-47 of NUMA node 0"; empty
// where the rank runs on the whole host. `root` goes before the paths, for tests.
std::string StayNearGpu(const std::string& pci, const std::string& root = "");

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_RUNTIME_NEAR_GPU_H_
