#include "trainer/loop/gpu_transport.h"

#include <algorithm>
#include <vector>

#include "trainer/comm/pinned_communicator.h"
#include "trainer/comm/store.h"
#include "trainer/comm/together.h"

namespace fsdp {

GpuTransport FindGpuTransport(const Job& job) {
  GpuTransport transport;
  if (job.world == 1) return transport;
  const bool cuda = job.device.type == DeviceType::kCuda;
  const std::string mine = !cuda ? "none" : job.device.sharers > 1 ? "shared" : "own";
  const std::vector<std::string> gpus =
      Exchange(*job.store, "train/gpus", job.rank, job.world, mine);
  const auto some = [&](const char* what) {
    return std::find(gpus.begin(), gpus.end(), what) != gpus.end();
  };
  if (some("none")) return transport;  // Ranks that disagree hear of it later.
  if (some("shared")) {
    transport.note =
        "ranks share a GPU, which NCCL refuses: all collectives go through the host's memory";
    return transport;
  }
  Together(*job.store, "train/nccl", job.rank, job.world, [&] {
    transport.nccl = FindNccl();
    return "";
  });
  transport.note = "collectives over NCCL " + VersionText(*transport.nccl);
  return transport;
}

MeshCommunicators::Connect ConnectOver(const GpuTransport& transport, const Recipe& recipe,
                                       const Job& job, Device& device) {
  if (job.world == 1 || device.type() != DeviceType::kCuda) return job.connect;
  if (transport.nccl == nullptr) {
    return [&job, &device](const std::string& name, const RankGroup& group) {
      return MakePinnedCommunicator(job.connect(name, group), device);
    };
  }
  NcclOptions options;
  options.comm.timeout_s = recipe.run.timeout_s;
  options.deterministic = recipe.run.deterministic;
  return [nccl = transport.nccl, options, &job, &device](const std::string& name,
                                                         const RankGroup& group) {
    return CreateNcclCommunicator(nccl, device, *job.store, name, group, options);
  };
}

}  // namespace fsdp
