// The two inner loops of the CPU transports.
#ifndef FSDP_TRAIN_TRAINER_COMM_REDUCE_H_
#define FSDP_TRAIN_TRAINER_COMM_REDUCE_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "trainer/core/dtype.h"

namespace fsdp {

// Nothing if both are the same address; otherwise they must not overlap. A plain vector loop: glibc
// 2.36's memcpy (rep movsb) takes 3 to 6 times as long for 128 to 256 KB on Zen 3.
void CopyBytes(std::byte* to, const std::byte* from, int64_t bytes);

// out[i] = ((from[0][i] + from[1][i]) + from[2][i]) + ..., in fp32, rounded once to `dtype` (fp32,
// bf16 or fp16). `out` may be one of `from`.
void SumInOrder(DType dtype, std::span<const std::byte* const> from, int64_t n, std::byte* out);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_COMM_REDUCE_H_
