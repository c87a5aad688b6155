// How two ranks, or two hosts' leaders, get a connection: the higher number calls, the lower one
// opens. Each says a secret that it can only have from the lower one's AddressFor().
// Tests: tests/trainer/comm/tcp_mesh_test.cc
#ifndef FSDP_TRAIN_TRAINER_COMM_TCP_TCP_DOOR_H_
#define FSDP_TRAIN_TRAINER_COMM_TCP_TCP_DOOR_H_

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <list>
#include <map>
#include <string>
#include <vector>

#include "trainer/comm/store/socket.h"

namespace fsdp {

// One thread at a time. Setting `aborted` ends Connect() within 0.1 s.
class TcpDoor {
 public:
  using Clock = std::chrono::steady_clock;

  // Listens at `address`, numeric. Throws CommError.
  TcpDoor(int rank, const std::vector<int>& peers, const std::string& address,
          const std::atomic<bool>& aborted);

  std::string AddressFor(int peer) const;  // Before Connect(peer).

  // Blocks until `peer`, which `name` is a name of, is connected by its AddressFor(rank). Other
  // peers that call in the meantime wait for their turn; strangers are sent away: at once where
  // they say something else, otherwise after 2 s. Throws CommError: refused, aborted, or
  // `timeout_s` is over.
  Socket Connect(int peer, const std::string& address, double timeout_s, const std::string& name);

 private:
  static constexpr size_t kSecretBytes = 32;
  using Secret = std::array<char, kSecretBytes>;
  struct Secrets {
    Secret call, answer;
  };
  struct Hello {  // A caller's first words. The answer is a Secret.
    std::array<char, 8> magic;
    int rank;
    Secret secret;
  };
  struct Guest {  // Has not said who it is.
    Socket socket;
    Clock::time_point until;
    Hello hello;
    size_t heard = 0;  // Bytes of hello.
  };

  Socket Await(int peer, Clock::time_point until);
  Socket Call(const std::string& address, Clock::time_point until);
  void OpenOnce();
  bool Stays(Guest& guest);
  void Check(Clock::time_point until, const std::string& missing) const;

  const int rank_;
  const std::string address_;
  const std::atomic<bool>& aborted_;
  Socket listening_;
  const int port_;
  std::map<int, Secrets> secrets_;  // By peer that is not connected.
  std::list<Guest> guests_;
  std::map<int, Socket> arrived_;  // Not asked for yet.
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_COMM_TCP_TCP_DOOR_H_
