#include "trainer/comm/tcp/tcp_mesh.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "trainer/core/errors.h"
#include "trainer/core/units.h"

namespace fsdp {
namespace {

// Bytes that are written, then read, in turns: what is in the kernel stays in caches.
constexpr int64_t kMostAtOnce = 256 << 10;
constexpr char kGivenUp[] = "a message was given up in its middle";

CommError Lost(int peer, const std::string& why) {
  return CommError("lost the connection to rank " + std::to_string(peer) + ": " + why);
}

void Add(const UniqueFd& events, int fd, uint32_t what, void* whose) {
  epoll_event event{};
  event.events = what;
  event.data.ptr = whose;
  if (epoll_ctl(events.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
    throw CommError("epoll: " + Errno(errno));
  }
}

}  // namespace

TcpMesh::Message::~Message() {
  if (transfer_ != nullptr) mesh_->Drop(*transfer_);
}

int TcpMesh::Message::peer() const { return transfer_->peer->rank; }

bool TcpMesh::Message::Wait() { return mesh_->Wait(*transfer_); }

TcpMesh::TcpMesh(int rank, const std::vector<int>& peers, const std::string& address,
                 double timeout_s)
    : timeout_s_(timeout_s),
      door_(rank, peers, address, aborted_),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      events_(epoll_create1(EPOLL_CLOEXEC)) {
  if (!wake_.open() || !events_.open()) throw CommError("epoll: " + Errno(errno));
  Add(events_, wake_.get(), EPOLLIN, nullptr);
  for (const int peer : peers) peers_[peer].rank = peer;
}

TcpMesh::~TcpMesh() {
  for (const auto& [rank, peer] : peers_) {
    if (!peer.socket.open()) continue;
    shutdown(peer.socket.get(), SHUT_WR);
    // To close with something unread would reset the connection, and lose what was sent.
    std::array<char, 1 << 16> unread;
    for (int i = 0; i < 1 << 8; ++i) {
      if (recv(peer.socket.get(), unread.data(), unread.size(), MSG_DONTWAIT) <= 0) break;
    }
  }
}

void TcpMesh::Connect(int rank, const std::string& address) {
  Peer& peer = peers_.at(rank);
  peer.socket = door_.Connect(rank, address, timeout_s_, "rank " + std::to_string(rank));
  // Linux would count the time in which the peer does not read, too.
  const int off = 0;
  setsockopt(peer.socket.get(), IPPROTO_TCP, TCP_USER_TIMEOUT, &off, sizeof(off));
  Add(events_, peer.socket.get(), EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, &peer);
}

TcpMesh::Message TcpMesh::Start(bool sends, int rank, uint64_t tag, std::byte* data,
                                int64_t bytes) {
  Peer& peer = peers_.at(rank);
  return Message(this, std::unique_ptr<Transfer>(new Transfer{&peer, sends, {tag, bytes}, data}));
}

TcpMesh::Message TcpMesh::Send(int rank, uint64_t tag, const std::byte* data, int64_t bytes) {
  Message message = Start(true, rank, tag, const_cast<std::byte*>(data), bytes);
  Peer& peer = *message.transfer_->peer;
  peer.sends.push_back(message.transfer_.get());
  Write(peer);
  if (!message.transfer_->over() && !peer.send_error.empty()) throw Lost(rank, peer.send_error);
  return message;
}

TcpMesh::Message TcpMesh::Receive(int rank, uint64_t tag, std::byte* data, int64_t bytes) {
  Message message = Start(false, rank, tag, data, bytes);
  Transfer& transfer = *message.transfer_;
  Peer& peer = *transfer.peer;
  const auto held = std::find_if(peer.held.begin(), peer.held.end(),
                                 [&](const Transfer& held) { return held.head.tag == tag; });
  if (held == peer.held.end()) {
    if (!peer.receive_error.empty()) throw Lost(rank, peer.receive_error);
    peer.receives.push_back(&transfer);
    return message;
  }
  if (!SameSize(peer, held->head, transfer.head)) throw Lost(rank, peer.receive_error);
  if (held->done > 0) std::memcpy(data, held->data, static_cast<size_t>(held->done));
  transfer.done = held->done;
  if (peer.arriving == &*held) peer.arriving = &transfer;
  peer.held_bytes -= bytes;
  peer.held.erase(held);
  return message;
}

void TcpMesh::Abort() {
  aborted_ = true;
  eventfd_write(wake_.get(), 1);
}

// A connection whose message stopped in its middle has no more use.
void TcpMesh::Drop(Transfer& transfer) {
  if (transfer.over()) return;
  Peer& peer = *transfer.peer;
  std::erase(peer.sends, &transfer);
  std::erase(peer.receives, &transfer);
  if (peer.arriving == &transfer) {
    peer.arriving = nullptr;
    peer.receive_error = kGivenUp;
  }
  if (transfer.sends && transfer.done > -kHeadBytes && peer.send_error.empty()) {
    peer.send_error = kGivenUp;
    shutdown(peer.socket.get(), SHUT_WR);
  }
}

bool TcpMesh::Wait(Transfer& transfer) {
  const Peer& peer = *transfer.peer;
  const std::string& error = transfer.sends ? peer.send_error : peer.receive_error;
  while (!transfer.over()) {
    for (bool moved = true; moved && !transfer.over() && !aborted_;) {
      moved = false;
      for (auto& [rank, other] : peers_) {
        moved = Write(other) || moved;
        moved = Read(other) || moved;
      }
    }
    if (transfer.over()) break;
    if (aborted_) return false;
    if (!error.empty()) throw Lost(peer.rank, error);
    AwaitEvents();
  }
  return true;
}

// Events tell of changes alone, so what they say is remembered until a call finds otherwise.
void TcpMesh::AwaitEvents() {
  std::array<epoll_event, 64> events;
  const int count = epoll_wait(events_.get(), events.data(), events.size(), /*timeout=*/-1);
  for (int i = 0; i < count; ++i) {
    if (events[i].data.ptr == nullptr) continue;
    Peer& peer = *static_cast<Peer*>(events[i].data.ptr);
    const uint32_t what = events[i].events;
    peer.ended = peer.ended || (what & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0;
    peer.readable = peer.readable || peer.ended || (what & EPOLLIN) != 0;
    peer.writable = peer.writable || peer.ended || (what & EPOLLOUT) != 0;
  }
}

// Whether something was written; there may be more to write.
bool TcpMesh::Write(Peer& peer) {
  if (peer.sends.empty() || !peer.writable || !peer.send_error.empty()) return false;
  Transfer& transfer = *peer.sends.front();
  const int64_t head = std::max(-transfer.done, int64_t{0});  // Bytes of it that are left.
  const int64_t from = std::max(transfer.done, int64_t{0});
  const int64_t bytes = std::min(transfer.head.bytes - from, kMostAtOnce);
  std::array<iovec, 2> parts = {
      iovec{reinterpret_cast<std::byte*>(&transfer.head) + kHeadBytes - head,
            static_cast<size_t>(head)},
      iovec{transfer.data + from, static_cast<size_t>(bytes)}};
  msghdr message{};
  message.msg_iov = parts.data();
  message.msg_iovlen = parts.size();
  const ssize_t n = sendmsg(peer.socket.get(), &message, MSG_DONTWAIT | MSG_NOSIGNAL);
  if (n < 0 && errno == EINTR) return true;
  if (n < 0) {
    peer.writable = false;
    if (errno != EAGAIN) peer.send_error = Errno(errno);
    return false;
  }
  transfer.done += n;
  if (transfer.over()) peer.sends.pop_front();
  return true;
}

// Whether something was read; there may be more to read.
bool TcpMesh::Read(Peer& peer) {
  if (peer.arriving == nullptr && peer.receives.empty()) return false;
  if (!peer.readable || !peer.receive_error.empty()) return false;
  int64_t read = 0;
  if (peer.head_bytes < kHeadBytes) {
    std::byte* to = reinterpret_cast<std::byte*>(&peer.head) + peer.head_bytes;
    read = Take(peer, to, kHeadBytes - peer.head_bytes);
    peer.head_bytes += read;
    if (peer.head_bytes == kHeadBytes) BeginMessage(peer);
  }
  if (peer.arriving == nullptr) return read > 0;
  Transfer& transfer = *peer.arriving;
  if (!transfer.over()) {
    const int64_t left = transfer.head.bytes - transfer.done;
    const int64_t taken = Take(peer, transfer.data + transfer.done, std::min(left, kMostAtOnce));
    transfer.done += taken;
    read += taken;
  }
  if (transfer.over()) {
    peer.arriving = nullptr;
    peer.head_bytes = 0;
  }
  return read > 0;
}

// Reads what is there: at most `bytes`.
int64_t TcpMesh::Take(Peer& peer, std::byte* to, int64_t bytes) {
  ssize_t n;
  do {
    n = recv(peer.socket.get(), to, static_cast<size_t>(bytes), MSG_DONTWAIT);
  } while (n < 0 && errno == EINTR);
  if (n > 0) {
    peer.readable = n == bytes || peer.ended;
  } else if (n == 0) {
    peer.receive_error = "it closed the connection";
  } else if (errno == EAGAIN) {
    peer.readable = false;
  } else {
    peer.receive_error = Errno(errno);
  }
  return std::max<int64_t>(n, 0);
}

// The head of a message has come: finds where its bytes go.
void TcpMesh::BeginMessage(Peer& peer) {
  const Head& head = peer.head;
  const auto posted =
      std::find_if(peer.receives.begin(), peer.receives.end(),
                   [&](const Transfer* receive) { return receive->head.tag == head.tag; });
  if (posted != peer.receives.end()) {
    Transfer& receive = **posted;
    peer.receives.erase(posted);
    if (SameSize(peer, head, receive.head)) peer.arriving = &receive;
  } else if (head.bytes < 0 || head.bytes > kMostHeldBytes - peer.held_bytes) {
    peer.receive_error = "it sent " + Counted(head.bytes, "byte") + " that nobody waits for";
  } else {
    Transfer& held = peer.held.emplace_back(Transfer{&peer, false, head, nullptr});
    held.held = std::make_unique_for_overwrite<std::byte[]>(static_cast<size_t>(head.bytes));
    held.data = held.held.get();
    peer.held_bytes += head.bytes;
    peer.arriving = &held;
  }
  if (peer.arriving != nullptr) peer.arriving->done = 0;
}

bool TcpMesh::SameSize(Peer& peer, const Head& sent, const Head& due) {
  if (sent.bytes == due.bytes) return true;
  peer.receive_error =
      "it sent " + Counted(sent.bytes, "byte") + " where " + std::to_string(due.bytes) + " are due";
  return false;
}

}  // namespace fsdp
