#include "trainer/runtime/kernel.h"

#include <gtest/gtest.h>

#include <memory>

namespace fsdp {
namespace {

static_assert(kHoldsAddresses<View> && kHoldsAddresses<ConstView>);
static_assert(kHoldsAddresses<std::byte*> && kHoldsAddresses<const std::byte*>);
static_assert(kHoldsAddresses<std::optional<std::vector<View>>>);
static_assert(kHoldsAddresses<std::array<ConstView, 2>>);
static_assert(!kHoldsAddresses<int> && !kHoldsAddresses<std::vector<double>>);
static_assert(!kHoldsAddresses<float*> && !kHoldsAddresses<Shape>);

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
