// The structs of ops, communicators and data that kernels are given name every address in them.
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "trainer/comm/communicator.h"
#include "trainer/core/batch.h"
#include "trainer/ops/attention.h"
#include "trainer/ops/quantized_layout.h"
#include "trainer/runtime/kernel.h"

namespace fsdp {
namespace {

static_assert(kHoldsAddresses<Batch> && kHoldsAddresses<CollectiveCall>);
static_assert(kHoldsAddresses<Heads> && kHoldsAddresses<ConstHeads>);
static_assert(kHoldsAddresses<QuantizedTable>);
static_assert(kHoldsAddresses<AttentionInputs> && kHoldsAddresses<AttentionGradients>);

View At(uintptr_t address) { return {reinterpret_cast<std::byte*>(address), DType::kInt32, {1}}; }

// Takes down each address that is visited.
struct Visit {
  std::vector<uintptr_t>& seen;
  template <typename Byte>
  void operator()(BasicView<Byte>& view) const {
    (*this)(view.data);
  }
  template <typename Byte>
  void operator()(Byte*& address) const {
    seen.push_back(reinterpret_cast<uintptr_t>(address));
  }
};

template <typename T>
std::vector<uintptr_t> Addresses(T value) {
  std::vector<uintptr_t> seen;
  ForEachAddress(value, Visit{seen});
  return seen;
}

// A member that is left out would keep the device's address.
TEST(Addresses, OfAStructAreAllFound) {
  EXPECT_EQ(Addresses(Batch{{At(1), At(2), At(3)}, At(4)}), (std::vector<uintptr_t>{1, 2, 3, 4}));
  CollectiveCall call;
  call.in = At(1).data;
  call.out = At(2).data;
  EXPECT_EQ(Addresses(call), (std::vector<uintptr_t>{1, 2}));
  EXPECT_EQ(Addresses(QuantizedTable{{}, At(1)}), std::vector<uintptr_t>{1});
  const Heads q(At(1), 0, 1), k(At(2), 0, 1), v(At(3), 0, 1);
  EXPECT_EQ(Addresses(q), std::vector<uintptr_t>{1});
  AttentionInputs in{q, k, v, At(4), {.keys = At(5)}};
  in.lengths = At(6);
  in.bias = {At(7), At(8)};
  EXPECT_EQ(Addresses(in), (std::vector<uintptr_t>{1, 2, 3, 4, 5, 6, 7, 8}));
  EXPECT_EQ(Addresses(AttentionGradients{q, k, v, At(4)}), (std::vector<uintptr_t>{1, 2, 3, 4}));
}

}  // namespace
}  // namespace fsdp
