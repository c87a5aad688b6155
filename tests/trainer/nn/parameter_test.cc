#include "trainer/nn/parameter.h"

#include <gtest/gtest.h>

#include <optional>
#include <stdexcept>

namespace fsdp {
namespace {

TEST(ParameterDeathTest, HasAnAddressOnlyWhileBound) {
  Parameter p("wte.weight", Shape{2, 3}, {}, true);
  EXPECT_DEATH(p.value(), "wte.weight is used while its unit is not gathered");
  EXPECT_DEATH(p.grad(), "wte.weight is given a gradient outside its unit's backward");
  std::byte memory[24];
  const View value(memory, DType::kBFloat16, p.shape()), grad(memory, DType::kFloat32, p.shape());
  p.Bind(value, {});
  EXPECT_EQ(p.value().data, memory);
  EXPECT_EQ(p.value().shape, (Shape{2, 3}));
  EXPECT_DEATH(p.grad(), "outside");
  p.Bind(value, grad);
  EXPECT_EQ(p.grad().data, memory);
  p.Bind({}, {});
  EXPECT_DEATH(p.value(), "not gathered");
  EXPECT_DEATH(p.grad(), "outside");
  EXPECT_DEATH(p.Bind({memory, DType::kFloat32, Shape{3, 2}}, {}), "wte.weight is .2, 3., bound");
}

// Each in its own, as the executor says.
TEST(ParameterTest, HasTheDTypesThatItIsBoundWith) {
  Parameter p("wte.weight", Shape{2, 3}, {}, true);
  std::byte memory[24];
  for (const DType value : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    for (const DType grad : {DType::kFloat32, DType::kBFloat16}) {
      p.Bind({memory, value, p.shape()}, {memory, grad, p.shape()});
      EXPECT_EQ(p.value().dtype, value);
      EXPECT_EQ(p.grad().dtype, grad);
    }
  }
}

TEST(ParameterTest, IsOneSliceUnlessToldOtherwise) {
  const Parameter p("wte.weight", Shape{2, 3}, {1, 2}, true);
  ASSERT_EQ(p.slices().size(), 1u);
  EXPECT_EQ(p.slices()[0].name, "wte.weight");
  EXPECT_EQ(p.slices()[0].shape, (Shape{2, 3}));
  EXPECT_EQ(p.slices()[0].begin, 0);
  EXPECT_EQ(p.slices()[0].init.stddev, 2);
  EXPECT_TRUE(p.slices()[0].decay);
}

TEST(ParameterTest, SlicesAreRuns) {
  const Parameter p("qkv", Shape{7, 3}, {{"q", 4}, {"k", 1}, {"v", 2}});
  ASSERT_EQ(p.slices().size(), 3u);
  EXPECT_EQ(p.slices()[1].shape, (Shape{1, 3}));
  EXPECT_EQ(p.slices()[1].begin, 12);
  EXPECT_EQ(p.slices()[2].shape, (Shape{2, 3}));
  EXPECT_EQ(p.slices()[2].begin, 15);
  const Parameter bias("qkv.bias", Shape{7}, {{"q.bias", 4}, {"k.bias", 3}});
  EXPECT_EQ(bias.slices()[1].shape, (Shape{3}));
  EXPECT_EQ(bias.slices()[1].begin, 4);
  EXPECT_THROW(Parameter("qkv", Shape{7, 3}, {{"q", 4}, {"k", 2}}), std::invalid_argument);
  EXPECT_THROW(Parameter("qkv", Shape{0, 3}, std::vector<ParameterSlice>{}), std::invalid_argument);
}

TEST(ParameterTest, NamesSayWhichRowsTheyAre) {
  EXPECT_EQ(NameOfRows("x.y", 0, 8, 8), "x.y");
  EXPECT_EQ(NameOfRows("x.y", 0, 4, 8), "x.y[0:4]");
  const std::optional<NamedRows> rows = RowsOfName("x[64:128].weight");
  ASSERT_TRUE(rows);
  EXPECT_EQ(rows->whole, "x.weight");
  EXPECT_EQ(rows->begin, 64);
  EXPECT_EQ(rows->end, 128);
  EXPECT_EQ(WholeName("x[64:128].weight"), "x.weight");
  for (const char* const name :
       {"x.weight", "x[3]", "x[:3]", "x[3:]", "x[4:4]", "x[5:4]", "x[-1:4]", "x[1:2", "x]1:2[",
        "x[1:2a]", "x[1:99999999999999999999]", "", "["}) {
    EXPECT_FALSE(RowsOfName(name)) << name;
    EXPECT_EQ(WholeName(name), name);
  }
}

// Every run of elements: each of its elements is in exactly one piece, which says where.
TEST(ParameterTest, PiecesHoldEachElementOnce) {
  const Parameter p("qkv", Shape{7, 3}, {{"q", 4}, {"none", 0}, {"k", 1}, {"v", 2}});
  for (int64_t begin = 0; begin <= 21; ++begin) {
    for (int64_t count = 0; begin + count <= 21; ++count) {
      int64_t at = 0;
      for (const SlicePiece& piece : SlicePieces(p, begin, count)) {
        EXPECT_EQ(piece.at, at);
        EXPECT_GT(piece.count, 0);
        EXPECT_EQ(piece.slice->begin + piece.begin, begin + at);
        EXPECT_LE(piece.begin + piece.count, piece.slice->shape.NumElements());
        at += piece.count;
      }
      EXPECT_EQ(at, count);
    }
  }
}

}  // namespace
}  // namespace fsdp
