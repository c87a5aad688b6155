#include "trainer/ops/cpu/head_loss_kernels.h"

#include "trainer/ops/cpu/isa.h"
#include "trainer/ops/cpu/vector_math.h"

namespace fsdp {
namespace {

float Max(const float* row, int64_t n) {
  float max = -__builtin_inff();
#pragma omp simd reduction(max : max)
  for (int64_t v = 0; v < n; ++v) max = row[v] > max ? row[v] : max;
  return max;
}

template <bool kKeep, typename T>
double SumOfExp(T* row, int64_t n, float max) {
  constexpr int64_t kBlock = 1024;
  double total = 0;
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    const int64_t end = begin + kBlock < n ? begin + kBlock : n;
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t v = begin; v < end; ++v) {
      const float e = Exp(row[v] - max);
      if constexpr (kKeep) row[v] = e;
      sum += e;
    }
    total += sum;
  }
  return total;
}

}  // namespace

const HeadLossKernels FSDP_ISA(kHeadLoss) = {Max, SumOfExp<false, const float>,
                                             SumOfExp<true, float>};

}  // namespace fsdp
