#include "trainer/comm/nccl/communicator_memory.h"

#include <algorithm>
#include <bit>

namespace fsdp {
namespace {

// A connection's buffers on the rank that receives, for all protocols: NCCL_BUFFSIZE (4 MiB by its
// documentation), and for LL128 and LL what the defaults of init.cc come to.
constexpr int64_t kConnection = (int64_t{4} << 20) + 4'915'200 + 524'288;
// The most connections in a ring or tree from one neighbour: channels of the search on NVLink
// (graph/search.cc goes to 32 with two rings a link), and no more than maxCTAs (graph/connect.cc,
// ncclTopoPostset).
constexpr int64_t kChannels = 32;
// ncclSend() and ncclRecv() from each peer of a host: twice as many as links of NVLink lie between,
// to the next power of two; two where a network lies between any ranks of the group
// (graph/paths.cc, ncclTopoGetNchannels, of which a group takes the least), and no more than a
// ring's to the next power of two (ncclTopoComputeP2pChannels). Peers on other hosts share one pool
// of buffers (transport/net.cc, NCCL_NET_SHARED_BUFFERS).
constexpr int64_t kPeerChannels = 32, kPeerChannelsOverNetwork = 2;
// NVLS: reductions and gathers inside the switch, on a host with more than two GPUs
// (transport/nvls.cc, nvlsBuffSize and channels).
constexpr int64_t kNvls = int64_t{256} << 20;

struct Connects {
  bool ring = false, tree = false, peers = false, stages = false;
};

Connects ConnectsOf(const NcclOptions& options, const std::vector<Communicator::Size>& calls) {
  Connects connects;
  for (const Communicator::Size& call : calls) {
    const bool here = SumsHere(options, call.kind, call.dtype, call.result);
    connects.stages |= here;
    connects.peers |= here || call.kind == Collective::kAllToAll;
    // An all-reduce that is summed here ends with an all-gather.
    connects.ring |=
        call.kind != Collective::kAllToAll && (!here || call.kind == Collective::kAllReduce);
    connects.tree |= call.kind == Collective::kAllReduce && !here;
  }
  return connects;
}

}  // namespace

int64_t NcclStaging(const NcclOptions& options, const std::vector<Communicator::Size>& calls) {
  return ConnectsOf(options, calls).stages ? options.staging_bytes : 0;
}

int64_t NcclBuffers(const NcclOptions& options, const std::vector<Communicator::Size>& calls,
                    int ranks, int here) {
  const Connects connects = ConnectsOf(options, calls);
  const int64_t ring =
      options.max_blocks > 0 ? std::min<int64_t>(kChannels, options.max_blocks) : kChannels;
  int64_t connections = 0, bytes = 0;
  if (connects.ring) connections += ring;
  if (connects.tree) connections += 2 * ring;  // From a parent and, within a host, one child.
  if (connects.peers) {
    const bool network = here < ranks;
    const auto pool = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(ring)));
    const int64_t channels = std::min(pool, network ? kPeerChannelsOverNetwork : kPeerChannels);
    connections += channels * (here - 1) + (network ? pool : 0);
  }
  if (connects.ring && here > 2) bytes += kNvls;
  return bytes + connections * kConnection;
}

}  // namespace fsdp
