// Tests: tests/trainer/ops/cuda_sum_in_order_test.cc
#include "trainer/comm/nccl/sum_in_order.h"
#include "trainer/ops/cuda/elements.h"

namespace fsdp {
namespace {

constexpr int kBlock = 256;

template <typename T, typename Out>
__global__ void __launch_bounds__(kBlock)
    AddRanks(const T* own, const T* others, int64_t stride, int rank, int size, int64_t n,
             bool packs, float factor, Out* out) {
  constexpr int kElements = kPack<T>;
  const int64_t first = (int64_t{blockIdx.x} * kBlock + threadIdx.x) * kElements;
  if (first >= n) return;
  float sums[kElements] = {};
  for (int r = 0; r < size; ++r) {
    Elements<T, kElements> next;
    next.Read((r == rank ? own : others + r * stride) + first, n - first, packs);
#pragma unroll
    for (int i = 0; i < kElements; ++i) sums[i] = r == 0 ? next[i] : sums[i] + next[i];
  }
#pragma unroll
  for (float& sum : sums) sum *= factor;
  Elements<Out, kElements> rounded;
  rounded.Set(sums);
  rounded.Write(out + first, n - first, packs);
}

template <typename T, typename Out>
void Add(CudaStreamHandle stream, const RankSum& sum, const std::byte* own, const std::byte* others,
         std::byte* out) {
  const auto* const mine = reinterpret_cast<const T*>(own);
  const auto* const theirs = reinterpret_cast<const T*>(others);
  auto* const to = reinterpret_cast<Out*>(out);
  const bool packs = InPacks(theirs, sum.stride) && IsAligned(mine) && IsAligned(to);
  const auto blocks = static_cast<unsigned>(CeilDiv(sum.n, int64_t{kBlock} * kPack<T>));
  Launch<AddRanks<T, Out>>(stream, dim3(blocks), dim3(kBlock), 0, mine, theirs, sum.stride,
                           sum.rank, sum.size, sum.n, packs, sum.factor, to);
}

}  // namespace

void SumInOrderCuda(CudaStreamHandle stream, const RankSum& sum, const std::byte* own,
                    const std::byte* others, std::byte* out) {
  ForFloat(sum.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    if (sum.result == DType::kFloat32) {
      Add<T, float>(stream, sum, own, others, out);
    } else {
      Add<T, T>(stream, sum, own, others, out);
    }
  });
}

}  // namespace fsdp
