#include "trainer/comm/hosts/host_links.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>

#include "trainer/core/errors.h"
#include "trainer/core/units.h"

namespace fsdp {
namespace {

using Clock = std::chrono::steady_clock;

struct FrameHead {
  uint32_t type;
  uint32_t bytes;
};

// A leader's first words on a new link.
struct Hello {
  char magic[8];
  char secret[48];
  int32_t host;
  int32_t unused;
};
constexpr char kMagic[8] = {'f', 's', 'd', 'p', 'h', 'o', 's', 't'};

Hello MakeHello(const std::string& secret, int host) {
  Hello hello{};
  std::memcpy(hello.magic, kMagic, sizeof(kMagic));
  std::strncpy(hello.secret, secret.c_str(), sizeof(hello.secret) - 1);
  hello.host = host;
  return hello;
}

// The whole of it, within a second: strangers must not hold up those who belong here.
bool ReadHello(int fd, Hello* hello) {
  const timeval second{1, 0};
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &second, sizeof(second));
  return recv(fd, hello, sizeof(*hello), MSG_WAITALL) == static_cast<ssize_t>(sizeof(*hello));
}

UniqueFd MakeEvent() {
  UniqueFd fd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (fd.get() < 0) throw DeviceError(std::string("eventfd: ") + std::strerror(errno));
  return fd;
}

}  // namespace

HostLinks::HostLinks() : wake_(MakeEvent()) {}

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

std::vector<Socket> ConnectHosts(Store& store, int host, const Socket& listening,
                                 const std::vector<HostDoor>& doors, const std::string& secret,
                                 double timeout_s) {
  const auto deadline = Clock::now() + std::chrono::duration<double>(timeout_s);
  const auto check = [&](const std::string& missing) {
    const std::string failed = store.FailureReason();
    if (!failed.empty()) throw CommError(failed);
    if (Clock::now() < deadline) return;
    throw CommError("no connection between hosts: " + missing + " after " + Shortest(timeout_s) +
                    " s");
  };
  std::vector<Socket> sockets(doors.size());
  for (int other = 0; other < host; ++other) {
    const HostDoor& door = doors[other];
    const std::string where = door.address + " port " + std::to_string(door.port);
    for (;;) {
      try {
        sockets[other] = Connect(door.address, door.port, Clock::now() + std::chrono::seconds(1));
        break;
      } catch (const CommError&) {
        check("host " + std::to_string(host) + " cannot reach " + where);
      }
    }
    const Hello hello = MakeHello(secret, host);
    if (send(sockets[other].get(), &hello, sizeof(hello), MSG_NOSIGNAL) != sizeof(hello)) {
      throw CommError("no connection between hosts: " + where + " hung up");
    }
  }
  size_t missing = doors.size() - 1 - static_cast<size_t>(host);
  while (missing > 0) {
    pollfd waits{listening.get(), POLLIN, 0};
    if (poll(&waits, 1, 100) <= 0) {
      check(Counted(static_cast<int64_t>(missing), "host") + (missing == 1 ? " has" : " have") +
            " not come to " + doors[host].address + " port " + std::to_string(doors[host].port));
      continue;
    }
    Socket socket(accept4(listening.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (socket.get() < 0) continue;
    Hello hello{};
    if (!ReadHello(socket.get(), &hello)) continue;
    const Hello want = MakeHello(secret, hello.host);
    if (std::memcmp(&hello, &want, sizeof(want)) != 0 || hello.host <= host ||
        hello.host >= static_cast<int>(doors.size()) || sockets[hello.host].get() >= 0) {
      continue;
    }
    ConfigureConnection(socket.get());
    sockets[hello.host] = std::move(socket);
    --missing;
  }
  return sockets;
}

}  // namespace fsdp
