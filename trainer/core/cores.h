// Cores by number: those that a thread may run on, a host's, a NUMA node's.
// Tests: tests/trainer/core/available_cores_test.cc
#ifndef FSDP_TRAIN_TRAINER_CORE_CORES_H_
#define FSDP_TRAIN_TRAINER_CORE_CORES_H_

#include <string>
#include <vector>

namespace fsdp {

using Cores = std::vector<int>;  // Ascending.

// As Linux's files and taskset write them: "0-3,8". Parse: empty where the text is no such list.
std::string CoresText(const Cores& cores);
Cores ParseCores(const std::string& text);

bool Overlap(const Cores& a, const Cores& b);

// Those that the calling thread may run on. Empty: the kernel does not say.
Cores AllowedCores();
// Keeps the calling thread, and threads that it starts from here on, to them. False: the kernel
// refuses.
bool StayOn(const Cores& cores);

// Those of the host that are online. Empty: its file does not say. `root` goes before the path, for
// tests.
Cores CoresOfHost(const std::string& root = "");

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_CORE_CORES_H_
