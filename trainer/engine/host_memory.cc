#include "trainer/engine/host_memory.h"

#include <algorithm>

#include "trainer/comm/hosts/hosts_communicator.h"
#include "trainer/comm/shm/shm_communicator.h"
#include "trainer/core/start_thread.h"
#include "trainer/core/units.h"
#include "trainer/ops/cpu/gemm/gemm.h"
#include "trainer/ops/grouped_linear.h"

namespace fsdp {
namespace {

// Stacks, malloc's arenas and what libraries allocate of a rank's threads. Measured at 0.3 to
// 0.9 MiB a thread.
constexpr int64_t kPerThread = int64_t{1} << 20;
// One saves in the background, one looks for an early stop while the run begins.
constexpr int kOwnThreads = 2;
// Addresses of libraries and files that are mapped after the plan, few of them touched.
constexpr int64_t kSpareAddresses = int64_t{64} << 20;

}  // namespace

std::optional<MemoryRoom> AvailableMemory(const MemoryLimits& limits, int sharers,
                                          int64_t addresses) {
  std::optional<MemoryRoom> tightest = limits.Shared();
  if (tightest) tightest->bytes /= sharers;
  for (std::optional<MemoryRoom> own : {limits.AddressSpace(), limits.DataSegment()}) {
    if (!own) continue;
    // Resident memory is taken already, and the caller's sum has it, too.
    own->bytes = std::max<int64_t>(0, own->bytes + limits.Resident() - addresses);
    if (addresses > 0) {
      own->limit += ", less " + HumanBytes(addresses) + " that stacks and libraries reserve";
    }
    if (!tightest || own->bytes < tightest->bytes) tightest = own;
  }
  return tightest;
}

OutsideMemory OutsideOf(int multiplying, bool experts, int threads,
                        const std::vector<GroupOnHost>& groups, const MemoryLimits& limits) {
  const int64_t all = threads + kOwnThreads;
  const int64_t products = kGemmBytesPerThread + (experts ? kGroupedBytesPerThread : 0);
  OutsideMemory outside{limits.Resident() + multiplying * products + all * kPerThread,
                        all * StackBytes() + kSpareAddresses};
  for (const GroupOnHost& group : groups) {
    const int64_t share = group.here < group.ranks ? HostsBytesPerRank(group.ranks, group.here)
                                                   : ShmBytes(group.ranks) / group.here;
    outside.bytes += share;
    outside.addresses += share * (group.here - 1);  // All map it all.
  }
  return outside;
}

}  // namespace fsdp
