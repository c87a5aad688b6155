#include "trainer/runtime/kernel.h"

#include <gtest/gtest.h>

#include <memory>

#include "trainer/comm/communicator.h"
#include "trainer/data/batch.h"
#include "trainer/ops/attention.h"

namespace fsdp {
namespace {

static_assert(kHoldsAddresses<View> && kHoldsAddresses<ConstView>);
static_assert(kHoldsAddresses<std::byte*> && kHoldsAddresses<const std::byte*>);
static_assert(kHoldsAddresses<std::optional<std::vector<View>>>);
static_assert(kHoldsAddresses<std::array<ConstView, 2>>);
static_assert(kHoldsAddresses<Batch> && kHoldsAddresses<CollectiveCall>);
static_assert(kHoldsAddresses<Heads> && kHoldsAddresses<ConstHeads>);
static_assert(kHoldsAddresses<AttentionInputs> && kHoldsAddresses<AttentionGradients>);
static_assert(!kHoldsAddresses<int> && !kHoldsAddresses<std::vector<double>>);
static_assert(!kHoldsAddresses<float*> && !kHoldsAddresses<Shape>);

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
TEST(Kernel, EveryAddressOfAStructIsFound) {
  EXPECT_EQ(Addresses(Batch{At(1), At(2), At(3), At(4), At(5)}),
            (std::vector<uintptr_t>{1, 2, 3, 4, 5}));
  CollectiveCall call;
  call.in = At(1).data;
  call.out = At(2).data;
  EXPECT_EQ(Addresses(call), (std::vector<uintptr_t>{1, 2}));
  const Heads q(At(1), 0, 1), k(At(2), 0, 1), v(At(3), 0, 1);
  EXPECT_EQ(Addresses(q), std::vector<uintptr_t>{1});
  EXPECT_EQ(Addresses(AttentionInputs{q, k, v, At(4), {.keys = At(5)}}),
            (std::vector<uintptr_t>{1, 2, 3, 4, 5}));
  EXPECT_EQ(Addresses(AttentionGradients{q, k, v}), (std::vector<uintptr_t>{1, 2, 3}));
}

TEST(Kernel, RunsTheFunctionOnWhatTheArgumentsWere) {
  ThreadPool pool(1, false);
  std::vector<int32_t> from = {1, 2, 3}, to(3);
  const Shape shape{3};
  ConstView x{reinterpret_cast<std::byte*>(from.data()), DType::kInt32, shape};
  const View y{reinterpret_cast<std::byte*>(to.data()), DType::kInt32, shape};
  int factor = 2;
  const auto multiply = [](ThreadPool&, const ConstView& in, int by, const std::optional<View>& out,
                           const std::optional<View>& none) {
    EXPECT_FALSE(none);
    for (int i = 0; i < 3; ++i) DataOrNull<int32_t>(out)[i] = by * in.As<int32_t>()[i];
  };
  const CpuKernel kernel =
      OnCpu(multiply, x, factor, std::optional(y), std::optional<View>(std::nullopt));
  x = {};
  factor = 0;
  kernel(pool);
  kernel(pool);  // As often as one likes.
  EXPECT_EQ(to, (std::vector<int32_t>{2, 4, 6}));
}

TEST(Kernel, CopiesNothingLargeWhenItRuns) {
  ThreadPool pool(1, false);
  const auto counted = std::make_shared<int>(0);
  const auto look = [](ThreadPool&, const std::shared_ptr<int>& shared) {
    EXPECT_EQ(shared.use_count(), 2);  // The test's and the kernel's.
  };
  const CpuKernel kernel = OnCpu(look, counted);
  kernel(pool);
}

}  // namespace
}  // namespace fsdp
