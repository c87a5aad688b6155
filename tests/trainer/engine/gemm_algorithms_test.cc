#include "trainer/engine/gemm_algorithms.h"

#include <gtest/gtest.h>

#include "tests/emulated/cublaslt.h"
#include "trainer/core/errors.h"
#include "trainer/ops/cuda/cublaslt.h"
#include "trainer/runtime/choose_device.h"

namespace fsdp {
namespace {

GemmShape Square(int64_t n) {
  return {.m = n, .n = n, .k = n, .dtype = DType::kBFloat16, .result = DType::kBFloat16};
}

GemmAlgorithms Some() {
  GemmAlgorithms some{"cuBLASLt 13.1.0", "NVIDIA \"H200\"", true, 124, {}};
  GemmAlgorithms::Choice choice;
  for (size_t i = 0; i < choice.algorithm.data.size(); ++i) choice.algorithm.data[i] = ~(i << 60);
  choice.algorithm.workspace = 12345;
  choice.seconds = 0.00123;
  some.by_shape["8x8x8 nn bf16 to bf16"] = choice;
  some.by_shape["16x8x8 nt bf16 to fp32, bias, gelu"] = {};
  return some;
}

TEST(GemmAlgorithms, JsonReadsBack) {
  const std::optional<GemmAlgorithms> read = ParseGemmAlgorithms(ToJson(Some()));
  ASSERT_TRUE(read);
  EXPECT_EQ(*read, Some());
  EXPECT_TRUE(ParseGemmAlgorithms(ToJson({})));
  GemmAlgorithms all = Some();
  all.multiprocessors = 0;
  EXPECT_FALSE(all.IsOf(Some()));
}

// A file of a cache may have been cut off, or be anybody's.
TEST(GemmAlgorithms, WhatIsNoneIsNone) {
  const std::string json = ToJson(Some());
  for (size_t n = 0; n < json.size(); ++n) EXPECT_FALSE(ParseGemmAlgorithms(json.substr(0, n)));
  for (const char* text : {"[]", "{}", "1", R"({"library": 1, "gpu": "", "shapes": {}})"}) {
    EXPECT_FALSE(ParseGemmAlgorithms(text)) << text;
  }
  std::string wrong = json;
  wrong.replace(wrong.find("\"algorithm\": \"") + 14, 1, "x");
  EXPECT_FALSE(ParseGemmAlgorithms(wrong));
}

TEST(GemmAlgorithms, AreTimedTakenUpAndRefused) {
  const auto device = CreateDevice(DeviceType::kCuda, {});
  const auto open = [] { return OpenCublasLt(FindGpuLibrary(GpuLibrary::kCublasLt, {}), false); };
  const std::vector<GemmShape> shapes = {Square(16), Square(32)};
  GemmAlgorithms timed;
  TimeAlgorithms(*device, shapes, *open(), &timed);
  ASSERT_EQ(timed.by_shape.size(), 2u);
  for (const auto& [shape, choice] : timed.by_shape) EXPECT_GT(choice.seconds, 0) << shape;

  const auto library = open();
  EXPECT_TRUE(UseKnown(timed, shapes, *library).empty());
  for (const GemmLibrary::Usage& usage : library->Usages()) EXPECT_TRUE(usage.chosen);
  EXPECT_EQ(library->Usages().size(), 2u);
  // One that is another shape's is timed again, and so is one that nobody knows.
  timed.by_shape[Square(16).Text()] = timed.by_shape[Square(32).Text()];
  timed.by_shape.erase(Square(32).Text());
  EXPECT_EQ(UseKnown(timed, shapes, *open()), shapes);
}

// The first candidate is the fastest; but a GPU that was idle is slow at first.
TEST(GemmAlgorithms, AreTimedOnAWarmClock) {
  const auto device = CreateDevice(DeviceType::kCuda, {});
  const auto library = OpenCublasLt(FindGpuLibrary(GpuLibrary::kCublasLt, {}), false);
  const GemmAlgorithm fastest = library->Candidates(Square(16), 1).at(0);
  CoolEmulatedClock(/*calls=*/1, /*ms=*/60);
  GemmAlgorithms timed;
  TimeAlgorithms(*device, {Square(16)}, *library, &timed);
  CoolEmulatedClock(0, 0);
  ASSERT_EQ(timed.by_shape.size(), 1u);
  EXPECT_EQ(timed.by_shape.begin()->second.algorithm, fastest);
}

}  // namespace
}  // namespace fsdp
