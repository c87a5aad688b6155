#include "trainer/ops/cuda/gemm/gemm.h"
#include "trainer/ops/cuda/gemm/gemm_block.h"
#include "trainer/ops/cuda/ptx.h"
#include "trainer/ops/gemm_library.h"

namespace fsdp {
namespace {

// Products by multiply-add. 16 x 16 threads share a tile of C; each has 4 x 4 elements of each
// quarter (of the whole, where the tile is 64 x 64). Slices of kDepth along k lie in shared memory
// as floats, one k per row. The next slice is loaded while one is multiplied.
constexpr int kSide = 16, kThreads = kSide * kSide, kDepth = 16, kFour = 4;
constexpr int kSpan = kSide * kFour;  // Rows or columns of C that the threads cover at once.

// Rows of a slice begin at packs, and a column's elements are in different banks.
template <int kTile>
constexpr int kSliceStride = kTile + 4;
template <int kTile>  // Two slices of two factors.
constexpr size_t kSharedBytes = sizeof(float) * 2 * 2 * kDepth* kSliceStride<kTile>;

// This thread's packs of a slice: their places and their elements.
template <int kTile>
struct SlicePacks {
  static constexpr int kPacks = kTile * kDepth / kFour / kThreads;
  float at[kPacks][kFour];

  // `along_k`: the factor's rows, as stored, run along k.
  template <typename Body>
  __device__ void ForEach(bool along_k, const Body& body) {
    const int packs = (along_k ? kDepth : kTile) / kFour;  // Per row.
#pragma unroll
    for (int i = 0; i < kPacks; ++i) {
      const int index = i * kThreads + static_cast<int>(threadIdx.x);
      body(at[i], index / packs, index % packs * kFour);
    }
  }
  // From tile row `first` and k on, of `size` and `depth`; beyond them zeros.
  __device__ void Load(const GemmTensor& x, bool along_k, int64_t first, int64_t size, int64_t k,
                       int64_t depth) {
    const int64_t rows = along_k ? size : depth, cols = along_k ? depth : size;
    ForEach(along_k, [&](float(&four)[kFour], int r, int c) {
      const int64_t row = (along_k ? first : k) + r, col = (along_k ? k : first) + c;
      const int64_t left = row < rows ? cols - col : 0;
      const int n = left < 0 ? 0 : left < kFour ? static_cast<int>(left) : kFour;
      if (n == 0) {
        for (float& element : four) element = 0;
      } else {
        AtElement(x, row, col, [&](const auto* from) { ReadElements(from, x.packs, n, four); });
      }
    });
  }
  __device__ void Store(bool along_k, float* slice) {
    ForEach(along_k, [&](const float(&four)[kFour], int r, int c) {
      if (along_k) {
#pragma unroll
        for (int e = 0; e < kFour; ++e) slice[(c + e) * kSliceStride<kTile> + r] = four[e];
      } else {
        WriteElements(four, /*packs=*/true, kFour, slice + r * kSliceStride<kTile> + c);
      }
    });
  }
};

template <int kTile>
__global__ void GemmFma(GemmArgs args) {
  constexpr int kQuarters = kTile / kSpan, kEach = kQuarters * kFour;
  constexpr int kSlice = kDepth * kSliceStride<kTile>;
  const GemmCorner corner = CornerOf<kTile>(static_cast<int>(blockIdx.x), args);
  float* const shared = DynamicShared<float>();
  const auto a_slice = [&](int slice) { return shared + slice % 2 * 2 * kSlice; };
  const auto b_slice = [&](int slice) { return a_slice(slice) + kSlice; };
  const bool a_along_k = !args.a.transposed, b_along_k = args.b.transposed;
  SlicePacks<kTile> a_packs, b_packs;
  const auto load = [&](int slice) {
    const int64_t k = int64_t{kDepth} * slice;
    a_packs.Load(args.a, a_along_k, corner.row, args.m, k, args.k);
    b_packs.Load(args.b, b_along_k, corner.col, args.n, k, args.k);
  };
  const auto store = [&](int slice) {
    a_packs.Store(a_along_k, a_slice(slice));
    b_packs.Store(b_along_k, b_slice(slice));
  };

  const int row = static_cast<int>(threadIdx.x) / kSide * kFour;
  const int col = static_cast<int>(threadIdx.x) % kSide * kFour;
  const int slices = static_cast<int>(CeilDiv(args.k, kDepth));
  float sums[kEach][kQuarters][kFour] = {};
  if (slices > 0) {
    load(0);
    store(0);
  }
  __syncthreads();
  for (int slice = 0; slice < slices; ++slice) {
    if (slice + 1 < slices) load(slice + 1);
    const float *const a_at = a_slice(slice), *const b_at = b_slice(slice);
#pragma unroll
    for (int k = 0; k < kDepth; ++k) {
      float a[kQuarters][kFour], b[kQuarters][kFour];
#pragma unroll
      for (int q = 0; q < kQuarters; ++q) {
        const int at = k * kSliceStride<kTile> + q * kSpan;
        ReadElements(a_at + at + row, /*packs=*/true, kFour, a[q]);
        ReadElements(b_at + at + col, /*packs=*/true, kFour, b[q]);
      }
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
#pragma unroll
        for (int j = 0; j < kEach; ++j) {
          float& sum = sums[i][j / kFour][j % kFour];
          sum = __fmaf_rn(a[i / kFour][i % kFour], b[j / kFour][j % kFour], sum);
        }
      }
    }
    if (slice + 1 < slices) store(slice + 1);
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
#pragma unroll
    for (int q = 0; q < kQuarters; ++q) {
      FinishSums(args, corner.row + i / kFour * kSpan + row + i % kFour,
                 corner.col + q * kSpan + col, sums[i][q]);
    }
  }
}

template <int kTile>
void LaunchFma(CudaStreamHandle stream, const GemmArgs& args) {
  const dim3 grid(static_cast<unsigned>(CeilDiv(args.m, kTile) * CeilDiv(args.n, kTile)));
  Launch<GemmFma<kTile>>(stream, grid, dim3(kThreads), kSharedBytes<kTile>, args);
}

// `pack`: elements that a kernel reads or writes at once, 16 bytes at most.
GemmTensor Matrix(const void* data, int64_t stride, DType dtype, int pack,
                  bool transposed = false) {
  const int64_t bytes = std::min<int64_t>(16, pack * SizeOf(dtype));
  const bool packs =
      reinterpret_cast<uintptr_t>(data) % bytes == 0 && stride * SizeOf(dtype) % bytes == 0;
  return {const_cast<void*>(data), stride, dtype, transposed, packs};
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
                      .a = Matrix(a.data, a.stride, a.dtype, pack, a.transposed),
                      .b = Matrix(b.data, b.stride, b.dtype, pack, b.transposed),
                      .c = Matrix(c.data, c.stride, c.dtype, pack),
                      .bias = bias ? Matrix(bias->data, 0, bias->dtype, pack) : GemmTensor{},
                      .added = Matrix(epilogue.added, c.stride, c.dtype, pack),
                      .gelu = Matrix(epilogue.gelu, c.stride, c.dtype, pack),
                      .gelu_of = Matrix(epilogue.gelu_of, c.stride, c.dtype, pack),
                      .scale = epilogue.scale};
  const bool large = CeilDiv(m, 128) * CeilDiv(n, 128) >= kManyTiles;
  if (mma) return GemmByMma(stream, args, large);
  large ? LaunchFma<128>(stream, args) : LaunchFma<64>(stream, args);
}

}  // namespace fsdp
