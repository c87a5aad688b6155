#include "trainer/ops/cuda/gemm/gemm_block.h"
#include "trainer/ops/cuda/gemm/gemm_mma.h"

namespace fsdp {
namespace {

template <typename T, int kTile, bool kTransposedA, bool kTransposedB>
__global__ void GemmMma(GemmArgs args) {
  MultiplyByMma<T, kTile, kTransposedA, kTransposedB, false>(
      args, CornerOf<kTile>(static_cast<int>(blockIdx.x), args));
}

template <typename T, int kTile>
void LaunchMma(CudaStreamHandle stream, const GemmArgs& args) {
  const dim3 grid(static_cast<unsigned>(CeilDiv(args.m, kTile) * CeilDiv(args.n, kTile)));
  constexpr size_t kBytes = kMmaBytes<kTile>;
  if (args.a.transposed) {
    Launch<GemmMma<T, kTile, true, false>>(stream, grid, dim3(kMmaThreads), kBytes, args);
  } else if (args.b.transposed) {
    Launch<GemmMma<T, kTile, false, true>>(stream, grid, dim3(kMmaThreads), kBytes, args);
  } else {
    Launch<GemmMma<T, kTile, false, false>>(stream, grid, dim3(kMmaThreads), kBytes, args);
  }
}

}  // namespace

void GemmByMma(CudaStreamHandle stream, const GemmArgs& args, bool large) {
  const auto launch = [&](auto is) {
    using T = typename decltype(is)::type;
    large ? LaunchMma<T, 128>(stream, args) : LaunchMma<T, 64>(stream, args);
  };
  args.a.dtype == DType::kBFloat16 ? launch(Is<__nv_bfloat16>()) : launch(Is<__half>());
}

}  // namespace fsdp
