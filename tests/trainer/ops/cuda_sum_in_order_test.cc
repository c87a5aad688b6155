// The sum over ranks of a GPU, bit for bit against that of the CPU's transports, on the emulator.
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "tests/emulated/simt.h"
#include "tests/testing/harness.h"
#include "trainer/comm/nccl/sum_in_order.h"
#include "trainer/comm/reduce.h"
#include "trainer/core/philox.h"

namespace fsdp {
namespace {

const LaunchedKernels launched_kernels(__FILE__, {"sum_in_order_cuda"});

using Bytes = std::vector<std::byte>;

// Each rank's numbers have very different sizes, so that every order has another sum.
Bytes Numbers(DType dtype, int64_t n, int rank) {
  const RandomStream random(5, "sum in order", rank);
  Bytes bytes(n * SizeOf(dtype));
  for (int64_t i = 0; i < n; ++i) {
    const float value = random.Normal(i) * static_cast<float>(1 << random.Below(n + i, 12));
    const BFloat16 bf16(value);
    const Float16 fp16(value);
    const void* const from = dtype == DType::kFloat32    ? static_cast<const void*>(&value)
                             : dtype == DType::kBFloat16 ? static_cast<const void*>(&bf16.bits)
                                                         : static_cast<const void*>(&fp16.bits);
    std::memcpy(bytes.data() + i * SizeOf(dtype), from, SizeOf(dtype));
  }
  return bytes;
}

struct Case {
  RankSum sum;
  int64_t offset = 0;  // Elements, of all tensors: 0 is aligned.
  bool in_place = false;
  int64_t out_offset = 0;  // The result's, larger than the others'.
};

void Check(const Case& c) {
  const RankSum& sum = c.sum;
  const int64_t element = SizeOf(sum.dtype), size = SizeOf(sum.result);
  std::vector<Bytes> ranks;
  std::vector<const std::byte*> from;
  alignas(16) std::byte own[1 << 14], others[1 << 16], out[1 << 14];
  const int64_t begin = c.offset * element, out_begin = (c.offset + c.out_offset) * size;
  std::memset(others, 0xff, sizeof(others));  // NaN, also in this rank's place.
  for (int r = 0; r < sum.size; ++r) ranks.push_back(Numbers(sum.dtype, sum.n, r));
  for (int r = 0; r < sum.size; ++r) {
    from.push_back(ranks[r].data());
    std::byte* const to = r == sum.rank ? own + begin : others + begin + r * sum.stride * element;
    std::memcpy(to, ranks[r].data(), ranks[r].size());
  }
  Bytes want(sum.n * size);
  SumInOrder(sum.dtype, from, sum.n, sum.result, want.data());
  std::byte* const to = c.in_place ? own + begin : out + out_begin;
  std::memset(to + want.size(), 0x5a, size);
  SumInOrderCuda(nullptr, sum, own + begin, others + begin, to);
  EXPECT_EQ(std::memcmp(to, want.data(), want.size()), 0);
  EXPECT_EQ(to[want.size()], std::byte{0x5a}) << "wrote too far";
}

TEST(SumInOrderCuda, HasTheBitsOfTheCpu) {
  for (const EmulatedOrder order : {EmulatedOrder::kGreedy, EmulatedOrder::kGreedyReverse}) {
    SetEmulatedOrder(order);
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
      for (const DType result : {dtype, DType::kFloat32}) {
        for (const int ranks : {1, 2, 3, 5}) {
          for (const int64_t n : {1, 7, 8, 2049}) {
            for (const int64_t offset : {0, 1}) {
              for (const int rank : {0, ranks - 1}) {
                SCOPED_TRACE(::testing::Message()
                             << Name(dtype) << " into " << Name(result) << ", " << n << " of rank "
                             << rank << " of " << ranks << ", offset " << offset);
                const RankSum sum{dtype, result, rank, ranks, n, /*stride=*/(n + 7) / 8 * 8};
                Check({sum, offset});
                Check({sum, offset, /*in_place=*/result == dtype});
                RankSum close = sum;
                close.stride = n;
                Check({close, offset});
                Check({sum, offset, /*in_place=*/false, /*out_offset=*/1});
              }
            }
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace fsdp
