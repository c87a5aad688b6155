// A CUDA runtime without CUDA: streams are threads that really run apart, device memory has
// addresses that the host may not touch (kDeviceAddress), any call fails on demand. A fault of a
// kernel is as final as on a GPU: all that is queued is dropped, every call returns it.
#ifndef FSDP_TRAIN_TESTS_EMULATED_CUDART_H_
#define FSDP_TRAIN_TESTS_EMULATED_CUDART_H_

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <string>

namespace fsdp {

// The name of the thread that the driver starts where it is first asked for its GPUs.
inline constexpr char kDriversThread[] = "emulated driver";

// To be thrown by what runs on a stream.
struct EmulatedFault {
  cudaError_t error = cudaErrorIllegalAddress;
};

// Runs when all that is queued before is done, on the stream's thread: a kernel. Of the null
// stream, at once. What cudaLaunchKernel would return.
cudaError_t LaunchOnEmulatedStream(cudaStream_t stream, std::function<void()> kernel);

struct EmulatedGpus {
  int count = 1;
  int major = 9, minor = 0;  // Compute capability.
  int64_t bytes = int64_t{1} << 40;
  int driver = 13000;  // cudaDriverGetVersion(): 0 without one.
  // Streams' waits for a value take that long to see it.
  int poll_us = 20;
  // Operations that a stream's queue holds, the one that runs included.
  int64_t queue = 1024;
  // Versions of the libraries that this program has fakes of, as gpu_libraries.h counts. 0:
  // missing.
  int cublaslt = 130100, cudnn = 91900, nccl = 22809;
  // How many plans cuDNN makes; -1: any number.
  int64_t cudnn_plans = -1;
  // By which call of cublasLtMatmul, counted from 1, it refuses the shape, from then on. 0: none.
  int64_t cublaslt_refuses = 0;
  bool cudnn_late_plans = true;  // It makes plans behind the first graph that it has executed, too.
  int64_t unplanned = 0;         // Bytes that a large cudaMalloc takes beside its own.
  int64_t code = 0;  // Bytes that a kernel takes when it is first launched; refused without them.
  // Bytes from which on, up to 8 MiB, a collective has another algorithm, and whether one may be
  // called for the first time when cuDNN has executed a graph: in a step.
  int64_t nccl_middle = int64_t{8} << 20;
  bool nccl_late_connections = true;
  // By which of its collectives, counted from 1, the last rank of a communicator has an
  // asynchronous error, and at which it never comes, which it does not know. 0: none.
  // At the third its host stays in the call until that is aborted; the fourth is done for all
  // others, and never ends on it.
  int64_t nccl_fails = 0, nccl_hangs = 0, nccl_blocks = 0, nccl_strands = 0;
};
// The machine that a program begins with is FSDP_TRAIN_EMULATED_GPUS, words with blanks between:
// count=0, capability=75, bytes=N, driver=12040; cudaMalloc=1: that call, counted from 1, fails for
// want of memory; fault=N: the N-th kernel does when it runs; cublaslt=0, nccl=22700, cudnn=91900:
// libraries' versions; nccl_fails=N and so on: as above. Others end it. CUDA_VISIBLE_DEVICES leaves
// as many GPUs as it lists.
//
// The machine from now on. Also undoes faults and FailEmulatedCall(). No stream may exist.
void ResetEmulatedGpus(const EmulatedGpus& gpus = {});
EmulatedGpus TheEmulatedGpus();  // The machine of now.

// The n-th call of the function from now on (1: the next) returns the error and does nothing.
void FailEmulatedCall(const std::string& function, int n, cudaError_t error);
int64_t EmulatedCalls(const std::string& function);  // Since the process began.
// Where an allocation of the GPU's of so many bytes begins; null where there is none.
void* EmulatedAllocation(size_t bytes);
// The most operations that a stream's queue has held since the last call.
int64_t TakeMostQueued();

// What this thread has enqueued since it began, null stream included.
struct EmulatedLaunches {
  int64_t kernels = 0;
  int64_t copies = 0, fills = 0;  // By the runtime.
  int64_t library_calls = 0;

  bool operator==(const EmulatedLaunches&) const = default;
};
EmulatedLaunches operator-(const EmulatedLaunches& a, const EmulatedLaunches& b);
EmulatedLaunches EmulatedLaunchesOfThread();

// For fakes of libraries: as long as it lives, what this thread enqueues is one call of theirs.
class EmulatedLibraryCall {
 public:
  EmulatedLibraryCall();
  ~EmulatedLibraryCall();
  EmulatedLibraryCall(const EmulatedLibraryCall&) = delete;
  EmulatedLibraryCall& operator=(const EmulatedLibraryCall&) = delete;

 private:
  const EmulatedLaunches before_;
};

// For fakes of libraries: counts a call of theirs, and takes memory of the GPU that no cudaMalloc
// shows, or gives it back (below 0). False, and nothing is taken, where there is too little.
void CountEmulatedCall(const std::string& function);
bool TakeEmulatedMemory(int64_t bytes);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TESTS_EMULATED_CUDART_H_
