// Which ranks share a host, who talks to whom between hosts, and under which address.
// Tests: tests/trainer/comm/host_placement_test.cc
#ifndef FSDP_TRAIN_TRAINER_COMM_HOSTS_HOST_PLACEMENT_H_
#define FSDP_TRAIN_TRAINER_COMM_HOSTS_HOST_PLACEMENT_H_

#include <string>
#include <vector>

#include "trainer/comm/store/store.h"
#include "trainer/core/cores.h"

namespace fsdp {

// Hosts need not have equally many ranks, nor neighbouring ones. A host's lowest rank leads it.
class HostPlacement {
 public:
  // `key[r]`: equal for ranks of one host. Hosts are numbered in the order of their leaders, so
  // rank 0 leads host 0.
  explicit HostPlacement(const std::vector<int>& key);
  // `ranks` in the order of their numbers on hosts of `local` each; the last may have fewer.
  static HostPlacement InOrder(int ranks, int local);
  // The placement of some of its ranks, numbered in this order: for a group of the world's ranks.
  HostPlacement Among(const std::vector<int>& ranks) const;

  int size() const { return static_cast<int>(host_of_.size()); }  // Ranks.
  int hosts() const { return static_cast<int>(ranks_of_.size()); }
  int HostOf(int rank) const { return host_of_[rank]; }
  const std::vector<int>& RanksOf(int host) const { return ranks_of_[host]; }  // Ascending.
  int IndexOf(int rank) const { return index_of_[rank]; }                      // In RanksOf().
  int LeaderOf(int host) const { return ranks_of_[host][0]; }
  int LargestHost() const;  // Its number of ranks.
  int SmallestHost() const;
  std::vector<int> ByHost() const;  // All ranks: those of host 0, of host 1, ...
  // Takes the ranks in that order, in groups of `group` neighbours, a divisor of size(). Returns
  // how many ranks of a group share a host where that number is the same on each host of every
  // group; otherwise 0.
  int Together(int group) const;

  // The rank to which `rank` sends data for `host`, another host: that host's rank of the same
  // index, counted around where it has fewer. So the ranks of a host share the work.
  int Partner(int rank, int host) const;
  std::vector<int> Served(int rank) const;  // All whose partner `rank` is, ascending.
  int MostServed() const;                   // By one rank.
  std::vector<int> Peers(int rank) const;   // Partners and served, ascending.

  int NameOf(int rank) const { return names_[rank]; }  // In the world.
  std::string NamesOf(int host) const;                 // "rank 2" or "ranks 2, 3".

 private:
  std::vector<int> host_of_, index_of_, names_;
  std::vector<std::vector<int>> ranks_of_;
};

// $FSDP_TRAIN_HOST; empty without it.
std::string NamedHost();

// All ranks call this, with a `name` used once. Two ranks share a host where one can open the
// other's memory and finds there what it was promised. No launcher is asked, and machines cloned
// from one image are told apart. Ranks of different containers or users count as of different
// hosts, and so do ranks with another `host`: one machine can stand for several. Blocks. Throws
// CommError as Exchange does.
HostPlacement FindHosts(Store& store, const std::string& name, int rank, int size,
                        const std::string& host = NamedHost());

// Ranks of this rank's host that may run on one of its cores, itself included; `cores` are this
// rank's, and empty where they are not known, which counts as all. A launcher that gives each rank
// cores of its own leaves one. All ranks call this, with a `name` used once. Blocks. Throws
// CommError as Exchange does.
int RanksOnCores(Store& store, const std::string& name, int rank, const HostPlacement& placement,
                 const Cores& cores);

// The address, numeric, from which this host sends to `host`. Nothing is sent. Throws CommError.
std::string AddressTowards(const std::string& host);

// The address of a network interface, IPv4 before IPv6. Throws ConfigError naming the interfaces
// there are.
std::string AddressOfInterface(const std::string& interface);

// The interface that has a numeric address; "?" where none has.
std::string InterfaceOf(const std::string& address);
// $FSDP_TRAIN_IFACE, or the interface of AddressTowards(`master`); empty for a loopback address,
// and where there is no way to `master`.
std::string InterfaceTowards(const std::string& master);

// Each rank's AddressTowards(`master`), the host of the store. On the master's own host that may be
// the loopback device (a name in /etc/hosts); there it is the address by which other hosts know it.
// $FSDP_TRAIN_IFACE, the name of an interface, overrides it, for one rank or all. All ranks call
// this, with a `name` used once. Blocks.
std::string AgreeOnAddress(Store& store, const std::string& name, int rank, int size,
                           const std::string& master);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_COMM_HOSTS_HOST_PLACEMENT_H_
