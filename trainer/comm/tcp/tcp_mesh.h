// Point-to-point messages between processes of different hosts, over a TCP connection to each.
// Tests: tests/trainer/comm/tcp_mesh_test.cc
#ifndef FSDP_TRAIN_TRAINER_COMM_TCP_TCP_MESH_H_
#define FSDP_TRAIN_TRAINER_COMM_TCP_TCP_MESH_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "trainer/comm/tcp/tcp_door.h"

namespace fsdp {

// The connections of one rank. One thread at a time opens, connects, sends, receives and waits; any
// thread aborts. Bytes of all messages move in these calls alone. A thread of its own would take
// cores from the computation, and cost each message two switches. The kernel's buffers move on
// meanwhile; their sizes are the kernel's choice.
//   Match    A receive gets the first message of its peer and tag that no other receive has got.
//   Order    Messages to a peer travel in the order of their sends, whether or not a receive is
//            posted. A receiver that has posted nothing for this peer leaves them with the sender
//            and the kernel. A receiver that waits for a later one holds those before it in
//            memory, up to kMostHeldBytes of a peer. So tags may be received in any order, and a
//            send is through when its receive, or a later one, is waited for.
//   Death    The next call that needs a connection notices that its peer has closed or reset it.
//            Messages that had reached the kernel by then can still be received. A peer that
//            vanishes without a word is noticed after a minute, or 15 minutes while something is
//            on its way to it. A peer that does not read is never given up.
class TcpMesh {
  struct Peer;
  struct Head {  // Before a message's bytes. All ranks are of one build.
    uint64_t tag;
    int64_t bytes;
  };
  static constexpr int64_t kHeadBytes = sizeof(Head);
  struct Transfer {
    Peer* peer;
    bool sends;
    Head head;
    std::byte* data;
    int64_t done = -kHeadBytes;                   // Bytes; the head's are below zero.
    std::unique_ptr<std::byte[]> held = nullptr;  // Its own memory, until a receive is posted.

    bool over() const { return done == head.bytes; }
  };

 public:
  static constexpr int64_t kMostHeldBytes = int64_t{1} << 30;

  // A send or receive under way. Its memory is in use until this goes, which does not block. Where
  // it goes with some of its bytes under way, the connection is lost.
  class Message {
   public:
    Message(Message&& other) = default;
    Message& operator=(Message&&) = delete;
    ~Message();
    int peer() const;

    // Blocks until all is received, or in the kernel's hands. False: the mesh was aborted. Throws
    // CommError: the connection is lost, or the peer's message has another size.
    bool Wait();

   private:
    friend class TcpMesh;
    Message(TcpMesh* mesh, std::unique_ptr<Transfer> transfer)
        : mesh_(mesh), transfer_(std::move(transfer)) {}

    TcpMesh* mesh_;
    std::unique_ptr<Transfer> transfer_;
  };

  // Listens at `address` (numeric, IPv4 or IPv6, one of this host's) until all of `peers` are
  // connected: ranks other than `rank`. `timeout_s` is for each Connect(). Throws CommError.
  TcpMesh(int rank, const std::vector<int>& peers, const std::string& address, double timeout_s);
  ~TcpMesh();  // After its messages. Does not block; peers receive what was sent.
  TcpMesh(const TcpMesh&) = delete;
  TcpMesh& operator=(const TcpMesh&) = delete;

  // `peer` gives it to its Connect(), once. Before Connect(peer). Printable, without blanks, and
  // secret: who knows it can take the peer's place.
  std::string AddressFor(int peer) const { return door_.AddressFor(peer); }
  // Blocks until `peer`, too, is in Connect(), for this rank or one that is higher than itself.
  // Throws CommError.
  void Connect(int peer, const std::string& address);

  // Do not block. Throw CommError as Wait().
  Message Send(int peer, uint64_t tag, const std::byte* data, int64_t bytes);
  Message Receive(int peer, uint64_t tag, std::byte* data, int64_t bytes);

  void Abort();  // Ends Connect() within 0.1 s, and all waits, now and later.

 private:
  struct Peer {
    int rank;
    Socket socket;
    bool readable = true, writable = true;  // As far as is known.
    bool ended = false;                     // It sends no more than what is in the kernel.
    std::deque<Transfer*> sends;            // Not over.
    std::deque<Transfer*> receives;         // Whose heads have not come.
    std::list<Transfer> held;
    int64_t held_bytes = 0;
    Head head;               // That has come, or is coming.
    int64_t head_bytes = 0;  // How much of it has come.
    Transfer* arriving = nullptr;
    std::string send_error, receive_error;  // Empty: none.
  };

  bool Wait(Transfer& transfer);
  void Drop(Transfer& transfer);
  bool Write(Peer& peer);
  bool Read(Peer& peer);
  int64_t Take(Peer& peer, std::byte* to, int64_t bytes);
  void BeginMessage(Peer& peer);
  static bool SameSize(Peer& peer, const Head& sent, const Head& due);
  void AwaitEvents();
  Message Start(bool sends, int peer, uint64_t tag, std::byte* data, int64_t bytes);

  const double timeout_s_;
  std::atomic<bool> aborted_{false};
  TcpDoor door_;
  UniqueFd wake_, events_;
  std::map<int, Peer> peers_;
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_COMM_TCP_TCP_MESH_H_
