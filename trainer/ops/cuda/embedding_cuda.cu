#include "trainer/ops/cuda/elements.h"
#include "trainer/ops/feature_backends.h"

namespace fsdp {
namespace {

template <typename T>
__global__ void EmbeddingForwardRows(const int32_t* tokens, const int32_t* positions,
                                     DeviceWeight<T> wte, DeviceWeight<T> wpe, int64_t rows,
                                     int64_t cols, bool packs, T* y) {
  constexpr int kPiece = kPack<T>;
  ForEachPiece(rows, CeilDiv(cols, kPiece), [&](int64_t row, int64_t piece) {
    const int64_t first = piece * kPiece, count = cols - first;
    float sum[kPiece];
    wte.Read(tokens[row] * cols + first, count, packs, sum);
    if (positions != nullptr) {
      float position[kPiece];
      wpe.Read(positions[row] * cols + first, count, packs, position);
#pragma unroll
      for (int j = 0; j < kPiece; ++j) sum[j] += position[j];
    }
    Elements<T, kPiece> out;
    out.Set(sum);
    out.Write(y + row * cols + first, count, packs);
  });
}

// In backward a thread has this many columns of a row of a table, and adds rows of dy to them, one
// after the other. Several rows are loaded ahead.
constexpr int kColumns = 4;
constexpr int kAhead = 8;
constexpr int kThreads = 256;

struct RowOfTable {
  float sums[kColumns];

  template <typename G>
  __device__ void Read(const G* from, int64_t count, bool packs) {
    Elements<G, kColumns> before;
    before.Read(from, count, packs);
#pragma unroll
    for (int j = 0; j < kColumns; ++j) sums[j] = before[j];
  }
  template <typename T>
  __device__ void Add(const Elements<T, kColumns>& dy) {
#pragma unroll
    for (int j = 0; j < kColumns; ++j) sums[j] += dy[j];
  }
  template <typename G>
  __device__ void Write(G* to, int64_t count, bool packs) const {
    Elements<G, kColumns> after;
    after.Set(sums);
    after.Write(to, count, packs);
  }
};

// A warp for each place in the order and kWarp kColumns columns. The warp at a token's first row
// adds all rows of that token.
template <typename T, typename G>
__global__ void __launch_bounds__(kThreads)
    AddToTokens(const int32_t* tokens, const int32_t* order, const T* dy, int64_t rows,
                int64_t cols, bool packs, G* dwte) {
  const int64_t place = int64_t{blockIdx.x} * blockDim.y + threadIdx.y;
  if (place >= rows) return;
  const int32_t token = tokens[order[place]];
  if (place > 0 && tokens[order[place - 1]] == token) return;
  const int64_t step = int64_t{gridDim.y} * kWarp * kColumns;
  for (int64_t tile = int64_t{blockIdx.y} * kWarp * kColumns; tile < cols; tile += step) {
    const int64_t first = tile + threadIdx.x * kColumns, count = cols - first;
    G* const to = dwte + token * cols + first;
    RowOfTable table;
    table.Read(to, count, packs);
    int n = kWarp;
    for (int64_t begin = place; n == kWarp; begin += kWarp) {
      const int64_t mine = begin + threadIdx.x;
      const int32_t row = mine < rows ? order[mine] : 0;
      // The token's rows come first: they are side by side.
      n = __popc(__ballot_sync(kAllLanes, mine < rows && tokens[row] == token));
      for (int i = 0; i < n; i += kAhead) {
        Elements<T, kColumns> in[kAhead];
#pragma unroll
        for (int k = 0; k < kAhead; ++k) {
          const int64_t from = __shfl_sync(kAllLanes, row, i + k);
          in[k].Read(dy + from * cols + first, i + k < n ? count : 0, packs);
        }
#pragma unroll
        for (int k = 0; k < kAhead; ++k) {
          if (i + k < n) table.Add(in[k]);
        }
      }
    }
    table.Write(to, count, packs);
  }
}

// A block for each position and kThreads kColumns columns. It searches all rows for those that have
// the position. A batch has a position once per row of tokens, so nearly all of the work is
// searching, among numbers that stay in the cache.
template <typename T, typename G>
__global__ void __launch_bounds__(kThreads)
    AddToPositions(const int32_t* positions, const T* dy, int64_t rows, int64_t cols, bool packs,
                   G* dwpe) {
  constexpr int kLooks = 8, kWarps = kThreads / kWarp;
  __shared__ uint32_t found[2][kLooks * kWarps];  // A bit for each row.
  const int thread = static_cast<int>(threadIdx.x);
  const int64_t position = blockIdx.x;
  const int64_t step = int64_t{gridDim.y} * kThreads * kColumns;
  int turn = 0;
  for (int64_t tile = int64_t{blockIdx.y} * kThreads * kColumns; tile < cols; tile += step) {
    const int64_t first = tile + thread * kColumns, count = cols - first;
    G* const to = dwpe + position * cols + first;
    RowOfTable table;
    table.Read(to, count, packs);
    for (int64_t begin = 0; begin < rows; begin += kLooks * kThreads, turn ^= 1) {
#pragma unroll
      for (int look = 0; look < kLooks; ++look) {
        const int64_t row = begin + look * kThreads + thread;
        const uint32_t here = __ballot_sync(kAllLanes, row < rows && positions[row] == position);
        if (thread % kWarp == 0) found[turn][look * kWarps + thread / kWarp] = here;
      }
      __syncthreads();
      for (int word = 0; word < kLooks * kWarps; ++word) {
        for (uint32_t left = found[turn][word]; left != 0; left &= left - 1) {
          const int64_t row = begin + word * kWarp + __ffs(static_cast<int>(left)) - 1;
          Elements<T, kColumns> in;
          in.Read(dy + row * cols + first, count, packs);
          table.Add(in);
        }
      }
    }
    table.Write(to, count, packs);
  }
}

unsigned Tiles(int64_t cols, int64_t of) {
  return static_cast<unsigned>(std::min<int64_t>(CeilDiv(cols, of), 65535));
}

}  // namespace

void EmbeddingForwardCuda(CudaStreamHandle stream, const ConstView& tokens,
                          const std::optional<ConstView>& positions, const ConstView& wte,
                          const std::optional<ConstView>& wpe, const View& y) {
  ForFloat(y.dtype, [&](auto is) {
    using T = typename decltype(is)::type;
    const int64_t rows = y.shape[0], cols = y.shape[1];
    const RowGrid on = GridOfRows(rows, CeilDiv(cols, kPack<T>));
    const bool packs =
        InPacks(y.As<T>(), cols) && IsAligned(wte.data) && (!wpe || IsAligned(wpe->data));
    Launch<EmbeddingForwardRows<T>>(stream, on.grid, on.block, 0, tokens.As<int32_t>(),
                                    positions ? positions->As<int32_t>() : nullptr,
                                    WeightOf<T>(wte), WeightOf<T>(wpe ? *wpe : wte), rows, cols,
                                    packs, y.As<T>());
  });
}

void EmbeddingBackwardCuda(CudaStreamHandle stream, const ConstView& tokens, const ConstView& order,
                           const std::optional<ConstView>& positions, const ConstView& dy,
                           const std::optional<View>& dwte, const std::optional<View>& dwpe) {
  const int64_t rows = dy.shape[0], cols = dy.shape[1];
  const auto with_dtypes = [&](const std::optional<View>& table, const auto& launch) {
    if (!table) return;
    ForFloat(dy.dtype, [&](auto is) {
      ForFloat(table->dtype, [&](auto table_is) {
        using T = typename decltype(is)::type;
        using G = typename decltype(table_is)::type;
        launch(dy.As<T>(), InPacks(dy.As<T>(), cols) && InPacks(table->As<G>(), cols),
               table->As<G>());
      });
    });
  };
  with_dtypes(dwte, [&]<typename T, typename G>(const T* in, bool packs, G* table) {
    const dim3 block(kWarp, kThreads / kWarp);
    const dim3 grid(static_cast<unsigned>(CeilDiv(rows, block.y)), Tiles(cols, kWarp * kColumns));
    Launch<AddToTokens<T, G>>(stream, grid, block, 0, tokens.As<int32_t>(), order.As<int32_t>(), in,
                              rows, cols, packs, table);
  });
  with_dtypes(dwpe, [&]<typename T, typename G>(const T* in, bool packs, G* table) {
    const dim3 grid(static_cast<unsigned>(dwpe->shape[0]), Tiles(cols, kThreads * kColumns));
    Launch<AddToPositions<T, G>>(stream, grid, kThreads, 0, positions->As<int32_t>(), in, rows,
                                 cols, packs, table);
  });
}

}  // namespace fsdp
