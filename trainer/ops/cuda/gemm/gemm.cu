#include "trainer/ops/cuda/gemm/gemm.h"
#include "trainer/ops/cuda/gemm/gemm_block.h"
#include "trainer/ops/cuda/gemm/gemm_fma.h"
#include "trainer/ops/gemm_library.h"

namespace fsdp {
namespace {

template <int kTile>
__global__ void GemmFma(GemmArgs args) {
  MultiplyByFma<kTile, false>(args, CornerOf<kTile>(static_cast<int>(blockIdx.x), args));
}

template <int kTile>
void LaunchFma(CudaStreamHandle stream, const GemmArgs& args) {
  const dim3 grid(static_cast<unsigned>(CeilDiv(args.m, kTile) * CeilDiv(args.n, kTile)));
  Launch<GemmFma<kTile>>(stream, grid, dim3(kFmaThreads), kFmaBytes<kTile>, args);
}

// Tiles of 128 x 128 where there are enough for each multiprocessor of a large GPU to have one;
// else tiles of 64 x 64, which occupy more multiprocessors.
constexpr int64_t kManyTiles = 128;

}  // namespace

void Gemm(CudaStreamHandle stream, int64_t m, int64_t n, int64_t k, const GemmOperand& a,
          const GemmOperand& b, const GemmResult& c, const GemmEpilogue& epilogue) {
  GemmLibrary* const library = GemmOf(stream).library;
  if (library != nullptr && library->Multiply(stream, m, n, k, a, b, c, epilogue)) return;
  const bool mma =
      a.dtype == b.dtype && a.dtype != DType::kFloat32 && !(a.transposed && b.transposed);
  const int pack = mma ? 8 : kFour;
  const auto& bias = epilogue.bias;
  const GemmArgs args{.m = m,
                      .n = n,
                      .k = k,
                      .a = GemmMatrix(a.data, a.stride, a.dtype, pack, a.transposed),
                      .b = GemmMatrix(b.data, b.stride, b.dtype, pack, b.transposed),
                      .c = GemmMatrix(c.data, c.stride, c.dtype, pack),
                      .bias = bias ? GemmMatrix(bias->data, 0, bias->dtype, pack) : GemmTensor{},
                      .added = GemmMatrix(epilogue.added, c.stride, c.dtype, pack),
                      .gelu = GemmMatrix(epilogue.gelu, c.stride, c.dtype, pack),
                      .gelu_of = GemmMatrix(epilogue.gelu_of, c.stride, c.dtype, pack),
                      .scale = epilogue.scale};
  const bool large = CeilDiv(m, 128) * CeilDiv(n, 128) >= kManyTiles;
  if (mma) return GemmByMma(stream, args, large);
  large ? LaunchFma<128>(stream, args) : LaunchFma<64>(stream, args);
}

}  // namespace fsdp
