#include "trainer/comm/hosts/host_links.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "trainer/core/errors.h"

namespace fsdp {
namespace {

struct FrameHead {
  uint32_t type;
  uint32_t bytes;
};

UniqueFd MakeEvent() {
  UniqueFd fd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (fd.get() < 0) throw DeviceError(std::string("eventfd: ") + std::strerror(errno));
  return fd;
}

}  // namespace

HostLinks::HostLinks(int host, std::vector<Socket> sockets) : wake_(MakeEvent()) {
  for (Socket& socket : sockets) {
    const bool own = static_cast<int>(links_.size()) == host;
    links_.emplace_back();
    links_.back().socket = std::move(socket);
    links_.back().lost = links_.back().broken = own;
  }
}

HostLinks::~HostLinks() {
  for (const Link& link : links_) {
    if (link.socket.get() < 0) continue;
    shutdown(link.socket.get(), SHUT_WR);
    // To close with something unread would reset the connection.
    char unread[4096];
    while (recv(link.socket.get(), unread, sizeof(unread), MSG_DONTWAIT) > 0) {
    }
  }
}

void HostLinks::Send(int host, uint32_t type, const std::string& message) {
  const std::string text = message.substr(0, kMaxBytes);
  const FrameHead head{type, static_cast<uint32_t>(text.size())};
  std::string frame(reinterpret_cast<const char*>(&head), sizeof(head));
  frame += text;
  const std::lock_guard lock(mutex_);
  Link& link = links_[host];
  if (link.broken) return;
  // Whole or not at all: there is never more than a few frames in a link.
  const ssize_t sent =
      send(link.socket.get(), frame.data(), frame.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  link.broken = sent != static_cast<ssize_t>(frame.size());
}

void HostLinks::SendToAll(uint32_t type, const std::string& message) {
  for (size_t host = 0; host < links_.size(); ++host) {
    Send(static_cast<int>(host), type, message);
  }
}

void HostLinks::Wake() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(wake_.get(), &one, sizeof(one));
}

void HostLinks::Poll(int timeout_ms, const OnMessage& message, const OnLost& lost) {
  std::vector<pollfd> waits = {{wake_.get(), POLLIN, 0}};
  std::vector<int> hosts = {-1};
  for (size_t host = 0; host < links_.size(); ++host) {
    if (links_[host].lost) continue;
    waits.push_back({links_[host].socket.get(), POLLIN, 0});
    hosts.push_back(static_cast<int>(host));
  }
  if (poll(waits.data(), waits.size(), timeout_ms) <= 0) return;
  if (waits[0].revents != 0) {
    uint64_t count = 0;
    [[maybe_unused]] const ssize_t n = read(wake_.get(), &count, sizeof(count));
  }
  for (size_t i = 1; i < waits.size(); ++i) {
    if (waits[i].revents == 0) continue;
    Link& link = links_[hosts[i]];
    char buffer[1 << 14];
    const ssize_t n = recv(link.socket.get(), buffer, sizeof(buffer), MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) continue;
    if (n > 0) link.received.append(buffer, static_cast<size_t>(n));
    bool bad = n <= 0;
    size_t done = 0;
    while (link.received.size() - done >= sizeof(FrameHead)) {
      FrameHead head;
      std::memcpy(&head, link.received.data() + done, sizeof(head));
      bad = bad || head.bytes > kMaxBytes;
      if (head.bytes > kMaxBytes || link.received.size() - done < sizeof(head) + head.bytes) break;
      message(hosts[i], head.type, link.received.substr(done + sizeof(head), head.bytes));
      done += sizeof(head) + head.bytes;
    }
    link.received.erase(0, done);
    if (bad) {
      link.lost = true;
      lost(hosts[i]);
    }
  }
}

}  // namespace fsdp
