// Runs CUDA kernels on the CPU, for tests: a fiber for each thread of a block, one block at a time
// in each thread of the host, in one of two orders. It shows now what a wrong kernel does on some
// GPU some day. A missing barrier or wait gives a wrong result in one of the orders. Threads that
// wait for each other at different places are an error. Memory is the host's own, so guard pages
// and sanitizers see every access.
//   Orders  kGreedy runs the first warp as far as it goes, then the next. kGreedyReverse runs the
//           last warp first, with its lanes and the blocks of a grid in reverse.
//           FSDP_TRAIN_EMULATED_ORDER chooses ("greedy", "greedy_reverse"); SetEmulatedOrder()
//           changes it.
//   Errors  A launch that the runtime would refuse returns its error code. A kernel that would
//           hang, or whose behaviour is undefined, throws EmulationError, with kernel, block and
//           cause.
// Not detected: races within a warp's own step, the memory model, bank conflicts, the tensor cores'
// own rounding, speed.
// .cu files get this through <cuda_runtime.h>.
#ifndef FSDP_TRAIN_TESTS_EMULATED_SIMT_H_
#define FSDP_TRAIN_TESTS_EMULATED_SIMT_H_

#include <cstdint>
#include <cstring>
#include <functional>
#include <source_location>
#include <stdexcept>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

#include "tests/emulated/include/cuda_runtime_api.h"
#include "tests/emulated/kernel_list.h"

#define FSDP_EMULATED_TLS __attribute__((tls_model("initial-exec")))
// The indices of the emulated thread that runs.
extern constinit thread_local FSDP_EMULATED_TLS uint3 threadIdx, blockIdx;
extern constinit thread_local FSDP_EMULATED_TLS dim3 blockDim, gridDim;

namespace fsdp {

class EmulationError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

enum class EmulatedOrder { kGreedy, kGreedyReverse };
EmulatedOrder GetEmulatedOrder();
void SetEmulatedOrder(EmulatedOrder order);

// Limits of a block at compute capability 8.0.
inline constexpr int kMaxThreadsOfBlock = 1024;
inline constexpr size_t kMaxSharedBytes = size_t{163} << 10;

// Runs the grid on the stream; on the null stream at once. Returns the result of cudaLaunchKernel.
cudaError_t EmulateGrid(EmulatedKernel& kernel, const cudaLaunchConfig_t& config,
                        std::function<void()> thread);

// kernel<<<...>>>(args...): arguments are converted and copied at the call.
template <auto kernel, typename... Args>
cudaError_t EmulateLaunch(const cudaLaunchConfig_t& config, const Args&... args) {
  const auto launch = [&]<typename... Params>(void (*)(Params...)) {
    static_assert((sizeof(Params) + ... + 0) <= 4096, "a kernel's arguments have 4096 bytes");
    const std::tuple<Params...> parameters(args...);
    return EmulateGrid(EmulatedKernelOf<kernel>::kernel_record, config,
                       [parameters] { std::apply(kernel, parameters); });
  };
  return launch(kernel);
}

// --- for emulated threads ---

int EmulatedLane();
unsigned char* EmulatedDynamicShared();
void EmulateBarrier(std::source_location where);
void EmulateSyncWarp(uint32_t mask);
uint32_t EmulateBallot(uint32_t mask, bool predicate);

uint64_t EmulateShuffleBits(uint32_t mask, uint64_t value, int from);
template <typename T>
T EmulateShuffle(uint32_t mask, const T& value, int from) {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= sizeof(uint64_t));
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  bits = EmulateShuffleBits(mask, bits, from);
  T result;
  std::memcpy(&result, &bits, sizeof(T));
  return result;
}

// See trainer/ops/cuda/ptx.h. An Mma adds up its products in fp32, k by k, and then adds them to d.
// The target of a copy holds the bits of NaN until the wait that covers the copy, or the thread's
// end.
void EmulateMma(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], bool bf16);
void EmulateLoadMatrices(uint32_t (&r)[4], const void* row, bool transposed);
void EmulateCopyAsync(void* shared, const void* global, int bytes);
void EmulateCommitCopies();
void EmulateWaitForCopies(int groups);

}  // namespace fsdp

using fsdp::EmulateLaunch;

#endif  // FSDP_TRAIN_TESTS_EMULATED_SIMT_H_
