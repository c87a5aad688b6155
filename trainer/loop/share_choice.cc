#include "trainer/loop/share_choice.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "trainer/core/errors.h"
#include "trainer/core/units.h"
#include "trainer/engine/plan.h"
#include "trainer/engine/update_share.h"
#include "trainer/loop/gpu_room.h"
#include "trainer/loop/run_directory.h"
#include "trainer/runtime/choose_device.h"
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

// Leaves room on a GPU for contexts, libraries and connections, which take more of it until the
// run's memory is allocated. The run is held against the free memory once more then.
PlanTarget WithRoomForLibraries(const PlanTarget& target) {
  if (!target.room) return target;
  PlanTarget less = target.communicator > 0 ? RoomUnseen(target) : target;
  less.room->bytes -= std::min(less.room->bytes / 16, int64_t{1} << 30);
  return less;
}

Measured Measure(const std::function<UpdateRates(int64_t elements)>& rates,
                 const ResolvedRun& run) {
  const Place& place = run.place;
  SessionOptions with = run.options;
  const std::vector<int64_t> on_device = ElementsOnDevice(with.executor, *run.model, place.world);
  int64_t elements = on_device.back();
  const PlanTarget room = WithRoomForLibraries(run.target);
  // Measures a part of a shard: a small GPU need not have room for all of it, which is what offload
  // is for.
  if (room.room) elements = std::min(elements, room.room->bytes / 4 / MeasuredBytes(with));
  Measured measured{.rates = rates(elements)};
  measured.share = ChooseShare(measured.rates, on_device, [&](double share) {
    with.executor.cpu_offload.optimizer_share = share;
    const RunPlan plan = PlanRun(*run.model, with, place.world, place.local_world, room);
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

// The device that updates are timed on. Throws ConfigError where it is not here.
ChosenDevice DeviceToMeasure(const ResolvedRun& run) {
  const Place& place = run.place;
  if (place.device) return *place.device;
  const auto refuse = [&](const std::string& why) {
    throw ConfigError(run.recipe.Mistake(
        "fsdp.cpu_offload.optimizer_share",
        "`auto` is measured, and " + why +
            ": give the number that a run there has found, or one to plan with"));
  };
  if (!place.described.empty()) refuse(place.described + " is another machine");
  if (run.target.device == DeviceType::kCpu) return {};
  try {
    return ChooseDevice(WantedDevice::kCuda, /*local_rank=*/0, /*local_world=*/1);
  } catch (const Error& error) {
    refuse(std::string("no GPU can be used here (") + error.what() + ")");
  }
  return {};
}

class Share final : public Choice {
 public:
  ChoiceId id() const override { return ChoiceId::kShare; }
  bool meets() const override { return true; }
  bool Concerns(const Choosing& c) const override { return c.run.place.trains; }

  // As rank 0 finds the run directory, which others may not see yet.
  std::string Hold(const Choosing& c) const override {
    if (!Wanted(c) || c.mine != 0) return "";
    const std::optional<double> known = ShareOfRun(c.run.recipe);
    return known ? Text(*known) : "";
  }

  std::string Tell(const Choosing& c) const override {
    if (!Wanted(c)) return "";
    return c.held.empty() ? kAuto : c.held;
  }

  bool Asks(const Choosing& c) const override {
    return std::count(c.told.begin(), c.told.end(), kAuto) == std::ssize(c.told);
  }

  std::string Ask(Choosing& c) const override {
    const Job* const job = c.run.place.job;
    const auto rates = [&](int64_t elements) {
      if (job != nullptr && job->update_rates) return job->update_rates();
      return RatesOf(DeviceToMeasure(c.run), job != nullptr ? job->checker : nullptr, c.run.options,
                     elements);
    };
    const Measured measured = Measure(rates, c.run);
    c.how = "measured: the device updates " + HumanCount(measured.rates.device) +
            " elements a second, the host " + HumanCount(measured.rates.host);
    return Text(measured.share);
  }

  std::string Agree(const Choosing& c) const override {
    if (std::find(c.told.begin(), c.told.end(), "") != c.told.end()) return "";
    if (!Asks(c)) return c.told[0];
    double share = 1;
    for (const std::string& one : c.answers) share = std::min(share, std::stod(one));
    return Text(share);
  }

  Chosen Record(const std::string& agreed, Choosing& c) const override {
    if (agreed.empty()) return {.id = id()};
    const double share = std::stod(agreed);
    c.run.recipe.fsdp.cpu_offload.optimizer_share = share;
    c.run.options.executor.cpu_offload.optimizer_share = share;
    std::string how = c.how.empty() ? "which the run goes on with" : c.how;
    if (!c.how.empty() && c.told.size() > 1) how += " (rank 0; the smallest of all ranks' shares)";
    return {.id = id(), .value = agreed, .line = Line(share, how)};
  }

 private:
  static bool Wanted(const Choosing& c) { return !c.run.recipe.fsdp.cpu_offload.optimizer_share; }
};

}  // namespace

const Choice& ShareChoice() {
  static const Share choice;
  return choice;
}

}  // namespace fsdp
