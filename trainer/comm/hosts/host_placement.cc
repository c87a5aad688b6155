#include "trainer/comm/hosts/host_placement.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <random>
#include <set>
#include <sstream>

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

// What a rank shows to prove that its memory is reached.
struct Card {
  std::string space;
  int pid = 0;
  int fd = -1;
  std::string nonce;

  std::string ToString() const {
    return space + " " + std::to_string(pid) + " " + std::to_string(fd) + " " + nonce;
  }
  static Card Parse(const std::string& text) {
    Card card;
    std::istringstream(text) >> card.space >> card.pid >> card.fd >> card.nonce;
    return card;
  }
};

bool Reaches(const Card& card) {
  try {
    const UniqueFd memory = OpenSharedMemory(card.pid, card.fd, kProofBytes, "a peer");
    const SharedMapping mapping(memory.get(), kProofBytes);
    return std::memcmp(mapping.data(), card.nonce.data(), card.nonce.size()) == 0;
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
    host_of_.push_back(found->second);
    index_of_.push_back(static_cast<int>(ranks.size()));
    ranks.push_back(rank);
  }
}

int HostPlacement::LargestHost() const {
  size_t most = 0;
  for (const auto& ranks : ranks_of_) most = std::max(most, ranks.size());
  return static_cast<int>(most);
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
    text += (i > 0 ? ", " : "") + std::to_string(ranks_of_[host][i]);
  }
  return text;
}

HostPlacement FindHosts(Store& store, const std::string& name, int rank, int size) {
  Card mine{ProcessSpace(), static_cast<int>(getpid()), -1, Nonce()};
  const UniqueFd memory = MakeSharedMemory(kProofBytes);
  mine.fd = memory.get();
  std::memcpy(SharedMapping(memory.get(), kProofBytes).data(), mine.nonce.data(),
              mine.nonce.size());
  const std::vector<std::string> cards =
      Exchange(store, "hosts/" + name + "/cards", rank, size, mine.ToString());
  int lowest = rank;
  for (int r = 0; r < rank && lowest == rank; ++r) {
    const Card card = Card::Parse(cards[r]);
    if (card.space == mine.space && Reaches(card)) lowest = r;
  }
  std::vector<int> key;
  for (const std::string& text :
       Exchange(store, "hosts/" + name + "/lowest", rank, size, std::to_string(lowest))) {
    key.push_back(std::stoi(text));
  }
  return HostPlacement(key);
}

}  // namespace fsdp
