#include "trainer/engine/step_resource.h"

#include "trainer/runtime/cost.h"
#include "trainer/runtime/operation.h"

namespace fsdp {

StepResource ResourceOf(const Operation& operation, std::string_view stream) {
  const std::string_view name = operation.name;
  if (name == "spill_read") return StepResource::kDiskRead;
  if (name == "spill_write") return StepResource::kDiskWrite;
  if (stream == "update") return StepResource::kHost;
  if (name == "copy" && stream == "leave") return StepResource::kToHost;
  if (name == "copy" && stream == "fetch") return StepResource::kToDevice;
  return StepResource::kDevice;
}

double BytesThere(const Operation& operation, StepResource resource) {
  const Cost cost = Sum(operation.costs);
  switch (resource) {
    case StepResource::kToHost:
    case StepResource::kToDevice:
    case StepResource::kDiskWrite:
      return cost.bytes_written;
    case StepResource::kDiskRead:
      return cost.bytes_read;
    case StepResource::kDevice:
    case StepResource::kHost:
      break;
  }
  return cost.bytes_read + cost.bytes_written;
}

}  // namespace fsdp
