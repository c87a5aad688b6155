#include "trainer/ops/lora_cpu.h"

#include "trainer/ops/gemm.h"

namespace fsdp {

void LoraForwardCpu(ThreadPool& pool, const LoraShape& s, const float* x, const float* a,
                    const float* b, float scale, float* u, float* y) {
  Gemm(pool, s.rows, s.rank, s.in, 1, {x, s.in}, {a, s.in, true}, 0, u, s.rank);
  Gemm(pool, s.rows, s.out, s.rank, scale, {u, s.rank}, {b, s.rank, true}, 1, y, s.cols);
}

void LoraBackwardCpu(ThreadPool& pool, const LoraShape& s, const float* x, const float* u,
                     const float* a, const float* b, float scale, const float* dy, float* dx,
                     float* da, float* db, float* v) {
  Gemm(pool, s.rows, s.rank, s.out, scale, {dy, s.cols}, {b, s.rank}, 0, v, s.rank);
  Gemm(pool, s.rows, s.in, s.rank, 1, {v, s.rank}, {a, s.in}, 1, dx, s.in);
  if (da != nullptr) {
    Gemm(pool, s.rank, s.in, s.rows, 1, {v, s.rank, true}, {x, s.in}, 1, da, s.in);
  }
  if (db != nullptr) {
    Gemm(pool, s.out, s.rank, s.rows, scale, {dy, s.cols, true}, {u, s.rank}, 1, db, s.rank);
  }
}

}  // namespace fsdp
