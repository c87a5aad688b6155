#include "trainer/ops/cuda/gemm/gemm.h"
#include "trainer/ops/linear_backends.h"

namespace fsdp {

void LoraForwardCuda(CudaStreamHandle stream, const ConstView& x, const ConstView& a,
                     const ConstView& b, float scale, int64_t column, const View& u,
                     const View& y) {
  const int64_t rows = x.shape[0], in = x.shape[1], rank = a.shape[0], out = b.shape[0];
  Gemm(stream, rows, rank, in, Factor(x, 0, in), Transposed(a, 0, in), Result(u, 0, rank));
  const GemmResult part = Result(y, column, y.shape[1]);
  Gemm(stream, rows, out, rank, Factor(u, 0, rank), Transposed(b, 0, rank), part,
       {.scale = scale, .added = part.data});
}

void LoraBackwardCuda(CudaStreamHandle stream, const ConstView& x, const ConstView& u,
                      const ConstView& a, const ConstView& b, float scale, const ConstView& dy,
                      int64_t column, const View& dx, const std::optional<View>& da,
                      const std::optional<View>& db, const View& workspace) {
  const int64_t rows = x.shape[0], in = x.shape[1], rank = a.shape[0], out = b.shape[0];
  const int64_t cols = dy.shape[1];
  const View v(workspace.data, u.dtype, u.shape);
  Gemm(stream, rows, rank, out, Factor(dy, column, cols), Factor(b, 0, rank), Result(v, 0, rank),
       {.scale = scale});
  Gemm(stream, rows, in, rank, Factor(v, 0, rank), Factor(a, 0, in), Result(dx, 0, in),
       {.added = dx.data});
  if (da) {
    Gemm(stream, rank, in, rows, Transposed(v, 0, rank), Factor(x, 0, in), Result(*da, 0, in),
         {.added = da->data});
  }
  if (db) {
    Gemm(stream, out, rank, rows, Transposed(dy, column, cols), Factor(u, 0, rank),
         Result(*db, 0, rank), {.scale = scale, .added = db->data});
  }
}

}  // namespace fsdp
