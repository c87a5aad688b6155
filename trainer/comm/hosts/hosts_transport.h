// How bytes move between the ranks of several hosts: see hosts_communicator.h.
// Tests: tests/trainer/comm/hosts_communicator_test.cc
#ifndef FSDP_TRAIN_TRAINER_COMM_HOSTS_HOSTS_TRANSPORT_H_
#define FSDP_TRAIN_TRAINER_COMM_HOSTS_HOSTS_TRANSPORT_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "trainer/comm/communicator.h"
#include "trainer/comm/gloo/gloo_mesh.h"
#include "trainer/comm/hosts/host_placement.h"
#include "trainer/comm/hosts/host_watch.h"
#include "trainer/comm/rendezvous.h"
#include "trainer/comm/shm/staged_transport.h"

namespace fsdp {

// Each rank's buffer is what it stages for its own host, then what it receives from others.
class HostsTransport final : public StagedTransport {
 public:
  // Bytes of shared memory of a host with `ranks` ranks, where a rank serves at most `most_served`
  // others.
  static int64_t Bytes(int ranks, int most_served, int largest_host);

  HostsTransport(Wiring wiring, const HostPlacement& placement, int rank,
                 const CommOptions& options);
  ~HostsTransport() override;

  void Run(const CollectiveCall& call) override;
  void Abort(const std::string& why) override;
  void Leave() override;

 private:
  bool Here(int rank) const { return placement_.HostOf(rank) == host_; }
  std::byte* Arrived(int from, uint64_t round) const;
  std::byte* ArrivedFor(int from, int to, uint64_t round) const;
  void Send(const CollectiveCall& call, int to, const std::byte* data, int64_t bytes);
  void Receive(const CollectiveCall& call, int from, int to, std::byte* data, int64_t bytes);
  void CompareHosts(const CollectiveCall& call);

  void Begin(const CollectiveCall& call) override;
  void Settle(const CollectiveCall& call) override;
  void PostShard(const CollectiveCall& call, const std::byte* shard,
                 std::span<const Part> parts) override;
  const std::byte* ShardOf(int from, uint64_t round) const override;
  void PostSlices(const CollectiveCall& call, const std::byte* data,
                  std::span<const Part> parts) override;
  const std::byte* SliceOf(int from, uint64_t round) const override;

  const Wiring wiring_;
  const HostPlacement placement_;
  const int host_;
  const std::vector<int> locals_;  // The ranks of this host.
  const int index_;                // In locals_.
  const int64_t gather_bytes_, slice_bytes_;
  const Staging staging_;
  std::vector<int> served_;
  std::vector<int> slot_;  // By rank of another host: its place in what its partner here serves.
  Member member_;
  Completed& completed_;  // Shared.
  bool begun_ = false;    // Whether hosts have compared their calls.
  std::vector<GlooMesh::Message> messages_;
  HostWatch watch_;  // Last: its thread uses the above.
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_COMM_HOSTS_HOSTS_TRANSPORT_H_
