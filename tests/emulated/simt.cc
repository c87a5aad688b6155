#include "tests/emulated/simt.h"

#include <cstdlib>
#include <map>
#include <mutex>
#include <string_view>
#include <utility>

#include "tests/emulated/cudart.h"
#include "tests/emulated/machine.h"
#include "trainer/core/check.h"

namespace fsdp {
namespace {

constexpr size_t kSharedBytesWithoutAsking = size_t{48} << 10;
constexpr unsigned kMaxGridX = 0x7fffffff, kMaxGridYZ = 65535, kMaxBlockXY = 1024, kMaxBlockZ = 64;

EmulatedOrder OrderOfEnvironment() {
  const char* order = std::getenv("FSDP_TRAIN_EMULATED_ORDER");
  if (order == nullptr || std::string_view(order) == "greedy") return EmulatedOrder::kGreedy;
  FSDP_CHECK(std::string_view(order) == "greedy_reverse");
  return EmulatedOrder::kGreedyReverse;
}
std::atomic<EmulatedOrder>& Order() {
  static std::atomic<EmulatedOrder> order = OrderOfEnvironment();
  return order;
}

// The limits that kernels have asked for.
struct SharedLimits {
  std::mutex mutex;
  std::map<const void*, size_t> bytes;
};
SharedLimits& Limits() {
  static SharedLimits limits;
  return limits;
}

bool SharedBytesAllowed(const void* kernel, size_t bytes) {
  if (bytes <= kSharedBytesWithoutAsking) return true;
  SharedLimits& limits = Limits();
  const std::lock_guard lock(limits.mutex);
  const auto limit = limits.bytes.find(kernel);
  return limit != limits.bytes.end() && bytes <= limit->second;
}

bool Fits(const cudaLaunchConfig_t& config) {
  const dim3 grid = config.gridDim, block = config.blockDim;
  return grid.x - 1 < kMaxGridX && grid.y - 1 < kMaxGridYZ && grid.z - 1 < kMaxGridYZ &&
         block.x - 1 < kMaxBlockXY && block.y - 1 < kMaxBlockXY && block.z - 1 < kMaxBlockZ &&
         uint64_t{block.x} * block.y * block.z <= kMaxThreadsOfBlock;
}

}  // namespace

EmulatedOrder GetEmulatedOrder() { return Order(); }
void SetEmulatedOrder(EmulatedOrder order) { Order() = order; }

cudaError_t EmulateGrid(EmulatedKernel& kernel, const cudaLaunchConfig_t& config,
                        std::function<void()> thread) {
  if (!Fits(config)) return cudaErrorInvalidConfiguration;
  if (!SharedBytesAllowed(kernel.function(), config.dynamicSmemBytes)) return cudaErrorInvalidValue;
  if (kernel.launches++ == 0) {
    if (const int64_t code = TheEmulatedGpus().code; code > 0 && !TakeEmulatedMemory(code)) {
      return cudaErrorMemoryAllocation;
    }
  }
  return LaunchOnEmulatedStream(config.stream, [&kernel, config, thread = std::move(thread)] {
    Machine::OfThisThread().RunGrid(kernel, config, thread);
  });
}

}  // namespace fsdp

cudaError_t cudaFuncSetAttribute(const void* function, cudaFuncAttribute attribute, int value) {
  if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize || value < 0 ||
      static_cast<size_t>(value) > fsdp::kMaxSharedBytes) {
    return cudaErrorInvalidValue;
  }
  fsdp::SharedLimits& limits = fsdp::Limits();
  const std::lock_guard lock(limits.mutex);
  limits.bytes[function] = value;
  return cudaSuccess;
}
