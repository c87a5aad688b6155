#include "trainer/ops/cpu/lora_cpu.h"

#include "trainer/ops/cpu/gemm.h"

namespace fsdp {

void LoraForwardCpu(ThreadPool& pool, const LoraShape& s, const float* x, const float* a,
                    const float* b, float scale, float* u, float* y) {
  Gemm(pool, s.rows, s.rank, s.in, {x, s.in}, {a, s.in, true}, u, s.rank);
  Gemm(pool, s.rows, s.out, s.rank, {u, s.rank}, {b, s.rank, true}, y, s.cols,
       {.alpha = scale, .beta = 1});
}

void LoraBackwardCpu(ThreadPool& pool, const LoraShape& s, const float* x, const float* u,
                     const float* a, const float* b, float scale, const float* dy, float* dx,
                     float* da, float* db, float* v) {
  Gemm(pool, s.rows, s.rank, s.out, {dy, s.cols}, {b, s.rank}, v, s.rank, {.alpha = scale});
  Gemm(pool, s.rows, s.in, s.rank, {v, s.rank}, {a, s.in}, dx, s.in, {.beta = 1});
  if (da != nullptr) {
    Gemm(pool, s.rank, s.in, s.rows, {v, s.rank, true}, {x, s.in}, da, s.in, {.beta = 1});
  }
  if (db != nullptr) {
    Gemm(pool, s.out, s.rank, s.rows, {dy, s.cols, true}, {u, s.rank}, db, s.rank,
         {.alpha = scale, .beta = 1});
  }
}

}  // namespace fsdp
