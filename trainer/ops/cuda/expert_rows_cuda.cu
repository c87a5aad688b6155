#include "trainer/ops/cuda/elements.h"
#include "trainer/ops/expert_backends.h"
#include "trainer/runtime/kernel.h"

namespace fsdp {
namespace {

constexpr int kThreads = 1024, kWarps = kThreads / kWarp;
constexpr int kColumns = 4;  // Per thread.

// Block e finds expert e's rows; a last one, the rows of nobody. Each warp has choices side by
// side, so that rows are in the order of choices. Every block counts the choices of lower experts.
__global__ void __launch_bounds__(kThreads)
    GroupByExpert(const int32_t* choices, int count, int per_token, int experts, int32_t* offsets,
                  int32_t* tokens, int32_t* places) {
  __shared__ int of_warps[2][kWarps];
  const int expert = static_cast<int>(blockIdx.x), warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int each = (count + kThreads - 1) / kThreads * kWarp;
  const int first = warp * each, last = min(first + each, count);
  int below = 0, own = 0;
  for (int i = first; i < last; i += kWarp) {
    const int choice = i + lane < last ? choices[i + lane] : -1;
    below += __popc(__ballot_sync(kAllLanes, choice >= 0 && choice < expert));
    own += __popc(__ballot_sync(kAllLanes, choice == expert));
  }
  if (lane == 0) of_warps[0][warp] = below, of_warps[1][warp] = own;
  __syncthreads();
  int begin = 0, row = 0;
  for (int w = 0; w < kWarps; ++w) {
    begin += of_warps[0][w];
    if (w < warp) row += of_warps[1][w];
  }
  if (threadIdx.x == 0) offsets[expert] = begin;
  row += begin;
  for (int i = first; i < last; i += kWarp) {
    const int choice = i + lane < last ? choices[i + lane] : experts;
    const uint32_t mine = __ballot_sync(kAllLanes, choice == expert);
    if (choice == expert && expert < experts) {
      const int at = row + __popc(mine & ((1u << lane) - 1));
      places[i + lane] = at;
      tokens[at] = (i + lane) / per_token;
    }
    if (choice < 0 && expert == experts) places[i + lane] = -1;
    row += __popc(mine);
  }
  if (expert < experts) return;
  for (int i = begin + static_cast<int>(threadIdx.x); i < count; i += kThreads) tokens[i] = 0;
}

template <typename T>
__global__ void AddRows(const T* rows, const int32_t* places, int per_token, const T* base,
                        int64_t tokens, int64_t width, bool packs, T* out) {
  ForEachPiece(tokens, CeilDiv(width, kColumns), [&](int64_t token, int64_t piece) {
    const int64_t col = piece * kColumns, count = width - col;
    float sum[kColumns] = {};
    const auto add = [&](const T* from) {
      Elements<T, kColumns> in;
      in.Read(from, count, packs);
#pragma unroll
      for (int j = 0; j < kColumns; ++j) sum[j] += in[j];
    };
    if (base != nullptr) add(base + token * width + col);
    for (int j = 0; j < per_token; ++j) {
      const int64_t place = places[token * per_token + j];
      if (place >= 0) add(rows + place * width + col);
    }
    Elements<T, kColumns> to;
    to.Set(sum);
    to.Write(out + token * width + col, count, packs);
  });
}

}  // namespace

void GroupRowsCuda(CudaStreamHandle stream, const ConstView& choices, const View& offsets,
                   const View& tokens, const View& places) {
  const auto experts = static_cast<int>(offsets.NumElements() - 1);
  Launch<GroupByExpert>(stream, dim3(static_cast<unsigned>(experts + 1)), dim3(kThreads), 0,
                        choices.As<int32_t>(), static_cast<int>(choices.NumElements()),
                        static_cast<int>(choices.shape[1]), experts, offsets.As<int32_t>(),
                        tokens.As<int32_t>(), places.As<int32_t>());
}

void CombineRowsCuda(CudaStreamHandle stream, const ConstView& rows, const ConstView& places,
                     const std::optional<ConstView>& base, const View& out) {
  ForFloat(out.dtype, [&](auto is) {
    using T = typename decltype(is)::type;
    const int64_t tokens = out.shape[0], width = out.shape[1];
    const T* const from = DataOrNull<T>(base);
    const bool packs = InPacks(rows.As<T>(), width) && InPacks(out.As<T>(), width) &&
                       (from == nullptr || InPacks(from, width));
    const RowGrid on = GridOfRows(width > 0 ? tokens : 0, CeilDiv(width, kColumns));
    Launch<AddRows<T>>(stream, on.grid, on.block, 0, rows.As<T>(), places.As<int32_t>(),
                       static_cast<int>(places.shape[1]), from, tokens, width, packs, out.As<T>());
  });
}

}  // namespace fsdp
