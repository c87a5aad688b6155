#include "trainer/ops/cpu/lora_cpu.h"

#include "trainer/ops/cpu/gemm.h"

namespace fsdp {

void LoraForwardCpu(ThreadPool& pool, const LoraShape& s, const ConstView& x, const ConstView& a,
                    const ConstView& b, float scale, const View& u, const View& y) {
  Gemm(pool, s.rows, s.rank, s.in, Factor(x, 0, s.in), Transposed(a, 0, s.in),
       Result(u, 0, s.rank));
  Gemm(pool, s.rows, s.out, s.rank, Factor(u, 0, s.rank), Transposed(b, 0, s.rank),
       Result(y, s.column, s.cols), {.alpha = scale, .beta = 1});
}

void LoraBackwardCpu(ThreadPool& pool, const LoraShape& s, const ConstView& x, const ConstView& u,
                     const ConstView& a, const ConstView& b, float scale, const ConstView& dy,
                     const View& dx, const std::optional<View>& da, const std::optional<View>& db,
                     const View& workspace) {
  const View v(workspace.data, u.dtype, u.shape);
  Gemm(pool, s.rows, s.rank, s.out, Factor(dy, s.column, s.cols), Factor(b, 0, s.rank),
       Result(v, 0, s.rank), {.alpha = scale});
  Gemm(pool, s.rows, s.in, s.rank, Factor(v, 0, s.rank), Factor(a, 0, s.in), Result(dx, 0, s.in),
       {.beta = 1});
  if (da) {
    Gemm(pool, s.rank, s.in, s.rows, Transposed(v, 0, s.rank), Factor(x, 0, s.in),
         Result(*da, 0, s.in), {.beta = 1});
  }
  if (db) {
    Gemm(pool, s.out, s.rank, s.rows, Transposed(dy, s.column, s.cols), Factor(u, 0, s.rank),
         Result(*db, 0, s.rank), {.alpha = scale, .beta = 1});
  }
}

}  // namespace fsdp
