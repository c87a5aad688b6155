// The client's end of a connection to the TCP store, byte by byte: for tests that send what no
// TcpStore would.
#ifndef FSDP_TRAIN_TESTS_TRAINER_COMM_RAW_MEMBER_H_
#define FSDP_TRAIN_TESTS_TRAINER_COMM_RAW_MEMBER_H_

#include <optional>
#include <string>
#include <string_view>

#include "trainer/comm/store/socket.h"
#include "trainer/comm/store/wire.h"

namespace fsdp::testing {

class RawMember {
 public:
  explicit RawMember(int port, std::string_view secret = "", const std::string& host = "localhost");

  // Each part of the way in; Proof() says the tag's message, so that a test can change it.
  bool Hello();  // False where the store has closed.
  std::string Proof(const JoinClaim& claim) const;
  // All of it. False where the store has closed.
  bool Prove(const JoinClaim& claim);

  // Without `wait`, drops bytes that the socket does not take now.
  bool Send(std::string_view bytes, bool wait = true);
  // The next message's body; nullopt at the end of the connection.
  std::optional<std::string> Receive();
  bool ReadToEnd();  // False where that takes more than a minute.
  bool Closed();     // True: nothing more will come. Never waits; drops what came.
  void EndWriting();
  void Reset();  // Closes so that nothing of the connection stays, not even in the kernel.
  int fd() const { return socket_.get(); }

 private:
  Socket socket_;
  const StoreKey key_;
  std::string client_nonce_, server_nonce_, received_;
};

}  // namespace fsdp::testing

#endif  // FSDP_TRAIN_TESTS_TRAINER_COMM_RAW_MEMBER_H_
