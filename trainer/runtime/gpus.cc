#include "trainer/runtime/gpus.h"

#include <csignal>

#include "trainer/core/errors.h"

namespace fsdp {
namespace {

// Blocks all signals of this thread, and of those that it starts meanwhile, which keep that.
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

}  // namespace fsdp
