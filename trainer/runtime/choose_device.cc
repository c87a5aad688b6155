#include "trainer/runtime/choose_device.h"

#include <csignal>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include "trainer/core/errors.h"
#include "trainer/core/read_file.h"
#include "trainer/runtime/cpu/cpu_device.h"
#include "trainer/runtime/cuda/cuda_device.h"

namespace fsdp {
namespace {

// Blocks all signals in this thread. Threads that it starts meanwhile inherit that.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before_);
  }
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_;
};

}  // namespace

std::string SetGpuEnvironment() {
  constexpr int kFewest = 24;
  constexpr const char* kConnections = "CUDA_DEVICE_MAX_CONNECTIONS";
  static std::string said;
  (void)setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", /*overwrite=*/0);
  const char* const given = std::getenv(kConnections);
  if (given != nullptr && std::atoi(given) >= kFewest) return said;
  if (given != nullptr) {
    said = std::string(kConnections) + "=" + given + " is raised to 32: with fewer, streams that " +
           "should work side by side wait for each other";
  }
  (void)setenv(kConnections, "32", /*overwrite=*/1);
  return said;
}

// The driver starts a thread that stays. If it blocked no signals, it would take the SIGCHLD that
// the supervisor of `launch` waits for.
Gpus FindGpus() {
  if (FindCudaGpus == nullptr) return {};
  const SignalsBlocked blocked;
  return FindCudaGpus();
}

std::string WhyUnusable(const Gpus& gpus, int gpu, const char* visible_devices) {
  if (!gpus.built) return "this program was built without CUDA: build it with --config=cuda";
  if (gpus.driver == 0) return "there is no NVIDIA driver on this host";
  if (gpus.driver / 1000 < gpus.runtime / 1000) {
    return "the driver knows CUDA up to " + CudaVersionText(gpus.driver) +
           ", and this program needs " + CudaVersionText(gpus.runtime / 1000 * 1000) +
           ": install a newer driver";
  }
  if (!gpus.error.empty()) return "the GPUs cannot be listed: " + gpus.error;
  if (gpu >= static_cast<int>(gpus.visible.size())) {
    const std::string hidden = visible_devices == nullptr
                                   ? " (CUDA_VISIBLE_DEVICES is not set)"
                                   : " (CUDA_VISIBLE_DEVICES=" + std::string(visible_devices) + ")";
    return "the driver shows no GPU" + hidden;
  }
  const Gpu& found = gpus.visible[gpu];
  if (found.major < kOldestMajor) {
    return found.name + " has compute capability " + std::to_string(found.major) + "." +
           std::to_string(found.minor) + ", and this program needs " +
           std::to_string(kOldestMajor) + ".0 or more";
  }
  return "";
}

int GpuOfRank(const Gpus& gpus, int local_rank) {
  return gpus.visible.empty() ? 0 : local_rank % static_cast<int>(gpus.visible.size());
}

GpuMemory MemoryOf(int gpu) {
  if (CudaMemoryOf == nullptr) throw DeviceError("this program was built without CUDA");
  return CudaMemoryOf(gpu);
}

std::string CudaVersionText(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

ChosenDevice ChooseDevice(WantedDevice wanted, int local_rank, int local_world, const Gpus& gpus) {
  ChosenDevice chosen;
  if (wanted == WantedDevice::kCpu) return chosen;
  const int gpu = GpuOfRank(gpus, local_rank);
  const std::string why = WhyUnusable(gpus, gpu, std::getenv("CUDA_VISIBLE_DEVICES"));
  if (why.empty()) {
    const int count = static_cast<int>(gpus.visible.size());
    chosen.type = DeviceType::kCuda;
    chosen.gpu = gpu;
    chosen.name = gpus.visible[gpu].name;
    chosen.memory = gpus.visible[gpu].memory;
    chosen.uuid = gpus.visible[gpu].uuid;
    chosen.pci = gpus.visible[gpu].pci;
    chosen.major = gpus.visible[gpu].major;
    chosen.multiprocessors = gpus.visible[gpu].multiprocessors;
    // Ranks gpu, gpu + count, ... below local_world.
    chosen.sharers = (local_world - 1 - gpu) / count + 1;
    chosen.note = "computes on GPU " + std::to_string(gpu) + " of " + std::to_string(count) + ", " +
                  chosen.name;
    if (chosen.sharers > 1) {
      chosen.note += ", which " + std::to_string(chosen.sharers) + " ranks of this host share";
    }
    if (const std::string raised = SetGpuEnvironment(); !raised.empty()) {
      chosen.note += "; " + raised;
    }
    return chosen;
  }
  if (wanted == WantedDevice::kCuda) {
    if (!gpus.built) throw ConfigError("no GPU: " + why);
    throw DeviceError("no GPU: " + why);
  }
  // A program for CPUs on a machine without GPUs is what everybody expects.
  if (gpus.built || PathExists("/dev/nvidiactl")) chosen.note = "computes on the CPU: " + why;
  return chosen;
}

int GpusInReach(int gpu) { return CudaGpusInReach == nullptr ? 1 : CudaGpusInReach(gpu); }

std::unique_ptr<Device> CreateDevice(DeviceType type, DeviceOptions options) {
  if (type == DeviceType::kCpu) {
    return std::make_unique<CpuDevice>(
        CpuOptions{.spin = options.spin, .checker = std::move(options.checker)});
  }
  if (type == DeviceType::kCuda && CreateCudaDevice != nullptr) {
    const char* const synchronous = std::getenv("FSDP_TRAIN_CUDA_SYNC");
    return CreateCudaDevice(
        {.gpu = options.gpu,
         .synchronous = synchronous != nullptr && std::string_view(synchronous) == "1",
         .checker = std::move(options.checker)});
  }
  throw std::invalid_argument("[CreateDevice] " + std::string(Name(type)) +
                              " is no device to run on");
}

}  // namespace fsdp
