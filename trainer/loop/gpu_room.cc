#include "trainer/loop/gpu_room.h"

#include <string>

#include "trainer/comm/nccl/nccl_communicator.h"
#include "trainer/runtime/gpus.h"

namespace fsdp {

PlanTarget RoomNow(const ChosenDevice& device, int sharers) {
  PlanTarget target{.device = device.type};
  if (device.type != DeviceType::kCuda) return target;
  const GpuMemory memory = MemoryOf(device.gpu);
  std::string of = "memory of GPU " + std::to_string(device.gpu) + ", " + device.name;
  if (sharers > 1) of += ", for " + std::to_string(sharers) + " ranks";
  target.room = {memory.free / sharers, of};
  target.outside = memory.total - memory.free;
  return target;
}

PlanTarget RoomToBegin(const ChosenDevice& device, int sharers) {
  PlanTarget target = RoomNow(device, sharers);
  if (target.room && sharers == 1) target.communicator = kNcclStagingBytes;
  return target;
}

PlanTarget RoomUnseen(PlanTarget target) {
  target.communicator = kNcclStagingBytes + kNcclBufferBytes;
  return target;
}

}  // namespace fsdp
