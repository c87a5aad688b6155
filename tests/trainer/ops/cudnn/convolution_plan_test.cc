// The real cuDNN, where there is one, makes its plans for a GPU that this host lacks: by the
// description that it wrote of an H100, over a driver that does nothing.
#include "trainer/ops/cudnn/convolution_plan.h"

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iostream>
#include <iterator>
#include <string>

#include "trainer/core/errors.h"
#include "trainer/ops/cudnn/convolution_cudnn.h"
#include "trainer/ops/cudnn/cudnn_api.h"

namespace fsdp::cudnn {
namespace {

using Pass = ConvolutionCall::Pass;

class ConvolutionPlanTest : public ::testing::Test {
 protected:
  void SetUp() override {
    // cuDNN finds a library that is already loaded by its name.
    ASSERT_NE(dlopen("tests/trainer/ops/cudnn/libcuda.so.1", RTLD_NOW | RTLD_GLOBAL), nullptr)
        << dlerror();
    const FoundApi& found = FindApi();
    if (found.api == nullptr) GTEST_SKIP() << "no cuDNN to make plans: " << found.why_not;
    api_ = found.api;
  }

  // A plan of each pass. None wants more than is planned, or it would not have been taken.
  void ExpectPlans(const ConvolutionShape& shape, DType dtype) {
    std::ifstream file("tests/trainer/ops/cudnn/h100.json");
    const Descriptor gpu = DevicePropertiesOf(
        *api_, std::string(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()));
    for (const Pass pass : {Pass::kForward, Pass::kDx, Pass::kDw}) {
      const ConvolutionCall call{pass, shape, dtype, dtype};
      ASSERT_TRUE(TakenByCudnn({.cudnn = true}, call));
      try {
        const ConvolutionPlan plan(*api_, gpu, call);
        EXPECT_LE(plan.workspace_bytes(), CudnnWorkspaceOf(call).plan);
        std::cout << Name(dtype) << " " << shape.samples << " x " << shape.height << " x "
                  << shape.width << " x " << shape.in << " to " << shape.out << ", "
                  << shape.window.groups << " groups, stride " << shape.window.stride << ": "
                  << kPasses[static_cast<int>(pass)] << " engine " << plan.engine() << ", "
                  << plan.workspace_bytes() << " bytes" << std::endl;
      } catch (const DeviceError& error) {
        ADD_FAILURE() << error.what();
      }
    }
  }

  static constexpr const char* kPasses[] = {"forward", "dx", "dw"};
  const Api* api_ = nullptr;
};

ConvolutionShape Square(int64_t samples, int64_t side, int64_t in, int64_t out, int64_t stride,
                        int64_t groups) {
  return {samples, side, side, in, out, 3, 3, {stride, 1, 1, groups}};
}

// The widths of RegNets' groups, from 8 to the 1010 of the largest, and their stem.
TEST_F(ConvolutionPlanTest, RegNets) {
  ExpectPlans(Square(32, 224, 3, 32, 2, 1), DType::kBFloat16);
  ExpectPlans(Square(32, 112, 224, 224, 2, 2), DType::kBFloat16);
  ExpectPlans(Square(32, 28, 448, 448, 1, 4), DType::kFloat16);
  for (const int64_t width : {8, 16, 24, 40, 48, 56, 64, 120, 168, 232, 264, 328, 1010}) {
    for (const int64_t stride : {1, 2}) {
      ExpectPlans(Square(16, 14, 3 * width, 3 * width, stride, 3), DType::kBFloat16);
    }
  }
}

// Along the vectors of a DHEN's rows.
TEST_F(ConvolutionPlanTest, Dhens) {
  for (const int64_t width : {128, 196}) {
    ExpectPlans({64, 32, 1, width, width, 3, 1, {1, 1, 0, 1}}, DType::kBFloat16);
  }
}

// fp32 has plans that multiply it as it is.
TEST_F(ConvolutionPlanTest, Fp32) {
  ExpectPlans(Square(32, 224, 3, 32, 2, 1), DType::kFloat32);
  ExpectPlans(Square(32, 28, 448, 448, 1, 4), DType::kFloat32);
  ExpectPlans(Square(16, 14, 2020, 2020, 1, 2), DType::kFloat32);
}

// Those of the op's test (convolution_test.cc).
TEST_F(ConvolutionPlanTest, OddShapes) {
  for (const DType dtype : {DType::kBFloat16, DType::kFloat32, DType::kFloat16}) {
    for (const ConvolutionShape& shape : {ConvolutionShape{2, 5, 7, 16, 8, 3, 3, {1, 1, 1, 2}},
                                          {1, 9, 7, 8, 16, 3, 3, {2, 1, 1, 1}},
                                          {1, 7, 5, 24, 8, 3, 3, {1, 0, 0, 1}},
                                          {2, 6, 5, 16, 32, 3, 3, {2, 0, 0, 2}},
                                          {8, 5, 7, 3, 5, 3, 3, {1, 1, 1, 1}},
                                          {2, 6, 6, 16, 16, 1, 1, {2, 0, 0, 2}},
                                          {1, 9, 9, 8, 8, 3, 3, {1, 1, 1, 8}},
                                          {2, 6, 1, 8, 8, 3, 1, {1, 1, 0, 1}},
                                          {2, 9, 7, 16, 8, 3, 3, {2, 1, 1, 2}}}) {
      ExpectPlans(shape, dtype);
    }
  }
}

}  // namespace
}  // namespace fsdp::cudnn
