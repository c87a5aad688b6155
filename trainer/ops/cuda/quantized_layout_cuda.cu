#include <algorithm>

#include "trainer/ops/cuda/launch.h"
#include "trainer/ops/quantize_backends.h"

namespace fsdp {
namespace {

// Rows travel as arguments, as those of element_rules_cuda.cu do.
struct Piece {
  QuantizedRow rows[kQuantizedRowsOfLaunch];
};
static_assert(sizeof(Piece) <= 4000);

__global__ void WriteRowsKernel(const Piece piece, int count, QuantizedRow* table) {
  const int i = static_cast<int>(threadIdx.x);
  if (i < count) table[i] = piece.rows[i];
}

}  // namespace

void WriteQuantizedRowsCuda(CudaStreamHandle stream, const std::vector<QuantizedRow>& rows,
                            const View& table) {
  for (size_t at = 0; at < rows.size(); at += kQuantizedRowsOfLaunch) {
    const size_t count = std::min<size_t>(kQuantizedRowsOfLaunch, rows.size() - at);
    Piece piece;
    std::copy_n(rows.begin() + at, count, piece.rows);
    Launch<WriteRowsKernel>(stream, 1, kQuantizedRowsOfLaunch, 0, piece, static_cast<int>(count),
                            table.As<QuantizedRow>() + at);
  }
}

}  // namespace fsdp
