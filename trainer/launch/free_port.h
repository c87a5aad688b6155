#ifndef FSDP_TRAIN_TRAINER_LAUNCH_FREE_PORT_H_
#define FSDP_TRAIN_TRAINER_LAUNCH_FREE_PORT_H_

#include "trainer/core/unique_fd.h"

namespace fsdp {

// A TCP port of this host that nobody else gets while the object lives: it is bound, so the kernel
// gives it to no one who asks for any port, but not listened to, so that who sets SO_REUSEADDR and
// names it can bind and listen.
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
