// The store of ranks that are processes, on one host or several: rank 0 serves it over TCP.
// Tests: tests/trainer/comm/store_test.cc
#ifndef FSDP_TRAIN_TRAINER_COMM_STORE_TCP_STORE_H_
#define FSDP_TRAIN_TRAINER_COMM_STORE_TCP_STORE_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "trainer/comm/store/store.h"

namespace fsdp {

// Who may join.
struct StoreAccess {
  // Any bytes, the same on all ranks. Both ends prove that they know them (wire.h); they are
  // never sent. Later messages are neither encrypted nor signed: the secret keeps out those who can
  // reach the port, not those who can change the traffic.
  std::string secret;
  // How often the job has been started again. A rank and a store of different generations do not
  // join: the older of the two fails, the newer goes on waiting for its like.
  int64_t generation = 0;
};

// The most that the server holds. Nothing of it grows beyond these limits.
struct StoreLimits {
  // Connections that have not proven themselves: kUnproven and one for each rank, but no more than
  // half of the files that `ulimit -n` leaves this process beside kOwnFiles and one for each rank.
  // Each stays for at most prove_within and holds less than kUnprovenBytes. A new one takes the
  // place of the oldest.
  static size_t Unproven(int size);
  static constexpr size_t kUnproven = 64;
  static constexpr size_t kOwnFiles = 32;  // A rank of a small model takes 11.
  static constexpr size_t kUnprovenBytes = 1 << 10;
  // For a member: one request of kRequestBytes (wire.h), kFetches unanswered fetches with keys of
  // kFetchBytes in all, and unread answers of kUnreadBytes and one more. A member with more of the
  // latter is not read and not answered until it reads; the others do not notice.
  static constexpr size_t kFetches = 1 << 10;
  static constexpr size_t kFetchBytes = 4 << 20;
  static constexpr size_t kUnreadBytes = 64 << 10;
  // Keys and values, with 128 bytes for each pair: what goes beyond is refused.
  size_t table_bytes = size_t{1} << 30;
  std::chrono::milliseconds prove_within{5000};
};

// For a rank that is not to join after all: how long it tries to tell those that are.
inline constexpr std::chrono::seconds kTellWithin{2};

// The answer to whether a rank is to go on joining.
struct GiveUp {
  std::string why;          // Empty: it is. Otherwise what the others hear.
  std::optional<int> gone;  // A rank that has left, and comes no more.
};
using AskGiveUp = std::function<GiveUp()>;

// For people, every so often while ranks are missing: rank 0 is told which have not joined, by a
// thread of the store, and another rank that the store of rank 0 is not there, by its own.
// `refused`, in words: who came to rank 0 without the secret; empty: nobody.
struct SayWaiting {
  std::function<void(const std::vector<int>& ranks, const std::string& refused)>
      say;  // May be null.
  std::chrono::milliseconds every{10000};
};

// Holds the table, in a thread of its own, and knows the members by their connections: one that
// closes without having left fails the job for all others. A stranger that does not know the secret
// or sends a malformed message loses its connection without an answer, and nothing else happens. A
// malformed message from a member is a failure.
class TcpStoreServer {
 public:
  // Listens on the loopback device only where `host` names it, otherwise on all addresses. Port 0
  // is any free one. Ranks that have not joined when `join_timeout_s` is over, or the patience of a
  // rank that has joined, fail the job for those that have. Throws CommError where the port cannot
  // be had.
  TcpStoreServer(const std::string& host, int port, int size, double join_timeout_s,
                 const StoreAccess& access = {}, const StoreLimits& limits = {},
                 const SayWaiting& waiting = {});
  // Waits until all members have left, at most 10 s. Where the job has failed before all had
  // joined, waits for those that have not, to tell them, at most kTellWithin.
  ~TcpStoreServer();
  TcpStoreServer(const TcpStoreServer&) = delete;
  TcpStoreServer& operator=(const TcpStoreServer&) = delete;

  int port() const;
  void Gone(int rank);  // `rank` cannot come any more: nobody waits to tell it.

 private:
  class Loop;
  std::unique_ptr<Loop> loop_;
};

// Connects and blocks until all `size` ranks have. `host` is a name or an IPv4 or IPv6 address,
// without brackets. Throws CommError: the server cannot be reached, it knows another secret, this
// rank's generation is over, or who has not joined within `timeout_s`.
// `ask` (may be null; called by this thread alone) may give a reason to give up. The call then
// passes the reason to every rank that joins within kTellWithin, and all of them throw it:
// EarlyStop where the reason is one, otherwise CommError.
std::unique_ptr<Store> ConnectTcpStore(const std::string& host, int port, int rank, int size,
                                       double timeout_s, const StoreAccess& access = {},
                                       const AskGiveUp& ask = {}, const SayWaiting& waiting = {});

// ConnectTcpStore() with rank 0 as the server, too. Its store should go last: end with a Barrier.
std::unique_ptr<Store> JoinTcpStore(const std::string& host, int port, int rank, int size,
                                    double timeout_s, const StoreAccess& access = {},
                                    const AskGiveUp& ask = {}, const SayWaiting& waiting = {});

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_COMM_STORE_TCP_STORE_H_
