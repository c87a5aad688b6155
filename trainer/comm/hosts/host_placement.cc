#include "trainer/comm/hosts/host_placement.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <sstream>
#include <vector>

#include "trainer/comm/shm/shared_memory.h"
#include "trainer/comm/store/socket.h"
#include "trainer/core/errors.h"

namespace fsdp {
namespace {

constexpr int64_t kProofBytes = 4096;

std::string Nonce() {
  std::random_device random;
  std::ostringstream out;
  out << std::hex;
  for (int i = 0; i < 4; ++i) out << random() << '.';
  return out.str();
}

// The words of a card: where its process is to be found, what its memory begins with, and the name
// of its host to the end.
struct Proof {
  std::string space, nonce, host;

  std::string ToString() const { return space + " " + nonce + " " + host; }
  static Proof Parse(const std::string& words) {
    Proof proof;
    std::istringstream in(words);
    in >> proof.space >> proof.nonce;
    in.get();
    std::getline(in, proof.host);
    return proof;
  }
};

bool Reaches(const Card& card, const std::string& nonce) {
  try {
    const UniqueFd memory = OpenSharedMemory(card.pid, card.fd, kProofBytes, "a peer");
    const SharedMapping mapping(memory.get(), kProofBytes);
    return std::memcmp(mapping.data(), nonce.data(), nonce.size()) == 0;
  } catch (const DeviceError&) {
    return false;
  }
}

}  // namespace

HostPlacement::HostPlacement(const std::vector<int>& key) {
  std::map<int, int> number;
  int host = 0;
  for (size_t i = 0; i < key.size(); ++i) {
    if (i == 0 || key[i] != key[i - 1]) {
      const auto [found, added] = number.emplace(key[i], static_cast<int>(ranks_of_.size()));
      if (added) ranks_of_.emplace_back();
      host = found->second;
    }
    std::vector<int>& ranks = ranks_of_[host];
    const auto rank = static_cast<int>(i);
    names_.push_back(rank);
    host_of_.push_back(host);
    index_of_.push_back(static_cast<int>(ranks.size()));
    ranks.push_back(rank);
  }
}

HostPlacement HostPlacement::InOrder(int ranks, int local) {
  std::vector<int> key;
  for (int r = 0; r < ranks; ++r) key.push_back(r / local);
  return HostPlacement(key);
}

HostPlacement HostPlacement::Among(const std::vector<int>& ranks) const {
  std::vector<int> key;
  for (const int rank : ranks) key.push_back(host_of_.at(rank));
  HostPlacement some(key);
  for (size_t i = 0; i < ranks.size(); ++i) some.names_[i] = names_[ranks[i]];
  return some;
}

int HostPlacement::LargestHost() const {
  size_t most = 0;
  for (const auto& ranks : ranks_of_) most = std::max(most, ranks.size());
  return static_cast<int>(most);
}

int HostPlacement::Together(int group) const {
  const std::vector<int> ranks = ByHost();
  int together = 0;
  for (int first = 0, end = 0; first < size(); first = end) {
    const int last = first / group * group + group;  // The group's end.
    for (end = first; end < last && HostOf(ranks[end]) == HostOf(ranks[first]);) ++end;
    if (together == 0) together = end - first;
    if (end - first != together) return 0;
  }
  return together;
}

int HostPlacement::SmallestHost() const {
  size_t smallest = ranks_of_[0].size();
  for (const std::vector<int>& ranks : ranks_of_) smallest = std::min(smallest, ranks.size());
  return static_cast<int>(smallest);
}

std::vector<int> HostPlacement::ByHost() const {
  std::vector<int> all;
  for (const std::vector<int>& ranks : ranks_of_) all.insert(all.end(), ranks.begin(), ranks.end());
  return all;
}

int HostPlacement::Partner(int rank, int host) const {
  const std::vector<int>& ranks = ranks_of_[host];
  return ranks[index_of_[rank] % ranks.size()];
}

std::vector<int> HostPlacement::Served(int rank) const {
  std::vector<int> served;
  const int host = host_of_[rank];
  for (int r = 0; r < size(); ++r) {
    if (host_of_[r] != host && Partner(r, host) == rank) served.push_back(r);
  }
  return served;
}

int HostPlacement::MostServed() const {
  size_t most = 0;
  for (int r = 0; r < size(); ++r) most = std::max(most, Served(r).size());
  return static_cast<int>(most);
}

std::vector<int> HostPlacement::Peers(int rank) const {
  const std::vector<int> served = Served(rank);
  std::set<int> peers(served.begin(), served.end());
  for (int host = 0; host < hosts(); ++host) {
    if (host != host_of_[rank]) peers.insert(Partner(rank, host));
  }
  return {peers.begin(), peers.end()};
}

std::string HostPlacement::NamesOf(int host) const {
  std::string text = ranks_of_[host].size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks_of_[host].size(); ++i) {
    text += (i > 0 ? ", " : "") + std::to_string(names_[ranks_of_[host][i]]);
  }
  return text;
}

std::string NamedHost() {
  const char* const name = std::getenv("FSDP_TRAIN_HOST");
  std::string host = name == nullptr ? "" : name;
  std::replace(host.begin(), host.end(), '\n', ' ');  // A card has a line of words.
  return host;
}

HostPlacement FindHosts(Store& store, const std::string& name, int rank, int size,
                        const std::string& host) {
  const Proof own{ProcessSpace(), Nonce(), host};
  const UniqueFd memory = MakeSharedMemory(kProofBytes);
  std::memcpy(SharedMapping(memory.get(), kProofBytes).data(), own.nonce.data(), own.nonce.size());
  Card mine = MyCard();
  mine.fd = memory.get();
  mine.words = own.ToString();
  const std::vector<std::string> cards =
      Exchange(store, "hosts/" + name + "/cards", rank, size, mine.ToString());
  int lowest = rank;
  for (int r = 0; r < rank && lowest == rank; ++r) {
    const Card card = Card::Parse(cards[r]);
    const Proof proof = Proof::Parse(card.words);
    if (proof.host != own.host || proof.space != own.space) continue;
    if (Reaches(card, proof.nonce)) lowest = r;
  }
  std::vector<int> key;
  for (const std::string& text :
       Exchange(store, "hosts/" + name + "/lowest", rank, size, std::to_string(lowest))) {
    key.push_back(std::stoi(text));
  }
  return HostPlacement(key);
}

int RanksOnCores(Store& store, const std::string& name, int rank, const HostPlacement& placement,
                 const Cores& cores) {
  const std::vector<std::string> told =
      Exchange(store, "cores/" + name, rank, placement.size(), CoresText(cores));
  int ranks = 0;
  for (const int other : placement.RanksOf(placement.HostOf(rank))) {
    const Cores theirs = ParseCores(told[other]);
    if (other == rank || cores.empty() || theirs.empty() || Overlap(cores, theirs)) ++ranks;
  }
  return ranks;
}

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

std::string InterfaceOf(const std::string& address) {
  ifaddrs* found = nullptr;
  if (getifaddrs(&found) != 0) return "?";
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> list(found, &freeifaddrs);
  for (const ifaddrs* a = list.get(); a != nullptr; a = a->ifa_next) {
    const int family = a->ifa_addr == nullptr ? AF_UNSPEC : a->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    const size_t size = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    if (Numeric(a->ifa_addr, static_cast<socklen_t>(size)) == address) return a->ifa_name;
  }
  return "?";
}

std::string InterfaceTowards(const std::string& master) {
  const char* const given = std::getenv("FSDP_TRAIN_IFACE");
  if (given != nullptr && *given != 0) return given;
  try {
    const std::string address = AddressTowards(master);
    const std::string name = IsLoopbackText(address) ? "?" : InterfaceOf(address);
    return name == "?" ? "" : name;
  } catch (const CommError&) {  // Joining the store says it.
    return "";
  }
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
