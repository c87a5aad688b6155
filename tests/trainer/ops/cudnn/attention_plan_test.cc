// The real cuDNN, where there is one, makes its plans for a GPU that this host lacks: by the
// description that it wrote of an H100, over a driver that does nothing.
#include "trainer/ops/cudnn/attention_plan.h"

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iostream>
#include <iterator>
#include <string>

#include "tests/testing/everything.h"
#include "trainer/core/errors.h"
#include "trainer/ops/cudnn/attention_cudnn.h"
#include "trainer/ops/cudnn/cudnn_api.h"

namespace fsdp::cudnn {
namespace {

class AttentionPlanTest : public ::testing::Test {
 protected:
  void SetUp() override {
    // cuDNN finds a library that is already loaded by its name.
    ASSERT_NE(dlopen("tests/trainer/ops/cudnn/libcuda.so.1", RTLD_NOW | RTLD_GLOBAL), nullptr)
        << dlerror();
    const FoundApi& found = FindApi();
    if (found.api == nullptr) GTEST_SKIP() << "no cuDNN to make plans: " << found.why_not;
    api_ = found.api;
  }

  // Both plans of a shape, with q, k and v in one tensor, as models have them, or each in its own.
  void ExpectPlans(const AttentionDims& dims, DType dtype, bool deterministic, bool packed = true,
                   AttentionMask mask = AttentionMask::kCausal) {
    std::ifstream file("tests/trainer/ops/cudnn/h100.json");
    const Descriptor gpu = DevicePropertiesOf(
        *api_, std::string(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()));
    const int64_t all = (dims.heads + 2 * dims.kv_heads) * dims.head_dim;
    const int64_t q = packed ? all : dims.heads * dims.head_dim;
    const int64_t k = packed ? all : dims.kv_heads * dims.head_dim;
    AttentionProblem problem{.dtype = dtype,
                             .dims = dims,
                             .mask = mask,
                             .q_stride = q,
                             .k_stride = k,
                             .v_stride = k,
                             .dq_stride = q,
                             .dk_stride = k,
                             .dv_stride = k};
    // None wants more than is planned, or it would not have been taken.
    if (!deterministic) {  // Which forward is always.
      const AttentionPlan forward(*api_, gpu, problem);
      Say("forward", problem, forward);
      EXPECT_LE(CudnnForwardWorkspace(dims).plan - forward.workspace_bytes(), 256);
    }
    if (!BackwardTakenByCudnn(AttentionBackend::kCudnn, dims, dtype)) return;
    problem.backward = true;
    problem.deterministic = deterministic;
    const AttentionPlan backward(*api_, gpu, problem);
    Say(deterministic ? "deterministic backward" : "backward", problem, backward);
    EXPECT_LE(CudnnBackwardWorkspace(dims, deterministic).plan - backward.workspace_bytes(), 256);
  }

  static void Say(const char* what, const AttentionProblem& p, const AttentionPlan& plan) {
    std::cout << Name(p.dtype) << " " << p.dims.batch << " x " << p.dims.seq << " over "
              << p.dims.keys << ", " << p.dims.heads << ":" << p.dims.kv_heads << " x "
              << p.dims.head_dim << ": " << what << " engine " << plan.engine() << ", "
              << plan.workspace_bytes() << " bytes" << std::endl;
  }

  const Api* api_ = nullptr;
};

// The heads of Qwen2.5 0.5B, 1.5B, 3B and 7B.
// A run makes one in three of the plans, here and below.
TEST_F(AttentionPlanTest, Qwens) {
  size_t i = 0;
  for (const AttentionDims& dims : {AttentionDims{32, 1024, 14, 2, 64},
                                    {32, 1024, 12, 2, 128},
                                    {16, 1024, 16, 2, 128},
                                    {4, 1024, 28, 4, 128}}) {
    for (const bool deterministic : {false, true}) {
      if (testing::OfAnotherPart(i++, 3)) continue;
      ExpectPlans(dims, DType::kBFloat16, deterministic);
    }
    if (dims.batch == 16 || testing::OfAnotherPart(i++, 3)) continue;
    ExpectPlans(dims, DType::kFloat16, /*deterministic=*/false);
  }
}

// All that TakenByCudnn() says is.
TEST_F(AttentionPlanTest, OddShapes) {
  for (const AttentionDims& dims : {AttentionDims{1, 1, 3, 3, 8},
                                    {3, 17, 6, 2, 40},
                                    {2, 130, 5, 1, 72},
                                    {1, 1000, 3, 3, 128}}) {
    ASSERT_TRUE(TakenByCudnn(AttentionBackend::kCudnnDeterministic, dims, DType::kFloat16));
    ExpectPlans(dims, DType::kBFloat16, dims.seq == 17, dims.head_dim != 40);
  }
}

// All keys, of the number of the queries or of another.
TEST_F(AttentionPlanTest, FullMasks) {
  size_t i = 0;
  for (const AttentionDims& dims : {AttentionDims{8, 197, 12, 12, 64},
                                    {4, 128, 16, 16, 64, 512},
                                    {2, 130, 6, 2, 40, 37},
                                    {1, 1, 8, 8, 64, 512},
                                    {2, 5, 2, 1, 8, 1},
                                    {2, 33, 5, 1, 128, 1000}}) {
    for (const bool deterministic : {false, true}) {
      if (testing::OfAnotherPart(i++, 3)) continue;
      ExpectPlans(dims, DType::kBFloat16, deterministic, dims.keys == dims.seq,
                  AttentionMask::kFull);
    }
  }
}

// A plan that wants more memory than is planned for is not taken.
TEST_F(AttentionPlanTest, SaysWhyThereIsNone) {
  std::string a100 =
      R"({"maxGridSize": [2147483647, 65535, 65535], "maxBlockSize": [1024, 1024, 64],)"
      R"( "regsPerBlock": 65536, "multiProcessorCount": 108, "warpSize": 32,)"
      R"( "maxSharedMemoryPerBlock": 49152, "maxSharedMemoryPerBlockOptin": 166912,)"
      R"( "reservedSharedMemoryPerBlock": 1024, "maxRegistersPerSM": 65536, "maxCtasPerSM": 32,)"
      R"( "maxThreadsPerBlock": 1024, "maxThreadsPerSM": 2048, "pciDeviceId": 0,)"
      R"( "isTccDriver": 0, "supportCoopLaunch": 1, "smClockRateKHz": 1410000,)"
      R"( "memClockRateKHz": 1215000, "l2CacheSize": 41943040, "totalGlobalMem": 42505273344,)"
      R"( "deviceVer": 800, "driverVer": 13000, "cudaDeviceId": 0,)"
      R"( "deviceName": "NVIDIA A100-SXM4-40GB"})";
  const Descriptor gpu = DevicePropertiesOf(*api_, a100);
  const AttentionProblem problem{.backward = true,
                                 .dims = {32, 1024, 14, 2, 64},
                                 .q_stride = 1152,
                                 .k_stride = 1152,
                                 .v_stride = 1152,
                                 .dq_stride = 1152,
                                 .dk_stride = 1152,
                                 .dv_stride = 1152};
  try {
    AttentionPlan plan(*api_, gpu, problem);
    ADD_FAILURE() << "a plan of " << plan.workspace_bytes() << " bytes";
  } catch (const DeviceError& error) {
    EXPECT_NE(std::string(error.what()).find("bytes, planned are 117440768"), std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace fsdp::cudnn
