// Point-to-point messages between processes of different hosts, by Gloo over TCP. Gloo is loaded
// when the first mesh is opened, so a run on one host needs none of its libraries.
// Tests: tests/trainer/comm/hosts_communicator_test.cc
#ifndef FSDP_TRAIN_TRAINER_COMM_GLOO_GLOO_MESH_H_
#define FSDP_TRAIN_TRAINER_COMM_GLOO_GLOO_MESH_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "trainer/comm/gloo/gloo_api.h"

namespace fsdp {

// Where libfsdp_gloo.so is looked for: $FSDP_TRAIN_GLOO (the file) alone where that is set;
// otherwise beside the binary, in ../lib from there, and where the build leaves it. Loads it once.
// Throws CommError naming what is missing (libfsdp_gloo.so itself, or a library that it needs) and
// the cure.
const FsdpGlooApi& GlooLibrary();

// The connections of one rank. One thread at a time opens, connects, sends and receives; any thread
// aborts.
class GlooMesh {
 public:
  // A send or receive under way. Its memory is in use until this goes, which does not block for
  // more than a read or write of the kernel's.
  class Message {
   public:
    Message(Message&& other) noexcept
        : api_(other.api_), message_(other.message_), peer_(other.peer_) {
      other.message_ = nullptr;
    }
    Message& operator=(Message&&) = delete;
    ~Message();
    int peer() const { return peer_; }

    // Blocks until all is received, or in the kernel's hands. False: the mesh was aborted. Throws
    // CommError: the connection is lost.
    bool Wait();

   private:
    friend class GlooMesh;
    Message(const FsdpGlooApi* api, FsdpGlooMessage* message, int peer);

    const FsdpGlooApi* api_;
    FsdpGlooMessage* message_;
    int peer_;
  };

  // Listens at `address` (numeric, IPv4 or IPv6, one of this host's), once for each of `peers`:
  // ranks in [0, size), not `rank`. `timeout_s` is for each Connect(). Throws CommError.
  // From here on the process ignores SIGPIPE, unless it handles it.
  GlooMesh(int rank, int size, const std::vector<int>& peers, const std::string& address,
           double timeout_s);
  ~GlooMesh();  // After its messages. Closes the connections; peers receive what was sent.
  GlooMesh(const GlooMesh&) = delete;
  GlooMesh& operator=(const GlooMesh&) = delete;

  std::string AddressFor(int peer) const;  // `peer` gives it to its Connect(). Opaque, printable.
  void Connect(int peer, const std::string& address);  // Blocks. Throws CommError.

  // A send and a receive of one tag and size meet. Throw CommError: the connection is lost.
  Message Send(int peer, uint64_t tag, const std::byte* data, int64_t bytes);
  Message Receive(int peer, uint64_t tag, std::byte* data, int64_t bytes);

  void Abort();  // Ends Connect() and all waits, now and later.

 private:
  const FsdpGlooApi& api_;
  FsdpGlooMesh* mesh_;
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_COMM_GLOO_GLOO_MESH_H_
