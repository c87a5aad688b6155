// Finds the GPUs of this host, chooses the device that a rank computes on, and makes it. Code above
// this room names none of the devices' classes.
#ifndef FSDP_TRAIN_TRAINER_RUNTIME_CHOOSE_DEVICE_H_
#define FSDP_TRAIN_TRAINER_RUNTIME_CHOOSE_DEVICE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "trainer/runtime/device.h"

namespace fsdp {

struct Gpu {
  std::string name;          // The driver's: "NVIDIA H100 80GB HBM3".
  int major = 0, minor = 0;  // Compute capability.
  int64_t memory = 0;        // Bytes.
  std::string uuid = {};     // 16 bytes.
  std::string pci = {};      // Its address in sysfs: "0000:18:00.0".
  int multiprocessors = 0;
};

// Versions are CUDA's: 13000 is 13.0.
struct Gpus {
  bool built = false;        // The program has kernels for GPUs.
  int runtime = 0;           // The version that the program is linked with.
  int driver = 0;            // The newest CUDA that the driver knows. 0: there is no driver.
  std::string error;         // Why GPUs cannot be listed, for another reason than the above.
  std::vector<Gpu> visible;  // In the order of CUDA_VISIBLE_DEVICES, where that is set.
};

struct GpuMemory {
  int64_t free = 0, total = 0;  // Bytes.
};

// Null where the program was built without CUDA.
[[gnu::weak]] Gpus FindCudaGpus();
[[gnu::weak]] GpuMemory CudaMemoryOf(int gpu);
[[gnu::weak]] int CudaGpusInReach(int gpu);

// Variables that CUDA and NCCL read when they begin. main() calls it, before there are threads;
// what makes a device calls it again, which changes nothing.
//   CUDA_DEVICE_MAX_CONNECTIONS  32, its maximum, where it is unset or below 24. A stream beyond
//   that
//                                number shares a hardware queue with another stream and waits for
//                                what that one waits for. A rank has 8 streams, NCCL two for each
//                                of up to 4 communicators and one for their order, cuDNN its own.
//   NCCL_LAUNCH_ORDER_IMPLICIT   1 where it is unset: communicators in flight together may wait for
//                                each other for ever without it (NCCL 2.28, "Using multiple NCCL
//                                communicators concurrently").
// Returns a line where it has overruled the user, at any call; otherwise empty.
std::string SetGpuEnvironment();

// Asks the driver and takes no GPU memory. Everything is empty where the program was built without
// CUDA.
Gpus FindGpus();

// The kernels' oldest GPU: capability 8.0 (mma.sync of bf16, cp.async).
inline constexpr int kOldestMajor = 8;

// Why visible[gpu] cannot be used, or why there is no such GPU, with the cure, in one line; empty
// where it can be used. `visible_devices`: CUDA_VISIBLE_DEVICES, or null.
std::string WhyUnusable(const Gpus& gpus, int gpu, const char* visible_devices);

// The GPU of the host's rank `local_rank`: ranks take the GPUs in turn. 0 where there are none.
int GpuOfRank(const Gpus& gpus, int local_rank);

// The GPU's memory. Makes this process's context on the GPU first, so that `free` excludes it.
// Throws DeviceError.
GpuMemory MemoryOf(int gpu);

// Visible GPUs whose memory this one reaches without the host's, itself included. Throws
// DeviceError.
int GpusInReach(int gpu);

std::string CudaVersionText(int version);  // "13.0".

enum class WantedDevice {
  kAuto,  // A GPU if one can be used, and the CPU otherwise.
  kCpu,
  kCuda,  // A GPU, or an error.
};

struct ChosenDevice {
  DeviceType type = DeviceType::kCpu;
  int gpu = 0;  // kCuda: index among the visible GPUs.
  // Ranks of this host that compute on the device, this one included, if all see the same GPUs.
  int sharers = 1;
  std::string name = "cpu";  // "cpu" or the GPU's name.
  int64_t memory = 0;        // A GPU's bytes, free or not.
  std::string uuid = {};     // A GPU's 16 bytes, which no other has.
  std::string pci = {};      // As in Gpu.
  int major = 0;             // The same.
  int multiprocessors = 0;   // The same.
  // One line for people: the device, and for kAuto the reason.
  std::string note;
};

// Chooses for the host's rank `local_rank` of `local_world`. kCuda throws ConfigError in a program
// that was built without CUDA, and DeviceError where no GPU can be used.
ChosenDevice ChooseDevice(WantedDevice wanted, int local_rank, int local_world,
                          const Gpus& gpus = FindGpus());

class StreamChecker;

struct DeviceOptions {
  bool spin = false;  // Compute threads of the CPU poll between loops: see ThreadPool.
  std::shared_ptr<StreamChecker> checker = nullptr;  // Null: no checking.
  int gpu = 0;                                       // Index among the visible GPUs.
};

// Throws DeviceError. Throws std::invalid_argument for the simulated device, which is made for a
// described machine, and for CUDA in a program built without it. With FSDP_TRAIN_CUDA_SYNC=1 in the
// environment a CUDA device waits after each operation.
std::unique_ptr<Device> CreateDevice(DeviceType type, DeviceOptions options = {});

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_RUNTIME_CHOOSE_DEVICE_H_
