// The sum of the CPU's transports, on a GPU: a kernel of ops/cuda, which is above this room.
// Tests: tests/trainer/comm/nccl_communicator_test.cc
#ifndef FSDP_TRAIN_TRAINER_COMM_NCCL_SUM_IN_ORDER_H_
#define FSDP_TRAIN_TRAINER_COMM_NCCL_SUM_IN_ORDER_H_

#include <cstddef>
#include <cstdint>

#include "trainer/core/dtype.h"
#include "trainer/runtime/cuda_stream_handle.h"

namespace fsdp {

// out[i] = factor * (((x[0][i] + x[1][i]) + x[2][i]) + ...), n elements, in fp32, rounded once to
// `result`: fp32, or `dtype` (fp32, bf16 or fp16) itself. `factor` is a power of two. x[r] is
// `others` + r * stride elements; but that of `rank` is `own`, which `out` may be. The bits of
// SumInOrder() in comm/reduce.h.
struct RankSum {
  DType dtype = DType::kFloat32, result = DType::kFloat32;
  int rank = 0, size = 1;
  int64_t n = 0, stride = 0;
  float factor = 1;
};
// Null where nobody links it, as without CUDA; throws DeviceError.
[[gnu::weak]] void SumInOrderCuda(CudaStreamHandle stream, const RankSum& sum, const std::byte* own,
                                  const std::byte* others, std::byte* out);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_COMM_NCCL_SUM_IN_ORDER_H_
