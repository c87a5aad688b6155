// How soon a collective of some size is there, beside the memcpy of as many bytes.
#ifndef FSDP_TRAIN_TRAINER_BENCH_COMM_BENCH_H_
#define FSDP_TRAIN_TRAINER_BENCH_COMM_BENCH_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "trainer/comm/communicator.h"
#include "trainer/core/dtype.h"
#include "trainer/runtime/choose_device.h"

namespace fsdp {

struct CommBenchOptions {
  // Ranks are threads of this process, or processes; with NCCL such that have a GPU each.
  enum class Transport { kThread, kShm, kNccl };

  Transport transport = Transport::kShm;
  bool deterministic = false;  // NCCL's: NcclOptions.
  // The tensors' device. Ranks take visible GPUs in turn, and go to the other transports by way of
  // pinned memory.
  WantedDevice device = WantedDevice::kCpu;
  int ranks = 2;
  // The dtype that moves: fp32, bf16 or fp16. A reduce-scatter leaves fp32, as it does in a
  // training step.
  DType dtype = DType::kFloat32;
  // Bytes of the full tensor in that dtype: of all ranks' parts together, or of the one tensor that
  // an all-reduce and a broadcast work on. At least an element a rank; rounded down to whole parts.
  std::vector<int64_t> sizes = {1 << 10, 64 << 10, 512 << 10, 4 << 20, 16 << 20, 64 << 20};
  int max_calls = 1000;  // In a batch, which has as many as move 16 MiB.
  int batches = 9;       // Calls of a batch are enqueued at once; the median batch counts.
};

struct CommTime {
  Collective collective = Collective::kAllGather;
  int64_t bytes = 0;   // The full tensor's.
  double seconds = 0;  // A call's, on rank 0.
  // Seconds of a copy of as many bytes, by every rank at the same time, as rank 0 sees them. A
  // GPU's memory is copied on the GPU.
  double memcpy_seconds = 0;

  double bytes_per_s() const { return static_cast<double>(bytes) / seconds; }
};

// Measures all collectives at all sizes, once for each time that `next` returns true, and calls
// `done` with the results, in the order of sizes and Collective. Both are called in this process,
// by rank 0. Blocks. All but kThread fork: to be called before there are other threads, or a use of
// a GPU. Throws std::invalid_argument for sizes that leave a rank nothing, dtypes that nothing adds
// up, and NCCL of ranks that have no GPU of their own, ConfigError as ChooseDevice() does,
// CommError, DeviceError.
void MeasureCollectives(const CommBenchOptions& options, const std::function<bool()>& next,
                        const std::function<void(const std::vector<CommTime>&)>& done);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_BENCH_COMM_BENCH_H_
