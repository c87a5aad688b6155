#include "trainer/ops/cuda/elements.h"
#include "trainer/ops/cuda/launch.h"
#include "trainer/ops/matrix_backends.h"

namespace fsdp {
namespace {

constexpr int kThreads = 256, kMostBlocks = 4096, kTile = 32, kTileRows = 8;

int BlocksFor(int64_t n) {
  const int64_t blocks = CeilDiv(n, kThreads);
  return static_cast<int>(blocks < kMostBlocks ? blocks : kMostBlocks);
}

template <typename From, typename To>
__global__ void MovePiece(const SpreadPiece p, bool pack, float scale, const From* from, To* to) {
  for (int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x; i < p.count;
       i += int64_t{kThreads} * gridDim.x) {
    const int64_t element = p.first + i, packed = p.packed + i;
    const int64_t spread =
        p.begin + element / p.width * p.row_pitch + element % p.width * p.column_pitch;
    if (pack) {
      to[packed] = FromFloat<To>(ToFloat(from[spread]));
    } else {
      to[spread] = FromFloat<To>(__fmul_rn(scale, ToFloat(from[packed])));
    }
  }
}

template <typename T>
__global__ void DivideElements(float eps, const float* sum, int64_t n, T* x) {
  const float factor = 1 / fmaxf(sqrtf(*sum), eps);
  for (int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x; i < n;
       i += int64_t{kThreads} * gridDim.x) {
    x[i] = FromFloat<T>(__fmul_rn(factor, ToFloat(x[i])));
  }
}

// A block has a tile of rows [32 y, ...) and columns [32 x, ...), on or below the diagonal, and
// writes that tile's mirror image, too.
template <typename T>
__global__ void SymmetricTile(int64_t m, int64_t block, float p_scale, const float* products,
                              float a_scale, const T* a, T* out) {
  if (blockIdx.x > blockIdx.y) return;
  __shared__ float tile[kTile][kTile + 1];
  const int64_t row = blockIdx.y * int64_t{kTile}, column = blockIdx.x * int64_t{kTile};
  for (int r = threadIdx.y; r < kTile; r += kTileRows) {
    const int64_t i = row + r, j = column + threadIdx.x;
    if (i >= m || j > i) continue;
    const int64_t b = i / block, end = (b + 1) * block, width = end < m ? end : m;
    tile[r][threadIdx.x] =
        __fmul_rn(p_scale, products[block * block * b * (b + 1) / 2 + (i - b * block) * width + j]);
  }
  __syncthreads();
  const auto write = [&](int64_t i, int64_t j, float value) {
    if (a != nullptr) value = __fmaf_rn(a_scale, ToFloat(a[i * m + j]), value);
    out[i * m + j] = FromFloat<T>(value);
  };
  for (int r = threadIdx.y; r < kTile; r += kTileRows) {
    const int64_t i = row + r, j = column + threadIdx.x;
    if (i < m && j <= i) write(i, j, tile[r][threadIdx.x]);
    // The mirror image: row `column + r`, column `row + x`.
    const int64_t i_above = column + r, j_above = row + threadIdx.x;
    if (j_above < m && i_above < j_above) write(i_above, j_above, tile[threadIdx.x][r]);
  }
}

template <typename Function>
void ForKept(DType dtype, const Function& f) {
  dtype == DType::kBFloat16 ? f(Is<__nv_bfloat16>()) : f(Is<float>());
}

}  // namespace

void MovePiecesCuda(CudaStreamHandle stream, const std::vector<SpreadPiece>& pieces, bool pack,
                    float scale, const ConstView& from, const View& to) {
  ForKept(from.dtype, [&](auto source) {
    ForKept(to.dtype, [&](auto target) {
      using From = typename decltype(source)::type;
      using To = typename decltype(target)::type;
      for (const SpreadPiece& piece : pieces) {
        Launch<MovePiece<From, To>>(stream, BlocksFor(piece.count), kThreads, 0, piece, pack, scale,
                                    from.As<From>(), to.As<To>());
      }
    });
  });
}

void DivideByNormCuda(CudaStreamHandle stream, float eps, const ConstView& sum, const View& x) {
  ForKept(x.dtype, [&](auto is) {
    using T = typename decltype(is)::type;
    const int64_t n = x.NumElements();
    Launch<DivideElements<T>>(stream, BlocksFor(n), kThreads, 0, eps, sum.As<float>(), n,
                              x.As<T>());
  });
}

void SymmetricSumCuda(CudaStreamHandle stream, int64_t block, float p_scale,
                      const ConstView& products, float a_scale, const ConstView& a,
                      const View& out) {
  ForKept(out.dtype, [&](auto is) {
    using T = typename decltype(is)::type;
    const int64_t m = out.shape[0];
    const auto tiles = static_cast<unsigned>(CeilDiv(m, kTile));
    Launch<SymmetricTile<T>>(stream, dim3(tiles, tiles), dim3(kTile, kTileRows), 0, m, block,
                             p_scale, products.As<float>(), a_scale, a.As<T>(), out.As<T>());
  });
}

}  // namespace fsdp
