#include "trainer/comm/hosts/host_placement.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <random>
#include <set>
#include <sstream>

#include "trainer/comm/shm/handshake.h"
#include "trainer/comm/shm/shared_memory.h"
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

// The words of a card: where its process is to be found, and what its memory begins with.
struct Proof {
  std::string space, nonce;

  std::string ToString() const { return space + " " + nonce; }
  static Proof Parse(const std::string& words) {
    Proof proof;
    std::istringstream(words) >> proof.space >> proof.nonce;
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
  for (const int k : key) {
    const auto [found, added] = number.emplace(k, static_cast<int>(ranks_of_.size()));
    if (added) ranks_of_.emplace_back();
    std::vector<int>& ranks = ranks_of_[found->second];
    const int rank = static_cast<int>(host_of_.size());
    names_.push_back(rank);
    host_of_.push_back(found->second);
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

HostPlacement FindHosts(Store& store, const std::string& name, int rank, int size) {
  const Proof own{ProcessSpace(), Nonce()};
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
    if (proof.space == own.space && Reaches(card, proof.nonce)) lowest = r;
  }
  std::vector<int> key;
  for (const std::string& text :
       Exchange(store, "hosts/" + name + "/lowest", rank, size, std::to_string(lowest))) {
    key.push_back(std::stoi(text));
  }
  return HostPlacement(key);
}

}  // namespace fsdp
