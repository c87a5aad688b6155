#include "trainer/comm/hosts/local_address.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <sstream>
#include <vector>

#include "trainer/comm/store/socket.h"
#include "trainer/core/errors.h"

namespace fsdp {
namespace {

std::string Numeric(const sockaddr* address, socklen_t size) {
  char text[NI_MAXHOST];
  if (getnameinfo(address, size, text, sizeof(text), nullptr, 0, NI_NUMERICHOST) != 0) return "";
  const std::string plain = text;
  // An IPv4 address that an IPv6 socket sees.
  return plain.starts_with("::ffff:") ? plain.substr(7) : plain;
}

bool IsLoopbackText(const std::string& address) {
  return address.starts_with("127.") || address == "::1";
}

}  // namespace

std::string AddressTowards(const std::string& host) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  const int failed = getaddrinfo(host.c_str(), "9", &hints, &found);
  if (failed != 0) {
    throw CommError("cannot resolve " + host + ": " + gai_strerror(failed));
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> list(found, &freeaddrinfo);
  int error = ENETUNREACH;
  for (const addrinfo* a = list.get(); a != nullptr; a = a->ai_next) {
    const Socket socket(::socket(a->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    sockaddr_storage mine{};
    socklen_t size = sizeof(mine);
    auto* const generic = reinterpret_cast<sockaddr*>(&mine);
    if (socket.get() >= 0 && connect(socket.get(), a->ai_addr, a->ai_addrlen) == 0 &&
        getsockname(socket.get(), generic, &size) == 0) {
      return Numeric(generic, size);
    }
    error = errno;
  }
  throw CommError("no way to " + host + ": " + std::strerror(error));
}

std::string AddressOfInterface(const std::string& interface) {
  ifaddrs* found = nullptr;
  if (getifaddrs(&found) != 0) throw CommError(std::string("getifaddrs: ") + std::strerror(errno));
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> list(found, &freeifaddrs);
  std::string others;
  for (const int family : {AF_INET, AF_INET6}) {
    for (const ifaddrs* a = list.get(); a != nullptr; a = a->ifa_next) {
      if (a->ifa_addr == nullptr || a->ifa_addr->sa_family != family) continue;
      if (interface == a->ifa_name) {
        return Numeric(a->ifa_addr, family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6));
      }
      const std::string name = a->ifa_name;
      if (others.find(name) == std::string::npos) others += (others.empty() ? "" : ", ") + name;
    }
  }
  throw ConfigError("FSDP_TRAIN_IFACE=" + interface +
                    ": no such network interface, or it has no address; there are: " + others);
}

std::string AgreeOnAddress(Store& store, const std::string& name, int rank, int size,
                           const std::string& master) {
  const char* interface = std::getenv("FSDP_TRAIN_IFACE");
  std::string mine = interface != nullptr && *interface != 0 ? AddressOfInterface(interface)
                                                             : AddressTowards(master);
  // The master's address as this rank sees it: of use to the master where it is a real one.
  std::string theirs;
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(master.c_str(), "9", &hints, &found) == 0) {
    const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> list(found, &freeaddrinfo);
    theirs = Numeric(found->ai_addr, found->ai_addrlen);
  }
  const std::vector<std::string> all =
      Exchange(store, "address/" + name, rank, size, mine + " " + theirs);
  if (!IsLoopbackText(mine)) return mine;
  for (const std::string& text : all) {
    std::string own, masters;
    std::istringstream(text) >> own >> masters;
    if (!IsLoopbackText(own) && !masters.empty() && !IsLoopbackText(masters)) return masters;
  }
  return mine;  // Everybody is on the loopback device: hosts of one machine.
}

}  // namespace fsdp
