#include "trainer/ops/cpu/lora_cpu.h"

#include "trainer/ops/cpu/gemm.h"

namespace fsdp {

void LoraForwardCpu(ThreadPool& pool, const LoraShape& s, const ConstView& x, const ConstView& a,
                    const ConstView& b, float scale, const View& u, const View& y) {
  Gemm(pool, s.rows, s.rank, s.in, {x.As<float>(), s.in}, {a.As<float>(), s.in, true},
       {u.As<float>(), s.rank});
  Gemm(pool, s.rows, s.out, s.rank, {u.As<float>(), s.rank}, {b.As<float>(), s.rank, true},
       {y.As<float>() + s.column, s.cols}, {.alpha = scale, .beta = 1});
}

void LoraBackwardCpu(ThreadPool& pool, const LoraShape& s, const ConstView& x, const ConstView& u,
                     const ConstView& a, const ConstView& b, float scale, const ConstView& dy_view,
                     const View& dx, const std::optional<View>& da, const std::optional<View>& db,
                     const View& workspace) {
  const float* const dy = dy_view.As<float>() + s.column;
  float* const v = workspace.As<float>();
  Gemm(pool, s.rows, s.rank, s.out, {dy, s.cols}, {b.As<float>(), s.rank}, {v, s.rank},
       {.alpha = scale});
  Gemm(pool, s.rows, s.in, s.rank, {v, s.rank}, {a.As<float>(), s.in}, {dx.As<float>(), s.in},
       {.beta = 1});
  if (da) {
    Gemm(pool, s.rank, s.in, s.rows, {v, s.rank, true}, {x.As<float>(), s.in},
         {da->As<float>(), s.in}, {.beta = 1});
  }
  if (db) {
    Gemm(pool, s.out, s.rank, s.rows, {dy, s.cols, true}, {u.As<float>(), s.rank},
         {db->As<float>(), s.rank}, {.alpha = scale, .beta = 1});
  }
}

}  // namespace fsdp
