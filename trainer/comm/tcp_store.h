// The store of ranks that are processes, on one host or several: rank 0 serves it over TCP.
#ifndef FSDP_TRAIN_TRAINER_COMM_TCP_STORE_H_
#define FSDP_TRAIN_TRAINER_COMM_TCP_STORE_H_

#include <memory>
#include <string>

#include "trainer/comm/store.h"

namespace fsdp {

// Holds the table, in a thread of its own, and knows the members by their connections: one that
// closes without having left fails the job for all others. What is not a well-formed message closes
// its connection and nothing else, so strangers on the port do no harm. No secrets, no encryption.
class TcpStoreServer {
 public:
  // Listens on the loopback device only where `host` names it, otherwise on all addresses. Port 0
  // is any free one. Ranks that have not joined within `join_timeout_s` fail the job for those that
  // have. Throws CommError where the port cannot be had.
  TcpStoreServer(const std::string& host, int port, int size, double join_timeout_s);
  ~TcpStoreServer();  // Waits until all members have left, at most 10 s.
  TcpStoreServer(const TcpStoreServer&) = delete;
  TcpStoreServer& operator=(const TcpStoreServer&) = delete;

  int port() const;

 private:
  class Loop;
  std::unique_ptr<Loop> loop_;
};

// Connects and blocks until all `size` ranks have. `host` is a name or an IPv4 or IPv6 address.
// Throws CommError: the server cannot be reached, or who has not joined within `timeout_s`.
std::unique_ptr<Store> ConnectTcpStore(const std::string& host, int port, int rank, int size,
                                       double timeout_s);

// The same, rank 0 being the server too. Its store should go last: end with a Barrier.
std::unique_ptr<Store> JoinTcpStore(const std::string& host, int port, int rank, int size,
                                    double timeout_s);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_COMM_TCP_STORE_H_
