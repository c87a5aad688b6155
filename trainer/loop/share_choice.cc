#include "trainer/loop/share_choice.h"

#include <algorithm>
#include <cstdio>
#include <functional>
#include <optional>
#include <vector>

#include "trainer/comm/store.h"
#include "trainer/comm/together.h"
#include "trainer/core/units.h"
#include "trainer/engine/update_share.h"
#include "trainer/loop/gpu_room.h"
#include "trainer/loop/run_directory.h"
#include "trainer/runtime/device_factory.h"

namespace fsdp {
namespace {

constexpr char kAuto[] = "auto";

struct Measured {
  double share = 0;
  UpdateRates rates;
};

std::string Text(double share) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.17g", share);
  return text;
}

// What is to be left of a GPU: contexts, libraries and connections take more of it until the run's
// memory is allocated, and it is held against what is free once more then.
PlanTarget WithRoomForLibraries(const PlanTarget& target) {
  if (!target.room) return target;
  PlanTarget less = target.communicator > 0 ? RoomUnseen(target) : target;
  less.room->bytes -= std::min(less.room->bytes / 16, int64_t{1} << 30);
  return less;
}

Measured Measure(const std::function<UpdateRates(int64_t elements)>& rates, int world,
                 int local_world, const PlanTarget& target, Model& model,
                 const SessionOptions& options) {
  const std::vector<int64_t> on_device = ElementsOnDevice(options.executor, model, world);
  int64_t elements = on_device.back();
  const PlanTarget room = WithRoomForLibraries(target);
  // Of small ones that need not have room for all of a shard, which is what offload is for.
  if (room.room) elements = std::min(elements, room.room->bytes / 4 / MeasuredBytes(options));
  Measured measured{.rates = rates(elements)};
  SessionOptions with = options;
  measured.share = ChooseShare(measured.rates, on_device, [&](double share) {
    with.executor.cpu_offload.optimizer_share = share;
    const RunPlan plan = PlanRun(model, with, world, local_world, room);
    return plan.fits_limit() && plan.fits_device();
  });
  return measured;
}

UpdateRates RatesOf(const ChosenDevice& chosen, const std::shared_ptr<StreamChecker>& checker,
                    const SessionOptions& options, int64_t elements) {
  const std::unique_ptr<Device> device =
      CreateDevice(chosen.type, {.checker = checker, .gpu = chosen.gpu});
  return MeasureUpdates(*device, options, elements);
}

std::string Line(double share, const std::string& why) {
  char text[32];
  std::snprintf(text, sizeof(text), "%g", share);
  return std::string("fsdp.cpu_offload.optimizer_share: ") + text + ", " + why;
}

std::string MeasuredLine(double share, const UpdateRates& rates, int world) {
  return Line(share, "measured: the device updates " + HumanCount(rates.device) +
                         " elements a second, the host " + HumanCount(rates.host) +
                         (world > 1 ? " (rank 0; the smallest of all ranks' shares)" : ""));
}

void Take(double share, Recipe& recipe, SessionOptions& options) {
  recipe.fsdp.cpu_offload.optimizer_share = share;
  options.executor.cpu_offload.optimizer_share = share;
}

}  // namespace

std::string ResolveShare(const Job& job, const PlanTarget& target, Model& model, Recipe& recipe,
                         SessionOptions& options) {
  const bool wanted = !recipe.fsdp.cpu_offload.optimizer_share;
  // As rank 0 finds the run directory, which others may not see yet.
  std::string mine = wanted ? kAuto : "";
  if (wanted && job.rank == 0) {
    if (const std::optional<double> known = ShareOfRun(recipe)) mine = Text(*known);
  }
  std::vector<std::string> all = {mine};
  if (job.world > 1) {
    all = Exchange(*job.store, "train/share", job.rank, job.world, mine);
  }
  if (std::find(all.begin(), all.end(), "") != all.end()) return "";
  if (all[0] != kAuto) {
    Take(std::stod(all[0]), recipe, options);
    return Line(std::stod(all[0]), "which the run goes on with");
  }
  const auto rates = [&](int64_t elements) {
    return job.update_rates ? job.update_rates()
                            : RatesOf(job.device, job.checker, options, elements);
  };
  Measured measured;
  const auto measure = [&] {
    measured = Measure(rates, job.world, job.local_world, target, model, options);
    return Text(measured.share);
  };
  double share = 1;
  for (const std::string& one :
       job.world == 1 ? std::vector<std::string>{measure()}
                      : Together(*job.store, "train/shares", job.rank, job.world, measure)) {
    share = std::min(share, std::stod(one));
  }
  Take(share, recipe, options);
  return MeasuredLine(share, measured.rates, job.world);
}

std::string ResolveShareToPlan(const ChosenDevice& device, int world, int local_world,
                               const PlanTarget& target, Model& model, Recipe& recipe,
                               SessionOptions& options) {
  if (recipe.fsdp.cpu_offload.optimizer_share) return "";
  if (const std::optional<double> known = ShareOfRun(recipe)) {
    Take(*known, recipe, options);
    return Line(*known, "which the run goes on with") + "\n";
  }
  const auto rates = [&](int64_t elements) {
    return RatesOf(device, /*checker=*/nullptr, options, elements);
  };
  const Measured measured = Measure(rates, world, local_world, target, model, options);
  Take(measured.share, recipe, options);
  return MeasuredLine(measured.share, measured.rates, /*world=*/1) + "\n";
}

}  // namespace fsdp
