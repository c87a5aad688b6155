// Ranks that are processes of several hosts: shared memory inside a host, TCP between hosts.
// Tests: tests/trainer/comm/hosts_communicator_test.cc
#ifndef FSDP_TRAIN_TRAINER_COMM_HOSTS_HOSTS_COMMUNICATOR_H_
#define FSDP_TRAIN_TRAINER_COMM_HOSTS_HOSTS_COMMUNICATOR_H_

#include <cstdint>
#include <memory>
#include <string>

#include "trainer/comm/communicator.h"
#include "trainer/comm/hosts/host_placement.h"
#include "trainer/comm/rank_group.h"
#include "trainer/comm/store/store.h"

namespace fsdp {

// Bytes of shared memory of a host with `ranks` ranks, all of them together.
int64_t HostsBytes(const HostPlacement& placement, int ranks);
// HostsBytes() for each rank of equal hosts, before there is a placement.
int64_t HostsBytesPerRank(int world, int local_world);

// All ranks of the group call this, with a `name` that the job uses once; blocks until all have.
// Memory of the host only. `world`: where all ranks of the job are. `address`: the numeric one
// under which other hosts reach this host.
//   Sums     As in shared memory: every rank's own numbers reach the rank that adds them up, in
//            fp32 and in rank order over all hosts. So the bits are those of one host.
//   Traffic  A gathered shard crosses to each other host once, into memory that its ranks share.
//            Each rank sends for itself, to the rank of the same index on the other host.
//   Calls    Before a collective is done all hosts have compared what all ranks are about to do.
//   Death    A process that ends is noticed within 0.1 s by its host, a host whose leader ends at
//            once by all others; a host that falls silent after timeout_s. The message names the
//            ranks, those that are late with what they did last. All ranks fail with the first
//            reason that reaches them.
//   Memory   HostsBytes(), however large the tensors are.
//   Errors   CommError: a rank is missing; hosts cannot reach each other. DeviceError: no memory.
//   On every rank. Trust    Only who has the connections' secrets from the store can join. Tensors
//   are neither
//            encrypted nor signed: a network that is yours.
std::unique_ptr<Communicator> CreateHostsCommunicator(Store& store, const std::string& name,
                                                      const RankGroup& group,
                                                      const HostPlacement& world,
                                                      const std::string& address,
                                                      const CommOptions& options = {});

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_COMM_HOSTS_HOSTS_COMMUNICATOR_H_
