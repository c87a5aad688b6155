#include "trainer/loop/gpu_room.h"

#include <string>

#include "trainer/core/units.h"
#include "trainer/engine/plan_cures.h"
#include "trainer/loop/gpu_transport.h"
#include "trainer/runtime/choose_device.h"

namespace fsdp {

PlanTarget LessCode(PlanTarget target, int sharers) {
  if (!target.room) return target;
  target.code = sharers > 1 ? kSharedCodeBytes : kCodeBytes;
  target.room->bytes = std::max<int64_t>(0, target.room->bytes - target.code);
  target.room->limit += ", less " + HumanBytes(target.code) + " for the code of kernels";
  return target;
}

PlanTarget RoomNow(const ChosenDevice& device, int sharers) {
  PlanTarget target{.device = device.type};
  if (device.type != DeviceType::kCuda) return target;
  const GpuMemory memory = MemoryOf(device.gpu);
  std::string of = "memory of GPU " + std::to_string(device.gpu) + ", " + device.name;
  if (sharers > 1) of += ", for " + std::to_string(sharers) + " ranks";
  target.room = {memory.free / sharers, of};
  target.outside = memory.total - memory.free;
  return LessCode(std::move(target), sharers);
}

PlanTarget RoomToBegin(const ChosenDevice& device, int sharers, const Recipe& recipe) {
  PlanTarget target = RoomNow(device, sharers);
  if (target.room && sharers == 1) target.communicator = BytesOverNccl(recipe, /*all=*/false);
  return target;
}

PlanTarget RoomUnseen(PlanTarget target, const Recipe& recipe, int blocks) {
  target.communicator = BytesOverNccl(recipe, /*all=*/true, blocks);
  return target;
}

// Memory that was free may be somebody else's by now, another rank's too.
MemoryError WithWhatItNeeds(const MemoryError& error, Model& model, const SessionOptions& options,
                            const ChosenDevice& device, int world, int local_world) {
  const PlanTarget left = RoomNow(device, /*sharers=*/1);
  const RunPlan plan = PlanRun(model, options, world, local_world, left);
  try {
    RequireFit(model, options, plan, left);
  } catch (const MemoryError& misfit) {
    return MemoryError(error.what() + std::string("\n") + misfit.what());
  }
  std::string needs = HumanBytes(plan.planned());
  if (!plan.on_host()) {
    needs += " of device memory and " + HumanBytes(plan.total()) + " of the host's";
  }
  return MemoryError(error.what() + std::string("; a rank needs ") + needs + ", as planned");
}

}  // namespace fsdp
