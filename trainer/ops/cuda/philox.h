// Philox4x32 for kernels: with ten rounds the words of trainer/core/philox.h, bit for bit.
// Tests: tests/trainer/ops/cuda_philox_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPS_CUDA_PHILOX_H_
#define FSDP_TRAIN_TRAINER_OPS_CUDA_PHILOX_H_

#include <cuda_runtime.h>

#include <cstdint>

namespace fsdp {

// words = Philox(words, key). Constants alone index the words, so they stay in registers.
template <int kRounds = 10>
__device__ inline void DevicePhilox(uint32_t (&words)[4], uint32_t key_low, uint32_t key_high) {
#pragma unroll
  for (int round = 0; round < kRounds; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53u} * words[0], p1 = uint64_t{0xCD9E8D57u} * words[2];
    words[0] = static_cast<uint32_t>(p1 >> 32) ^ words[1] ^ key_low;
    words[1] = static_cast<uint32_t>(p1);
    words[2] = static_cast<uint32_t>(p0 >> 32) ^ words[3] ^ key_high;
    words[3] = static_cast<uint32_t>(p0);
    key_low += 0x9E3779B9u;
    key_high += 0xBB67AE85u;
  }
}

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CUDA_PHILOX_H_
