#include "trainer/comm/store/socket.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <system_error>
#include <thread>
#include <vector>

#include "trainer/core/errors.h"

namespace fsdp {
namespace {

using Clock = std::chrono::steady_clock;

struct Addresses {
  std::unique_ptr<addrinfo, void (*)(addrinfo*)> list{nullptr, freeaddrinfo};
  std::string error;  // Empty: there is at least one.
};

Addresses Resolve(const char* host, int port, int flags) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* list = nullptr;
  const int result = getaddrinfo(host, std::to_string(port).c_str(), &hints, &list);
  Addresses addresses;
  if (result != 0) {
    addresses.error = gai_strerror(result);
  } else {
    addresses.list.reset(list);
  }
  return addresses;
}

bool IsLoopback(const sockaddr* address) {
  if (address->sa_family == AF_INET) {
    const auto* in = reinterpret_cast<const sockaddr_in*>(address);
    return ntohl(in->sin_addr.s_addr) >> 24 == 127;
  }
  const auto* in6 = reinterpret_cast<const sockaddr_in6*>(address);
  return IN6_IS_ADDR_LOOPBACK(&in6->sin6_addr);
}

bool AllLoopback(const Addresses& addresses) {
  bool loopback = addresses.list != nullptr;
  for (const addrinfo* a = addresses.list.get(); a != nullptr; a = a->ai_next) {
    loopback = loopback && IsLoopback(a->ai_addr);
  }
  return loopback;
}

// A socket bound to one address, or an error number.
std::pair<Socket, int> Bind(const addrinfo& address) {
  Socket socket(::socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (socket.get() < 0) return {Socket(), errno};
  const int on = 1, off = 0;
  setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (address.ai_family == AF_INET6) {
    setsockopt(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
  }
  if (bind(socket.get(), address.ai_addr, address.ai_addrlen) != 0) return {Socket(), errno};
  if (listen(socket.get(), SOMAXCONN) != 0) return {Socket(), errno};
  return {std::move(socket), 0};
}

// With nobody listening on a port of the ephemeral range, the kernel may pick that very port for
// our end: TCP's simultaneous open then connects the socket to itself.
bool IsSelf(int fd) {
  sockaddr_storage mine{}, theirs{};
  socklen_t mine_size = sizeof(mine), theirs_size = sizeof(theirs);
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&mine), &mine_size) != 0) return false;
  if (getpeername(fd, reinterpret_cast<sockaddr*>(&theirs), &theirs_size) != 0) return false;
  return mine_size == theirs_size && std::memcmp(&mine, &theirs, mine_size) == 0;
}

// One attempt at one address, or an error number.
std::pair<Socket, int> Try(const addrinfo& address, const Deadline& deadline) {
  Socket socket(::socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (socket.get() < 0) return {Socket(), errno};
  if (connect(socket.get(), address.ai_addr, address.ai_addrlen) != 0) {
    if (errno != EINPROGRESS) return {Socket(), errno};
    const auto next = Clock::now() + std::chrono::seconds(5);  // Another address gets its chance.
    pollfd waits{socket.get(), POLLOUT, 0};
    for (constexpr int kTick_ms = 100; poll(&waits, 1, kTick_ms) <= 0;) {
      if (Clock::now() >= std::min(next, deadline())) return {Socket(), ETIMEDOUT};
    }
    int error = 0;
    socklen_t size = sizeof(error);
    getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &size);
    if (error != 0) return {Socket(), error};
  }
  if (IsSelf(socket.get())) return {Socket(), ECONNREFUSED};
  fcntl(socket.get(), F_SETFL, fcntl(socket.get(), F_GETFL) & ~O_NONBLOCK);
  return {std::move(socket), 0};
}

}  // namespace

std::string Errno(int error) { return std::generic_category().message(error); }

std::string HostPort(const std::string& host, int port) {
  const bool ipv6 = host.find(':') != std::string::npos;
  return (ipv6 ? "[" + host + "]" : host) + ":" + std::to_string(port);
}

bool IsLoopbackHost(const std::string& host) { return AllLoopback(Resolve(host.c_str(), 0, 0)); }

Socket Listen(const std::string& host, int port) {
  const Addresses named = Resolve(host.c_str(), port, 0);
  const bool loopback = AllLoopback(named);
  const Addresses any = Resolve(nullptr, port, AI_PASSIVE);
  const addrinfo* first = loopback ? named.list.get() : any.list.get();
  int error = EADDRNOTAVAIL;
  // An IPv6 socket on every address takes IPv4 too, so it comes first where there is IPv6 at all.
  for (const int family : {AF_INET6, AF_INET}) {
    for (const addrinfo* a = first; a != nullptr; a = a->ai_next) {
      if (a->ai_family != family) continue;
      auto [socket, failed] = Bind(*a);
      if (failed == 0) return std::move(socket);
      error = failed;
    }
  }
  throw CommError("the store cannot listen on " + HostPort(host, port) + ": " + Errno(error));
}

Socket ListenAt(const std::string& address) {
  const Addresses numeric = Resolve(address.c_str(), 0, AI_NUMERICHOST);
  auto [socket, error] = numeric.list ? Bind(*numeric.list) : std::pair(Socket(), EINVAL);
  if (error != 0) throw CommError("cannot listen at " + address + ": " + Errno(error));
  return std::move(socket);
}

int PortOf(const Socket& listening) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  if (getsockname(listening.get(), reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    throw CommError("getsockname: " + Errno(errno));
  }
  return ntohs(address.ss_family == AF_INET6
                   ? reinterpret_cast<const sockaddr_in6&>(address).sin6_port
                   : reinterpret_cast<const sockaddr_in&>(address).sin_port);
}

Socket Connect(const std::string& host, int port, Clock::time_point deadline) {
  return Connect(host, port, [deadline] { return deadline; });
}

Socket Connect(const std::string& host, int port, const Deadline& deadline) {
  std::string reason = "timed out";
  for (std::chrono::milliseconds pause{10};; pause = std::min(pause * 2, decltype(pause){500})) {
    const Addresses addresses = Resolve(host.c_str(), port, 0);
    if (!addresses.error.empty()) reason = addresses.error;
    for (const addrinfo* a = addresses.list.get(); a != nullptr; a = a->ai_next) {
      auto [socket, error] = Try(*a, deadline);
      if (error == 0) {
        ConfigureConnection(socket.get());
        return std::move(socket);
      }
      reason = Errno(error);
    }
    if (Clock::now() + pause >= deadline()) {
      throw CommError("cannot reach the store at " + HostPort(host, port) + ": " + reason);
    }
    std::this_thread::sleep_for(pause);
  }
}

std::pair<Socket, int> TryConnect(const std::string& address, int port, const Deadline& deadline) {
  const Addresses numeric = Resolve(address.c_str(), port, AI_NUMERICHOST);
  return numeric.list ? Try(*numeric.list, deadline) : std::pair(Socket(), EINVAL);
}

void ConfigureConnection(int fd) {
  const auto set = [fd](int level, int option, int value) {
    setsockopt(fd, level, option, &value, sizeof(value));
  };
  set(IPPROTO_TCP, TCP_NODELAY, 1);
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, 20);
  set(IPPROTO_TCP, TCP_KEEPINTVL, 10);
  set(IPPROTO_TCP, TCP_KEEPCNT, 4);
  set(IPPROTO_TCP, TCP_USER_TIMEOUT, 60000);  // Milliseconds.
}

}  // namespace fsdp
