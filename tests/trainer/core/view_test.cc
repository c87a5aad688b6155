#include "trainer/core/view.h"

#include <gtest/gtest.h>

#include <stdexcept>
#include <vector>

namespace fsdp {
namespace {

TEST(Shape, CountsElements) {
  EXPECT_EQ(Shape().NumElements(), 1);  // A scalar.
  EXPECT_EQ(Shape().rank(), 0);
  EXPECT_EQ(Shape({7}).NumElements(), 7);
  EXPECT_EQ(Shape({2, 3, 4, 5, 6}).NumElements(), 720);
  EXPECT_EQ(Shape({2, 0, 4}).NumElements(), 0);
  const std::vector<int64_t> dims{4, 5};
  const Shape shape{std::span<const int64_t>(dims)};
  EXPECT_EQ(shape, Shape({4, 5}));
  EXPECT_EQ(shape[0], 4);
  EXPECT_EQ(shape[1], 5);
}

TEST(Shape, Prints) {
  EXPECT_EQ(Shape().ToString(), "[]");
  EXPECT_EQ(Shape({2, 3}).ToString(), "[2, 3]");
}

TEST(Shape, RankIsPartOfIt) {
  EXPECT_NE(Shape({6}), Shape({6, 1}));
  EXPECT_NE(Shape({2, 3}), Shape({3, 2}));
  EXPECT_NE(Shape({0}), Shape());
}

TEST(Shape, RefusesWhatItCannotHold) {
  EXPECT_THROW(Shape({1, 1, 1, 1, 1, 1}), std::invalid_argument);
  EXPECT_THROW(Shape({3, -1}), std::invalid_argument);
}

TEST(Shape, RefusesWhatWouldOverflow) {
  const int64_t most = Shape::kMaxElements;
  EXPECT_EQ(Shape({most}).NumElements(), most);
  EXPECT_EQ(BasicView<std::byte>(nullptr, DType::kInt64, Shape({most})).bytes(), 8 * most);
  EXPECT_THROW(Shape({most + 1}), std::invalid_argument);
  EXPECT_THROW(Shape({most, 2}), std::invalid_argument);
  EXPECT_THROW(Shape({int64_t{1} << 40, int64_t{1} << 40}), std::invalid_argument);
  EXPECT_THROW(Shape({0, int64_t{1} << 40, int64_t{1} << 40}), std::invalid_argument);
}

TEST(ShapeDeathTest, HasNoOtherDimensions) {
  const Shape shape{2, 3};
  EXPECT_DEATH((void)shape[2], "dimension 2 of \\[2, 3\\]");
  EXPECT_DEATH((void)shape[-1], "dimension -1 of \\[2, 3\\]");
}

TEST(View, SlicesInElements) {
  std::byte memory[96];
  const View view(memory, DType::kBFloat16, {3, 16});
  EXPECT_EQ(view.NumElements(), 48);
  EXPECT_EQ(view.bytes(), 96);
  const View slice = view.Slice(5, 7);
  EXPECT_EQ(slice.data, memory + 10);
  EXPECT_EQ(slice.dtype, DType::kBFloat16);
  EXPECT_EQ(slice.shape, Shape({7}));
  EXPECT_EQ(slice.bytes(), 14);
}

TEST(View, ReshapeKeepsTheMemory) {
  std::byte memory[96];
  const ConstView view = View(memory, DType::kFloat32, {4, 6});
  const ConstView flat = view.Reshape({24});
  EXPECT_EQ(flat.data, memory);
  EXPECT_EQ(flat.shape, Shape({24}));
  EXPECT_DEATH((void)view.Reshape({23}), "\\[4, 6\\] as \\[23\\]");
}

TEST(View, ConstnessIsKept) {
  float memory[2] = {1, 2};
  const View view(reinterpret_cast<std::byte*>(memory), DType::kFloat32, {2});
  view.As<float>()[1] = 3;
  const ConstView read = view;
  static_assert(std::is_same_v<decltype(read.As<float>()), const float*>);
  static_assert(!std::is_convertible_v<ConstView, View>);
  EXPECT_EQ(read.As<float>()[1], 3);
}

}  // namespace
}  // namespace fsdp
