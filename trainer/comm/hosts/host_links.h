// A connection between the leaders of any two hosts, for the small messages around a collective:
// what a host is about to do, that it fails, who is late. Tensors go by a TcpMesh.
// Tests: tests/trainer/comm/host_links_test.cc
#ifndef FSDP_TRAIN_TRAINER_COMM_HOSTS_HOST_LINKS_H_
#define FSDP_TRAIN_TRAINER_COMM_HOSTS_HOST_LINKS_H_

#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "trainer/comm/store/socket.h"

namespace fsdp {

class HostLinks {
 public:
  static constexpr int kMaxBytes = 4096;  // The longest message.

  // One to each host but the own, `host`, whose entry holds no socket. A rank that leads no host
  // has no sockets, and may still wait in Poll().
  HostLinks(int host, std::vector<Socket> sockets);
  ~HostLinks();  // Messages that were sent still arrive.
  HostLinks(const HostLinks&) = delete;
  HostLinks& operator=(const HostLinks&) = delete;

  // Any thread. Never blocks: a link whose peer does not read is lost.
  void Send(int host, uint32_t type, const std::string& message);
  void SendToAll(uint32_t type, const std::string& message);
  void Wake();  // Ends Poll().

  // Waits up to `timeout_ms` and hands over what has come: message(host, type, text), and
  // lost(host) once for a link that has ended. One thread.
  using OnMessage = std::function<void(int host, uint32_t type, const std::string& message)>;
  using OnLost = std::function<void(int host)>;
  void Poll(int timeout_ms, const OnMessage& message, const OnLost& lost);

 private:
  struct Link {
    Socket socket;
    std::string received;
    bool lost = false;    // Poll()'s.
    bool broken = false;  // Guarded by mutex_: nothing is sent any more.
  };

  UniqueFd wake_;
  std::mutex mutex_;  // Guards sending.
  std::vector<Link> links_;
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_COMM_HOSTS_HOST_LINKS_H_
