// The time of a collective between ranks of a described cluster. Ranks are on hosts in order,
// equally many on each.
//
//   Ring         (Patarasuk and Yuan 2009, doi:10.1016/j.jpdc.2008.09.002) All-gather and
//                reduce-scatter of M bytes over n ranks: n - 1 steps, and M (n - 1) / n bytes that
//                leave each rank. An all-reduce is both.
//   Tree         An all-reduce of few bytes goes up and down a tree: a chain through each host, and
//                log2 of the hosts. Whichever takes less is taken, as NCCL does.
//   All-to-all   M (n - 1) / n bytes that leave each rank, a peer a step.
//   Own sums     A sum in rank order (SumsOfGpus) is an all-to-all, and a kernel that reads what
//   has
//                come. An all-reduce so made ends with an all-gather.
//
// Between hosts a group gets the same share of a host's links as its ranks are of the host's ranks:
// groups that lie side by side use the links at once. t = collective_s + steps + (bytes + ramp) /
// rate.
// Tests: tests/trainer/simulate/network_test.cc
#ifndef FSDP_TRAIN_TRAINER_SIMULATE_NETWORK_H_
#define FSDP_TRAIN_TRAINER_SIMULATE_NETWORK_H_

#include <optional>

#include "trainer/comm/communicator.h"
#include "trainer/comm/rank_group.h"
#include "trainer/recipe/hardware.h"
#include "trainer/runtime/sim/timeline.h"

namespace fsdp {

// Sums that GPUs make by kernels of ours instead of NCCL's (comm/nccl/nccl_communicator.h). On CPUs
// the file's rates are those of our transports.
struct SumsOfGpus {
  bool deterministic = false;    // All.
  bool exact_into_fp32 = false;  // Reductions of 16 bits into fp32.
};

class Network {
 public:
  // A reference to the hardware is kept. Throws ConfigError where it has no network, and the world
  // several ranks.
  Network(const Hardware& hardware, int world, int ranks_per_host, const SumsOfGpus& sums = {});

  // A group, as links see it.
  struct Reach {
    int size = 1, hosts = 1;
    int on_a_host = 1;  // Ranks of the group, at the most.
  };
  Reach ReachOf(const RankGroup& group) const;
  // Throws ConfigError where the file lacks a number that the call needs, with its key.
  SimWork WorkOf(const Reach& reach, const CollectiveCall& call) const;

 private:
  double RingSeconds(const Reach& reach, double bytes) const;
  double TreeSeconds(const Reach& reach, double bytes) const;
  double ExchangeSeconds(const Reach& reach, double bytes) const;
  double ReduceSeconds(const Reach& reach, const CollectiveCall& call) const;
  double AllReduceSeconds(const Reach& reach, double bytes) const;
  double CopySeconds(double bytes) const;  // A kernel's that reads and writes so many.
  double RingRate(const Reach& reach) const;
  double Required(bool between, std::optional<double> LinkRates::*number, const char* key) const;
  double RingStep(bool between) const {
    return Required(between, &LinkRates::ring_step_s, "ring_step_s");
  }

  const Hardware& hardware_;
  const NetworkRates rates_;
  const int ranks_per_host_;
  const SumsOfGpus sums_;
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_SIMULATE_NETWORK_H_
