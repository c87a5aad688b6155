#include "trainer/loop/gpu_transport.h"

#include <algorithm>
#include <set>
#include <vector>

#include "trainer/comm/pinned_communicator.h"
#include "trainer/comm/store.h"
#include "trainer/comm/together.h"

namespace fsdp {
namespace {

constexpr char kNone[] = "none";

std::string Hex(const std::string& bytes) {
  std::string text;
  for (const char c : bytes) {
    constexpr char kDigits[] = "0123456789abcdef";
    const auto byte = static_cast<unsigned char>(c);
    text += {kDigits[byte / 16], kDigits[byte % 16]};
  }
  return text;
}

}  // namespace

std::vector<std::string> ExchangeGpus(const Job& job) {
  const std::string mine = job.device.type == DeviceType::kCuda ? Hex(job.device.uuid) : kNone;
  if (job.world == 1) return {mine};
  return Exchange(*job.store, "train/gpus", job.rank, job.world, mine);
}

int SharersOf(const std::vector<std::string>& gpus, const Job& job) {
  const std::string& mine = gpus[job.rank];
  return mine == kNone ? 1 : static_cast<int>(std::count(gpus.begin(), gpus.end(), mine));
}

GpuTransport FindGpuTransport(const std::vector<std::string>& gpus, const Job& job) {
  GpuTransport transport;
  if (job.world == 1) return transport;
  // Ranks that disagree hear of it later.
  if (std::find(gpus.begin(), gpus.end(), kNone) != gpus.end()) return transport;
  if (std::set<std::string>(gpus.begin(), gpus.end()).size() < gpus.size()) {
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
  options.into_fp32 = recipe.fsdp.mixed_precision.reduce_dtype != DType::kFloat32;
  return [nccl = transport.nccl, options, &job, &device](const std::string& name,
                                                         const RankGroup& group) {
    return CreateNcclCommunicator(nccl, device, *job.store, name, group, options);
  };
}

}  // namespace fsdp
