// Products for the sanitizers: the kernels are not instrumented, to be fast, and the memory that
// they touch is announced instead.
// Tests: tests/trainer/ops/gemm_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPS_CPU_GEMM_GEMM_ANNOUNCE_H_
#define FSDP_TRAIN_TRAINER_OPS_CPU_GEMM_GEMM_ANNOUNCE_H_

#include <cstdint>

#include "trainer/core/check.h"
#include "trainer/ops/cpu/gemm/gemm_pack.h"

#if defined(__SANITIZE_THREAD__)
extern "C" {
void __tsan_read_range(void* data, unsigned long bytes);   // NOLINT: the runtime's own types.
void __tsan_write_range(void* data, unsigned long bytes);  // NOLINT
}
#elif defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

namespace fsdp {

inline void AnnounceRow([[maybe_unused]] const void* data, [[maybe_unused]] int64_t bytes,
                        [[maybe_unused]] bool write) {
#if defined(__SANITIZE_THREAD__)
  (write ? __tsan_write_range : __tsan_read_range)(const_cast<void*>(data), bytes);
#elif defined(__SANITIZE_ADDRESS__)
  FSDP_CHECK(__asan_region_is_poisoned(const_cast<void*>(data), bytes) == nullptr)
      << "a product " << (write ? "writes" : "reads") << " what is not its own";
#endif
}

// x[rows, cols] is read.
inline void Announce(const GemmMatrix& x, int64_t rows, int64_t cols) {
  const int64_t size = SizeOf(x.dtype);
  if (x.RowsAreContiguous()) {
    for (int64_t i = 0; i < rows; ++i) AnnounceRow(x.At(i, 0), cols * size, false);
  } else {
    for (int64_t j = 0; j < cols; ++j) AnnounceRow(x.At(0, j), rows * size, false);
  }
}

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CPU_GEMM_GEMM_ANNOUNCE_H_
