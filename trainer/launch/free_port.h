#ifndef FSDP_TRAIN_TRAINER_LAUNCH_FREE_PORT_H_
#define FSDP_TRAIN_TRAINER_LAUNCH_FREE_PORT_H_

#include "trainer/core/unique_fd.h"

namespace fsdp {

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

#endif  // FSDP_TRAIN_TRAINER_LAUNCH_FREE_PORT_H_
