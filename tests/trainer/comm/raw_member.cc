#include "tests/trainer/comm/raw_member.h"

#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <chrono>

#include "trainer/comm/store/wire.h"

namespace fsdp::testing {
namespace {

using wire::Type;

bool Readable(int fd, int for_ms) {
  pollfd waits{fd, POLLIN, 0};
  return poll(&waits, 1, for_ms) > 0;
}

}  // namespace

RawMember::RawMember(int port, std::string_view secret, const std::string& host)
    : socket_(Connect(host, port, std::chrono::steady_clock::now() + std::chrono::seconds(60))),
      key_(secret) {}

bool RawMember::Hello() {
  client_nonce_ = NewNonce();
  Send(wire::Writer(Type::kHello, 1).String(wire::kMagic).String(client_nonce_).Frame());
  const auto challenge = Receive();
  if (!challenge) return false;
  wire::Reader in(*challenge);
  server_nonce_ = in.String(kNonceBytes);
  return in.type() == Type::kChallenge;
}

std::string RawMember::Proof(const JoinClaim& claim) const {
  wire::Writer proof(Type::kProof, 1);
  for (const int64_t part :
       {claim.rank, claim.size, claim.generation, claim.timeout_us, claim.left_us}) {
    proof.Int(part);
  }
  proof.String(key_.ClientTag(client_nonce_, server_nonce_, claim));
  return std::move(proof).Frame();
}

bool RawMember::Prove(const JoinClaim& claim) {
  if (!Hello()) return false;
  Send(Proof(claim));
  const auto proven = Receive();
  return proven && wire::Reader(*proven).type() == Type::kProven;
}

bool RawMember::Send(std::string_view bytes, bool wait) {
  while (!bytes.empty()) {
    const ssize_t n =
        send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | (wait ? 0 : MSG_DONTWAIT));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(n));
  }
  return true;
}

std::optional<std::string> RawMember::Receive() {
  char buffer[4096];
  for (;;) {
    if (auto body = wire::TakeFrame(received_, wire::kMaxReply)) return body;
    if (!Readable(socket_.get(), 60000)) return std::nullopt;
    const ssize_t n = recv(socket_.get(), buffer, sizeof(buffer), 0);
    if (n <= 0) return std::nullopt;
    received_.append(buffer, static_cast<size_t>(n));
  }
}

bool RawMember::ReadToEnd() {
  char buffer[4096];
  while (Readable(socket_.get(), 60000)) {
    if (recv(socket_.get(), buffer, sizeof(buffer), 0) <= 0) return true;
  }
  return false;
}

bool RawMember::Closed() {
  char buffer[4096];
  for (;;) {
    const ssize_t n = recv(socket_.get(), buffer, sizeof(buffer), MSG_DONTWAIT);
    if (n > 0) continue;
    return n == 0 || (errno != EAGAIN && errno != EINTR);
  }
}

void RawMember::EndWriting() { shutdown(socket_.get(), SHUT_WR); }

void RawMember::Reset() {
  const linger now{1, 0};
  setsockopt(socket_.get(), SOL_SOCKET, SO_LINGER, &now, sizeof(now));
  socket_ = Socket();
}

}  // namespace fsdp::testing
