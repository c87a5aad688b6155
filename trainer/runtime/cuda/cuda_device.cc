#include "trainer/runtime/cuda/cuda_device.h"

#include <sys/mman.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <mutex>
#include <utility>

#include "trainer/core/check.h"
#include "trainer/core/errors.h"
#include "trainer/runtime/choose_device.h"
#include "trainer/runtime/cpu/cpu_device.h"
#include "trainer/runtime/cuda/cuda_call.h"
#include "trainer/runtime/cuda/cuda_stream.h"
#include "trainer/runtime/cuda/gpu_state.h"

namespace fsdp {
namespace {

constexpr int64_t kAlignment = 4096;

class CudaDevice final : public Device {
 public:
  explicit CudaDevice(const CudaOptions& options)
      : Device(options.checker),
        state_(std::make_shared<GpuState>(options.gpu, options.synchronous)),
        host_({.checker = options.checker}) {
    cudaStream_t stream = nullptr;
    CheckCall(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, /*priority=*/0),
              "cudaStreamCreateWithPriority");
    state_->timed_events->SetClock(stream);
    CheckCall(cudaStreamDestroy(stream), "cudaStreamDestroy");
  }

  DeviceType type() const override { return DeviceType::kCuda; }
  double Now() const override { return state_->timed_events->Now(); }

  std::unique_ptr<Stream> CreateStream(std::string name, int threads,
                                       StreamPriority priority) override {
    return std::make_unique<CudaStream>(*this, state_, trace_, std::move(name), threads, priority);
  }

  Device& host() override { return host_; }

  void StartTrace() override {
    trace_.on = true;
    host_.StartTrace();
  }
  std::vector<Span> TakeTrace() override {
    trace_.on = false;
    std::vector<Span> all = host_.TakeTrace();
    std::lock_guard lock(trace_.mutex);
    std::ranges::move(std::exchange(trace_.of_ended, {}), std::back_inserter(all));
    for (CudaStream* stream : trace_.streams) stream->MoveSpans(all);
    return ByStreamAndTime(std::move(all));
  }

 private:
  std::byte* DoAllocate(int64_t bytes, MemoryPlace place) override;
  void DoFree(std::byte* data, int64_t bytes, MemoryPlace place) noexcept override;
  std::byte* AllocateOnGpu(int64_t bytes);

  const std::shared_ptr<GpuState> state_;
  CudaTrace trace_;
  CpuDevice host_;
  std::mutex mutex_;                       // Guards what follows.
  std::map<std::byte*, void*> unaligned_;  // cudaMalloc's address, where it was not aligned.
};

std::byte* CudaDevice::DoAllocate(int64_t bytes, MemoryPlace place) {
  void* data = nullptr;
  switch (place) {
    case MemoryPlace::kDevice:
      return AllocateOnGpu(bytes);
    case MemoryPlace::kPinned: {
      (void)cudaSetDevice(state_->gpu);
      const cudaError_t error = cudaHostAlloc(&data, bytes, cudaHostAllocDefault);
      if (error == cudaSuccess) break;
      (void)cudaGetLastError();
      throw MemoryError("cannot allocate " + std::to_string(bytes) +
                        " bytes of pinned host memory: " + Describe(error));
    }
    case MemoryPlace::kHost:
      data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      if (data != MAP_FAILED) break;
      throw MemoryError("cannot allocate " + std::to_string(bytes) + " bytes of host memory");
    case MemoryPlace::kDisk:
      FSDP_CHECK(false) << "no memory of a device";
  }
  return static_cast<std::byte*>(data);
}

// CUDA promises multiples of 256 bytes. Where that is all, it is asked again for as much more as
// the alignment takes: of small memory alone, an arena comes aligned.
std::byte* CudaDevice::AllocateOnGpu(int64_t bytes) {
  (void)cudaSetDevice(state_->gpu);
  for (const int64_t more : {int64_t{0}, kAlignment - 256}) {
    void* data = nullptr;
    const cudaError_t error = cudaMalloc(&data, bytes + more);
    if (error != cudaSuccess) {
      (void)cudaGetLastError();
      if (error != cudaErrorMemoryAllocation && !state_->Check(error)) {
        std::rethrow_exception(state_->failures.device_error());
      }
      size_t free = 0, total = 0;
      (void)cudaMemGetInfo(&free, &total);
      throw MemoryError("cannot allocate " + std::to_string(bytes) + " bytes on " + state_->name +
                        ": " + std::to_string(free) + " of its " + std::to_string(total) +
                        " bytes are free");
    }
    const auto begin = reinterpret_cast<uintptr_t>(data);
    const uintptr_t aligned = (begin + kAlignment - 1) / kAlignment * kAlignment;
    if (aligned == begin) return static_cast<std::byte*>(data);
    if (more == 0) {
      (void)cudaFree(data);
      continue;
    }
    auto* const result = reinterpret_cast<std::byte*>(aligned);
    std::lock_guard lock(mutex_);
    unaligned_[result] = data;
    return result;
  }
  return nullptr;
}

void CudaDevice::DoFree(std::byte* data, int64_t bytes, MemoryPlace place) noexcept {
  switch (place) {
    case MemoryPlace::kDevice: {
      void* begin = data;
      {
        std::lock_guard lock(mutex_);
        if (const auto at = unaligned_.find(data); at != unaligned_.end()) {
          begin = at->second;
          unaligned_.erase(at);
        }
      }
      (void)cudaSetDevice(state_->gpu);
      (void)cudaFree(begin);
      return;
    }
    case MemoryPlace::kPinned:
      (void)cudaFreeHost(data);
      return;
    case MemoryPlace::kHost:
      munmap(data, bytes);
      return;
    case MemoryPlace::kDisk:
      return;
  }
}

}  // namespace

std::unique_ptr<Device> CreateCudaDevice(const CudaOptions& options) {
  SetGpuEnvironment();
  return std::make_unique<CudaDevice>(options);
}

}  // namespace fsdp
