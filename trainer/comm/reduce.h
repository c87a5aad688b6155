// The inner loops of the CPU transports.
#ifndef FSDP_TRAIN_TRAINER_COMM_REDUCE_H_
#define FSDP_TRAIN_TRAINER_COMM_REDUCE_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "trainer/core/dtype.h"

namespace fsdp {

// Does nothing if both are the same address; otherwise they must not overlap. A plain vector loop:
// glibc 2.36's memcpy (rep movsb) takes 3 to 6 times as long for 128 to 256 KB on Zen 3.
void CopyBytes(std::byte* to, const std::byte* from, int64_t bytes);

// CopyBytes() with stores that go around the caches, which saves reading what is overwritten: for a
// result that is larger than the caches. Other threads see it after an atomic store or a system
// call, as always.
void StreamBytes(std::byte* to, const std::byte* from, int64_t bytes);

// The one of the two for parts of a result of `bytes`. An all-gather of 64 MiB over 2 processes
// took 11.2 to 14.1 ms with CopyBytes and 6.9 to 7.3 ms with StreamBytes, of 16 MiB 1.84 to 1.94
// and 1.72 to 1.87 ms (3 runs each, turn about; Xeon, 2 MiB of L2, `chrt -r 5 bench comm`,
// 2026-11-21).
using Copy = void (*)(std::byte* to, const std::byte* from, int64_t bytes);
inline bool PastCaches(int64_t bytes) { return bytes >= 16 << 20; }
inline Copy CopyFor(int64_t bytes) { return PastCaches(bytes) ? StreamBytes : CopyBytes; }

// out[i] = ((from[0][i] + from[1][i]) + from[2][i]) + ..., in fp32, rounded once to `result`: fp32,
// or `dtype` (fp32, bf16 or fp16) itself; `out` may then be one of `from`. `around`: fp32 sums of
// bf16 and fp16, twice the bytes of an input, are stored as by StreamBytes.
void SumInOrder(DType dtype, std::span<const std::byte* const> from, int64_t n, DType result,
                std::byte* out, bool around = false);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_COMM_REDUCE_H_
