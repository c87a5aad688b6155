// A rank's place in its job, and how it reaches the other ranks.
// Tests: tests/trainer/loop/train_test.cc
#ifndef FSDP_TRAIN_TRAINER_LOOP_JOB_H_
#define FSDP_TRAIN_TRAINER_LOOP_JOB_H_

#include <chrono>
#include <functional>
#include <iosfwd>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "trainer/comm/hosts/host_placement.h"
#include "trainer/comm/mesh_communicators.h"
#include "trainer/comm/store/store.h"
#include "trainer/core/file_io.h"
#include "trainer/runtime/choose_device.h"
#include "trainer/runtime/stream_checker.h"

namespace fsdp {

// Processes in a real run, threads in tests.
struct Job {
  int rank = 0, world = 1;
  int local_world = 1;  // Ranks on this host.
  ChosenDevice device;
  Store* store = nullptr;
  // Finds which ranks share a host. All ranks call it, and it blocks. Null: all are on one host.
  std::function<HostPlacement()> find_hosts;
  // Finds how many ranks of this host may run on this rank's cores, itself included. All ranks call
  // it, and it blocks. Null: all of the host.
  std::function<int()> find_ranks_on_cores;
  MeshCommunicators::Connect connect;  // Connects this job's ranks. Not called in a world of one.
  std::string transport = {};          // How it connects them, in words, once it has.
  int restart = 0;                     // How often the launcher has started all ranks again.
  std::string place;  // For the log and rank 0's console: which rank this is, and who says so.
  std::vector<std::string> command_line;
  // Requests of the user to this rank so far; null: none. Any thread asks the first, often; the
  // others are read once a step.
  std::function<bool()> stop_requested;
  std::function<bool()> take_save_request;    // True once a request.
  std::function<bool()> take_report_request;  // True once a request: to say where the rank stands.
  // When the run may take no more time, where it has a limit. Rank 0's counts.
  std::optional<std::chrono::steady_clock::time_point> ends = std::nullopt;
  std::ostream* console = nullptr;         // Rank 0's; null: silent.
  std::shared_ptr<StreamChecker> checker;  // For tests: proves the order of all uses of memory.
  FileIo* spill_disk = &FileIo::System();  // For tests: a disk that fails.
  std::function<bool()> reader_gone;       // Asked where the console fails: has it lost its reader?
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_LOOP_JOB_H_
