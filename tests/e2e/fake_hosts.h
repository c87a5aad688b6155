// Hosts on one machine, joined by a switch. Each is a network, process, IPC and mount namespace of
// its own, so that its ranks share memory with one another and with nobody else. Namespaces end
// with their processes, so nothing outlives the test, however it ends.
#ifndef FSDP_TRAIN_TESTS_E2E_FAKE_HOSTS_H_
#define FSDP_TRAIN_TESTS_E2E_FAKE_HOSTS_H_

#include <sys/types.h>

#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/e2e/run_binary.h"

namespace fsdp::e2e {

// The reason why there can be no such hosts here ("unshare: Operation not permitted"); empty if
// there can.
std::string WhyNoFakeHosts();

// Delay and loss of frames on the wire. Without a Wire, frames go by the kernel's bridge.
struct Wire {
  std::chrono::milliseconds delay{0};
  double loss = 0;  // In [0, 1).
};

class FakeHosts {
 public:
  // Host i has the addresses 10.77.0.(i + 1) and fd77::(i + 1) on eth0. With `wire` this process is
  // the switch. Throws std::runtime_error.
  explicit FakeHosts(int count);
  FakeHosts(int count, const Wire& wire);
  ~FakeHosts();  // Kills what runs on them.
  FakeHosts(const FakeHosts&) = delete;
  FakeHosts& operator=(const FakeHosts&) = delete;

  static std::string Address(int host) { return "10.77.0." + std::to_string(host + 1); }
  static std::string Address6(int host) { return "fd77::" + std::to_string(host + 1); }

  // Starts a rank of the binary on a host, as torchrun would.
  void Start(int host, const Strings& flags, const Variables& environment);
  // Waits for all ranks that Start() has started; returns their outcomes in that order. Kills those
  // that still run after `patience`, and says so in the outcome.
  std::vector<Outcome> Wait(std::chrono::seconds patience);

  int64_t LostFrames() const;  // On the wire.
  // Bytes that the host has sent, headers included, as the kernel counts them. Unknown with `wire`.
  int64_t BytesFrom(int host) const;

  void CutOff(int host);  // Pulls the plug.
  void Kill(int host);    // Every process of it.

 private:
  class Switch;
  struct Host {
    pid_t init = -1;    // The process 1 of the host, as seen from here.
    int commands = -1;  // Shell commands for it to run.
  };
  struct Rank {
    int host;
    std::string files;  // Path without suffix of the files that it leaves: .out, .err, .code.
  };

  void Make(int count, bool bridge);

  TempDir directory_;
  std::vector<Host> hosts_;
  std::vector<Rank> ranks_;
  std::unique_ptr<Switch> switch_;
};

}  // namespace fsdp::e2e

#endif  // FSDP_TRAIN_TESTS_E2E_FAKE_HOSTS_H_
