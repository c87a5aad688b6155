// A CUDA runtime without CUDA. Streams are threads that really run concurrently. Device memory has
// addresses that the host may not touch (kDeviceAddress). Any call fails on demand. A kernel's
// fault is as final as on a GPU: all queued work is dropped, and every call returns the fault.
#ifndef FSDP_TRAIN_TESTS_EMULATED_CUDART_H_
#define FSDP_TRAIN_TESTS_EMULATED_CUDART_H_

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <string>

namespace fsdp {

// The name of the thread that the driver starts when it is first asked for its GPUs.
inline constexpr char kDriversThread[] = "emulated driver";

// Thrown by work on a stream that faults.
struct EmulatedFault {
  cudaError_t error = cudaErrorIllegalAddress;
};

// Runs a kernel on the stream's thread when all earlier work is done; on the null stream at once.
// Returns the result of cudaLaunchKernel.
cudaError_t LaunchOnEmulatedStream(cudaStream_t stream, std::function<void()> kernel);

struct EmulatedGpus {
  int count = 1;
  int major = 9, minor = 0;  // Compute capability.
  int multiprocessors = 4;
  bool peers = true;  // GPUs reach each other's memory.
  int64_t bytes = int64_t{1} << 40;
  int driver = 13000;  // cudaDriverGetVersion(): 0 without one.
  // A stream that waits for a value takes this long to see it.
  int poll_us = 20;
  // The operations that a stream's queue holds, the running one included.
  int64_t queue = 1024;
  // Versions of the libraries that this program has fakes of, in the form of gpu_libraries.h. 0:
  // missing.
  int cublaslt = 130100, cudnn = 91900, nccl = 22809;
  // The number of plans that cuDNN makes; -1: any number.
  int64_t cudnn_plans = -1;
  // The call of cublasLtMatmul, counted from 1, whose shape is refused from then on. 0: none.
  int64_t cublaslt_refuses = 0;
  bool cudnn_late_plans = true;  // Makes plans after its first executed graph, too.
  int64_t unplanned = 0;         // Bytes that a large cudaMalloc takes beyond its own.
  int64_t code = 0;              // Bytes that a kernel takes at its first launch, or it is refused.
  // nccl_middle: from this many bytes up to 8 MiB a collective has another algorithm.
  // nccl_late_connections: an algorithm may be called for the first time after cuDNN has executed a
  // graph, that is, in a step.
  int64_t nccl_middle = int64_t{8} << 20;
  bool nccl_late_connections = true;
  // Numbers of a rank's collectives, counted from 1; 0: none.
  //   nccl_fails    the last rank of a communicator has an asynchronous error
  //   nccl_hangs    the last rank never comes, and does not know it
  //   nccl_blocks   its host stays in the call for seconds
  //   nccl_strands  is done for all others, and never ends on the last rank
  int64_t nccl_fails = 0, nccl_hangs = 0, nccl_blocks = 0, nccl_strands = 0;
};
// The machine that a program begins with is in FSDP_TRAIN_EMULATED_GPUS, words separated by blanks:
// count=0, capability=75, bytes=N, driver=12040; cudaMalloc=1: that call, counted from 1, fails for
// lack of memory; fault=N: the N-th kernel faults when it runs; cublaslt=0, nccl=22700,
// cudnn=91900: versions of libraries; nccl_fails=N and so on: as above. Any other word ends the
// program. CUDA_VISIBLE_DEVICES leaves the GPUs that it lists.
//
// Sets the machine from now on. Also undoes faults and FailEmulatedCall(). No stream may exist.
void ResetEmulatedGpus(const EmulatedGpus& gpus = {});
EmulatedGpus TheEmulatedGpus();  // The current machine.

// The n-th call of the function from now on (1: the next) returns the error and does nothing.
void FailEmulatedCall(const std::string& function, int n, cudaError_t error);
int64_t EmulatedCalls(const std::string& function);  // Since the process began.
// The begin of an allocation of so many bytes on the GPU; null where there is none.
void* EmulatedAllocation(size_t bytes);
// The most operations that a stream's queue has held since the last call.
int64_t TakeMostQueued();

// The calls that this thread has enqueued since it began, null stream included.
struct EmulatedLaunches {
  int64_t kernels = 0;
  int64_t copies = 0, fills = 0;  // By the runtime.
  int64_t library_calls = 0;

  bool operator==(const EmulatedLaunches&) const = default;
};
EmulatedLaunches operator-(const EmulatedLaunches& a, const EmulatedLaunches& b);
EmulatedLaunches EmulatedLaunchesOfThread();

// For fakes of libraries: while it lives, all that this thread enqueues is one call of the library.
class EmulatedLibraryCall {
 public:
  EmulatedLibraryCall();
  ~EmulatedLibraryCall();
  EmulatedLibraryCall(const EmulatedLibraryCall&) = delete;
  EmulatedLibraryCall& operator=(const EmulatedLibraryCall&) = delete;

 private:
  const EmulatedLaunches before_;
};

// For fakes of libraries. CountEmulatedCall() counts a call. TakeEmulatedMemory() takes memory of
// the GPU that no cudaMalloc shows, or gives it back (below 0). It returns false and takes nothing
// where there is too little.
void CountEmulatedCall(const std::string& function);
bool TakeEmulatedMemory(int64_t bytes);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TESTS_EMULATED_CUDART_H_
