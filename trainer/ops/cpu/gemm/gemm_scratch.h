// A thread's memory for a product's packed factors and sums.
// Tests: tests/trainer/ops/gemm_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPS_CPU_GEMM_GEMM_SCRATCH_H_
#define FSDP_TRAIN_TRAINER_OPS_CPU_GEMM_GEMM_SCRATCH_H_

#include <sys/mman.h>

#include <cstdint>
#include <new>

namespace fsdp {

// Memory for kA, kB and kC floats, directly from the system, on large pages where there are any.
// The first use maps it and throws std::bad_alloc where there is none. Bytes that no product needs
// cost nothing.
template <int64_t kA, int64_t kB, int64_t kC>
class GemmScratch {
 public:
  static constexpr int64_t kLargePage = int64_t{2} << 20;
  static constexpr int64_t kBytes =
      ((kA + kB + kC) * int64_t{sizeof(float)} + kLargePage - 1) / kLargePage * kLargePage;

  GemmScratch() = default;
  ~GemmScratch() {
    if (mapped_ != nullptr) munmap(mapped_, kBytes + kLargePage);
  }
  GemmScratch(const GemmScratch&) = delete;
  GemmScratch& operator=(const GemmScratch&) = delete;

  float* b() { return Data(); }
  float* a() { return Data() + kB; }
  float* c() { return Data() + kB + kA; }
  char* all() { return reinterpret_cast<char*>(Data()); }  // kBytes, at a multiple of kLargePage.

 private:
  float* Data() {
    if (mapped_ == nullptr) {
      void* mapped = mmap(nullptr, kBytes + kLargePage, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      if (mapped == MAP_FAILED) throw std::bad_alloc();
      mapped_ = mapped;
      const auto address = reinterpret_cast<uintptr_t>(mapped);
      data_ = reinterpret_cast<float*>((address + kLargePage - 1) / kLargePage * kLargePage);
      madvise(data_, kBytes, MADV_HUGEPAGE);
    }
    return data_;
  }

  void* mapped_ = nullptr;
  float* data_ = nullptr;
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CPU_GEMM_GEMM_SCRATCH_H_
