#include "trainer/loop/gpu_transport.h"

#include <algorithm>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "trainer/comm/nccl/communicator_memory.h"
#include "trainer/comm/nccl/nccl_communicator.h"
#include "trainer/comm/pinned_communicator.h"
#include "trainer/loop/gpu_room.h"
#include "trainer/recipe/recipe.h"

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

NcclOptions OptionsOf(const Recipe& recipe, int blocks) {
  const FsdpOptions::MixedPrecision& mixed = recipe.fsdp.mixed_precision;
  NcclOptions options;
  options.comm.timeout_s = recipe.run.timeout_s;
  options.deterministic = recipe.run.deterministic;
  options.max_blocks = blocks;
  options.exact_into_fp32 = mixed.reduce_dtype != DType::kFloat32 &&
                            mixed.sum == FsdpOptions::MixedPrecision::Sum::kExact;
  return options;
}

// Ranks that disagree about what computes hear of it later.
bool HaveGpus(const std::vector<std::string>& gpus) {
  return std::find(gpus.begin(), gpus.end(), kNone) == gpus.end();
}

// A rank tells its GPU's uuid and, behind the first mark, its place on the bus; with the second one
// that its environment lets NCCL put two ranks on a GPU.
constexpr char kPlace = '@', kMayShare = '+';

std::string Told(const ChosenDevice& device) {
  std::string text = Hex(device.uuid) + kPlace + device.pci;
  if (MostRanksOfAGpu() > 1) text += kMayShare;
  return text;
}

int64_t RanksOn(const std::vector<std::string>& gpus, const std::string& gpu) {
  return std::count(gpus.begin(), gpus.end(), gpu);
}

bool AnyShare(const std::vector<std::string>& gpus) {
  return std::set<std::string>(gpus.begin(), gpus.end()).size() < gpus.size();
}

// Whether ranks of a host have MIG instances of one GPU: a uuid each, and one place. NCCL tells
// GPUs apart by host and place (init.cc: "Duplicate GPU detected").
bool AnyHaveParts(const Choosing& c) {
  std::set<std::pair<int, std::string>> places;
  std::set<std::string> gpus;
  for (size_t r = 0; r < c.told.size(); ++r) {
    const std::string& told = c.told[r];
    const size_t mark = told.find(kPlace), end = told.find(kMayShare);
    if (mark == std::string::npos || !gpus.insert(told.substr(0, mark)).second) continue;
    const std::string place =
        told.substr(mark + 1, end == std::string::npos ? end : end - mark - 1);
    const int host = c.run.hosts.HostOf(static_cast<int>(r));
    if (!place.empty() && !places.emplace(host, place).second) return true;
  }
  return false;
}

// Whether NCCL may be asked although ranks share a GPU.
bool MayShare(const std::vector<std::string>& gpus) {
  return std::all_of(gpus.begin(), gpus.end(), [&](const std::string& gpu) {
    return gpu.ends_with(kMayShare) && RanksOn(gpus, gpu) <= MostRanksOfAGpu();
  });
}

class Transport final : public Choice {
 public:
  ChoiceId id() const override { return ChoiceId::kTransport; }
  bool meets() const override { return true; }

  // A GPU's uuid.
  std::string Tell(const Choosing& c) const override {
    const std::optional<ChosenDevice>& device = c.run.place.device;
    return device && device->type == DeviceType::kCuda ? Told(*device) : kNone;
  }

  // "": there is nothing of 16 bits to add up.
  static std::string WhoAdds(const Recipe& recipe) {
    const FsdpOptions::MixedPrecision& mixed = recipe.fsdp.mixed_precision;
    if (mixed.reduce_dtype == DType::kFloat32) return "";
    const bool exact =
        recipe.run.deterministic || mixed.sum == FsdpOptions::MixedPrecision::Sum::kExact;
    return exact ? "; gradients are added up in fp32, in the order of the ranks"
                 : "; it adds up gradients in " + std::string(Name(mixed.reduce_dtype));
  }

  bool Asks(const Choosing& c) const override {
    return c.told.size() > 1 && HaveGpus(c.told) && !AnyHaveParts(c) &&
           (!AnyShare(c.told) || MayShare(c.told));
  }

  std::string Ask(Choosing& c) const override {
    std::shared_ptr<const NcclLibrary> nccl = FindNccl();
    if (AnyShare(c.told) && VersionOf(*nccl) < kSharedGpuVersion) return "";
    c.run.nccl = std::move(nccl);
    return VersionText(*c.run.nccl);
  }

  std::string Agree(const Choosing& c) const override { return c.answers[c.mine]; }

  Chosen Record(const std::string& version, Choosing& c) const override {
    c.run.sharers = SharersOf(c);
    if (c.run.place.job != nullptr) {
      c.run.target = RoomToBegin(*c.run.place.device, c.run.sharers, *c.run.recipe);
    }
    Chosen chosen{.id = id(), .labels = {{"NCCL", version.empty() ? kNone : version}}};
    if (!version.empty()) {
      chosen.value = "NCCL " + version;
      chosen.line = "collectives over " + chosen.value;
      if (AnyShare(c.told)) chosen.line += ", with two ranks on a GPU";
      chosen.line += WhoAdds(*c.run.recipe);
    } else if (HaveGpus(c.told) && AnyHaveParts(c)) {
      chosen.line =
          "ranks have MIG instances of one GPU, which NCCL refuses: all collectives go through the "
          "host's memory";
    } else if (HaveGpus(c.told) && AnyShare(c.told)) {
      chosen.line =
          "ranks share a GPU, which NCCL refuses: all collectives go through the host's memory "
          "(NCCL from 2.30.3 on takes two on a GPU, with NCCL_MULTI_RANK_GPU_ENABLE=1)";
    }
    if (version.empty() && c.run.recipe && c.run.recipe->fsdp.collective_blocks) {
      chosen.line +=
          (chosen.line.empty() ? "" : "; ") +
          c.run.recipe->Mistake("fsdp.collective_blocks",
                                "this run has no collectives of NCCL, which alone read it");
    }
    return chosen;
  }
};

}  // namespace

const Choice& TransportChoice() {
  static const Transport choice;
  return choice;
}

PlanTarget::CommunicatorBytes BytesOverNccl(const Recipe& recipe, bool all, int blocks) {
  return [options = OptionsOf(recipe, blocks), all](const std::vector<Communicator::Size>& calls,
                                                    const GroupOnHost& group) {
    return NcclStaging(options, calls) +
           (all ? NcclBuffers(options, calls, group.ranks, group.here) : 0);
  };
}

int SharersOf(const Choosing& choosing) {
  const std::vector<std::string>& gpus = choosing.told;
  const std::string& mine = gpus[choosing.mine];
  return mine == kNone ? 1 : static_cast<int>(RanksOn(gpus, mine));
}

MeshCommunicators::Connect ConnectOver(const ResolvedRun& run, const Job& job, Device& device) {
  if (job.world == 1 || device.type() != DeviceType::kCuda) return job.connect;
  if (run.nccl == nullptr) {
    return [&job, &device](const std::string& name, const RankGroup& group) {
      return MakePinnedCommunicator(job.connect(name, group), device);
    };
  }
  return [nccl = run.nccl, options = OptionsOf(*run.recipe, run.multiprocessors.collectives), &job,
          &device](const std::string& name, const RankGroup& group) {
    return CreateNcclCommunicator(nccl, device, *job.store, name, group, options);
  };
}

}  // namespace fsdp
