#include "trainer/ops/cuda/gemm/gemm_fma.h"
#include "trainer/ops/cuda/gemm/gemm_mma.h"
#include "trainer/ops/expert_backends.h"
#include "trainer/ops/gemm_operand.h"
#include "trainer/ops/grouped_linear.h"
#include "trainer/runtime/kernel.h"

namespace fsdp {
namespace {

// Products of groups. `product` is one of all rows; a block narrows it to its group.
struct GroupedArgs {
  GemmArgs product;
  const int32_t* offsets;
  int experts;
  int64_t outputs;  // Rows of an expert's weights.
};

// Moves to stored row `first`.
__device__ inline void Skip(GemmTensor& x, int64_t first) {
  if (x.rows != nullptr) {
    x.rows += first;
  } else if (x.data != nullptr) {
    x.data = static_cast<char*>(x.data) +
             first * x.stride * (x.dtype == DType::kFloat32 ? sizeof(float) : sizeof(uint16_t));
  }
}

struct TileOfGroup {
  int expert;  // -1: there are fewer tiles.
  int tile;
};

// The tile of this number among those of all groups, kTile rows each. A warp's lanes agree.
template <int kTile>
__device__ TileOfGroup FindTile(const int32_t* offsets, int experts, int number) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  for (int first = 0; first < experts; first += kWarp) {
    const int e = first + lane;
    const int rows = e < experts ? offsets[e + 1] - offsets[e] : 0;
    const int tiles = (rows + kTile - 1) / kTile;
    int end = tiles;  // This group's tiles, from the first lane's on.
#pragma unroll
    for (int step = 1; step < kWarp; step *= 2) {
      const int before = __shfl_up_sync(kAllLanes, end, step);
      if (lane >= step) end += before;
    }
    const uint32_t found = __ballot_sync(kAllLanes, end > number);
    if (found != 0) {
      const int at = __ffs(static_cast<int>(found)) - 1;
      return {first + at, number - __shfl_sync(kAllLanes, end - tiles, at)};
    }
    number -= __shfl_sync(kAllLanes, end, kWarp - 1);
  }
  return {-1, 0};
}

// The block's part of C's rows. Returns whether it has one.
template <int kTile>
__device__ bool OfRows(GroupedArgs& args, GemmCorner& corner) {
  GemmArgs& p = args.product;
  corner = CornerOf<kTile>(static_cast<int>(blockIdx.x), p);  // All groups' tiles.
  const TileOfGroup found =
      FindTile<kTile>(args.offsets, args.experts, static_cast<int>(corner.row / kTile));
  if (found.expert < 0) return false;
  const int64_t first = args.offsets[found.expert];
  p.m = args.offsets[found.expert + 1] - first;
  Skip(p.a, first);
  Skip(p.c, first);
  Skip(p.added, first);
  Skip(p.b, found.expert * args.outputs);
  corner.row = int64_t{kTile} * found.tile;
  return true;
}

// The block's part of an expert's gradient.
template <int kTile>
__device__ bool OfWeights(GroupedArgs& args, GemmCorner& corner) {
  GemmArgs& p = args.product;
  corner = CornerOf<kTile>(static_cast<int>(blockIdx.x), p);
  const auto expert = static_cast<int64_t>(blockIdx.y);
  const int64_t first = args.offsets[expert];
  p.k = args.offsets[expert + 1] - first;
  Skip(p.a, first);
  Skip(p.b, first);
  Skip(p.c, expert * p.m);
  Skip(p.added, expert * p.m);
  return p.k > 0;
}

enum class GroupedForm { kForward, kDx, kDw };

template <int kTile, GroupedForm kForm>
__device__ bool Narrow(GroupedArgs& args, GemmCorner& corner) {
  if constexpr (kForm == GroupedForm::kDw) {
    return OfWeights<kTile>(args, corner);
  } else {
    return OfRows<kTile>(args, corner);
  }
}

template <int kTile, GroupedForm kForm>
__global__ void GroupedFma(GroupedArgs args) {
  GemmCorner corner;
  if (!Narrow<kTile, kForm>(args, corner)) return;
  MultiplyByFma<kTile, true>(args.product, corner);
}

template <typename T, int kTile, GroupedForm kForm>
__global__ void GroupedMma(GroupedArgs args) {
  GemmCorner corner;
  if (!Narrow<kTile, kForm>(args, corner)) return;
  MultiplyByMma<T, kTile, kForm == GroupedForm::kDw, kForm == GroupedForm::kForward, true>(
      args.product, corner);
}

template <int kTile, GroupedForm kForm>
void LaunchTiles(CudaStreamHandle stream, GroupedArgs args, bool mma) {
  GemmArgs& p = args.product;
  unsigned experts = 1;
  if constexpr (kForm == GroupedForm::kDw) {
    experts = static_cast<unsigned>(args.experts);
  } else {
    p.m = kTile * (p.m / kTile + args.experts);  // Each group may have a tile that is not full.
  }
  const dim3 grid(static_cast<unsigned>(CeilDiv(p.m, kTile) * CeilDiv(p.n, kTile)), experts);
  if (!mma) {
    return Launch<GroupedFma<kTile, kForm>>(stream, grid, dim3(kFmaThreads), kFmaBytes<kTile>,
                                            args);
  }
  const auto launch = [&](auto is) {
    using T = typename decltype(is)::type;
    Launch<GroupedMma<T, kTile, kForm>>(stream, grid, dim3(kMmaThreads), kMmaBytes<kTile>, args);
  };
  p.a.dtype == DType::kBFloat16 ? launch(Is<__nv_bfloat16>()) : launch(Is<__half>());
}

// A product of all groups' rows, and the factors' sources.
struct GroupedProduct {
  int64_t m, n, k;
  GemmOperand a, b;
  GemmResult c;
  std::optional<ConstView> a_sources, b_sources;
};

template <GroupedForm kForm>
void LaunchGroups(CudaStreamHandle stream, const GroupedProduct& p, const ConstView& offsets,
                  int64_t outputs, bool adds, float scale) {
  const int64_t experts = offsets.NumElements() - 1;
  constexpr bool kDw = kForm == GroupedForm::kDw;
  if (p.m == 0 || p.n == 0) return;
  const bool mma = p.a.dtype == p.b.dtype && p.a.dtype != DType::kFloat32;
  const int pack = mma ? 8 : kFour;
  const auto factor = [&](const GemmOperand& x, const std::optional<ConstView>& sources) {
    GemmTensor tensor = GemmMatrix(x.data, x.stride, x.dtype, pack, x.transposed);
    tensor.rows = DataOrNull<int32_t>(sources);
    return tensor;
  };
  const GemmTensor c = GemmMatrix(p.c.data, p.c.stride, p.c.dtype, pack);
  const GemmArgs product{.m = p.m,
                         .n = p.n,
                         .k = p.k,
                         .a = factor(p.a, p.a_sources),
                         .b = factor(p.b, p.b_sources),
                         .c = c,
                         .bias = {},
                         .added = adds ? c : GemmTensor{},
                         .gelu = {},
                         .gelu_of = {},
                         .scale = scale};
  const GroupedArgs args{product, offsets.As<int32_t>(), static_cast<int>(experts), outputs};
  const bool large = GroupedTile(p.m, p.n, experts, kDw) == 128;
  large ? LaunchTiles<128, kForm>(stream, args, mma) : LaunchTiles<64, kForm>(stream, args, mma);
}

}  // namespace

void GroupedForwardCuda(CudaStreamHandle stream, const ConstView& x,
                        const std::optional<ConstView>& sources, const ConstView& w,
                        const ConstView& offsets, const View& y, const GroupedOptions& options) {
  const int64_t in = x.shape[1], out = w.shape[0] / (offsets.NumElements() - 1);
  const GroupedProduct product{.m = y.shape[0],
                               .n = out,
                               .k = in,
                               .a = Factor(x, 0, in),
                               .b = Transposed(w, 0, in),
                               .c = Result(y, options.column, y.shape[1]),
                               .a_sources = sources,
                               .b_sources = {}};
  LaunchGroups<GroupedForm::kForward>(stream, product, offsets, out, options.add, options.scale);
}

void GroupedDxCuda(CudaStreamHandle stream, const ConstView& dy,
                   const std::optional<ConstView>& sources, const ConstView& w,
                   const ConstView& offsets, const View& dx, const GroupedOptions& options) {
  const int64_t in = dx.shape[1], out = w.shape[0] / (offsets.NumElements() - 1);
  const GroupedProduct product{.m = dx.shape[0],
                               .n = in,
                               .k = out,
                               .a = Factor(dy, options.column, dy.shape[1]),
                               .b = Factor(w, 0, in),
                               .c = Result(dx, 0, in),
                               .a_sources = sources,
                               .b_sources = {}};
  LaunchGroups<GroupedForm::kDx>(stream, product, offsets, out, options.add, options.scale);
}

void GroupedDwCuda(CudaStreamHandle stream, const ConstView& dy,
                   const std::optional<ConstView>& dy_sources, const ConstView& x,
                   const std::optional<ConstView>& x_sources, const ConstView& offsets,
                   const View& dw, const GroupedOptions& options) {
  const int64_t in = x.shape[1], out = dw.shape[0] / (offsets.NumElements() - 1);
  const GroupedProduct product{.m = out,
                               .n = in,
                               .k = 0,
                               .a = Transposed(dy, options.column, dy.shape[1]),
                               .b = Factor(x, 0, in),
                               .c = Result(dw, 0, in),
                               .a_sources = dy_sources,
                               .b_sources = x_sources};
  LaunchGroups<GroupedForm::kDw>(stream, product, offsets, out, true, options.scale);
}

}  // namespace fsdp
