// A rank's environment, and a port for the store that it names.
// Tests: tests/trainer/launch/free_port_test.cc
#ifndef FSDP_TRAIN_TRAINER_LAUNCH_RANK_VARIABLES_H_
#define FSDP_TRAIN_TRAINER_LAUNCH_RANK_VARIABLES_H_

#include <string>
#include <vector>

#include "trainer/core/unique_fd.h"
#include "trainer/launch/launch_command.h"

namespace fsdp {

// The same for all ranks of a start.
struct RankVariables {
  Endpoint endpoint;  // The store's.
  int restart = 0;
  std::string run_id;
  std::string secret;    // Empty: the ranks have what this process has.
  std::string terminal;  // For rank 0: kTerminalVariable of core/terminal.h.
};

// "NAME=value" for rank `local` of this host: this process's environment, with torchrun's variables
// (environment.h) in place of those of the same names.
std::vector<std::string> EnvironmentOf(int local, const LaunchOptions& options,
                                       const RankVariables& variables);

// A TCP port of this host that nobody else gets while the object lives. The port is bound but does
// not listen: the kernel hands it to nobody, and a server that names it with SO_REUSEADDR may still
// bind it.
class FreePort {
 public:
  FreePort();  // Throws DeviceError.
  int port() const { return port_; }

 private:
  UniqueFd socket_;
  int port_ = 0;
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_LAUNCH_RANK_VARIABLES_H_
