// The rules of cuBLASLt's documentation, for calls that it takes or refuses. They are held to the
// emulated library, which the other tests rely on; to the real one on a GPU; and without a GPU to
// the part of the real one that needs no handle.
#include <cublasLt.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include "trainer/runtime/gpu_libraries.h"

namespace fsdp {
namespace {

constexpr int kMost = 16;
constexpr uint64_t kWorkspace = uint64_t{32} << 20;

template <typename T>
using Owned = std::unique_ptr<std::remove_pointer_t<T>, cublasStatus_t (*)(T)>;

// A member of the tests below: the library's function of that name.
#define FUNCTION(name) Function<decltype(name)>(#name)

class CublasLtRulesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    library_ = FindGpuLibrary(GpuLibrary::kCublasLt, GpuLibraryPlaces());
    if (!library_.function) GTEST_SKIP() << library_.why_not;
  }
  void TearDown() override {
    if (handle_ != nullptr) FUNCTION(cublasLtDestroy)(handle_);
  }

  template <typename Type>
  Type* Function(const char* name) const {
    auto* const function = reinterpret_cast<Type*>(library_.function(name));
    if (function == nullptr) throw std::runtime_error(library_.path + " has no " + name);
    return function;
  }

  // False without a GPU: then the test is skipped.
  bool Open() { return FUNCTION(cublasLtCreate)(&handle_) == CUBLAS_STATUS_SUCCESS; }

  Owned<cublasLtMatmulDesc_t> NewDesc() const {
    cublasLtMatmulDesc_t desc = nullptr;
    EXPECT_EQ(FUNCTION(cublasLtMatmulDescCreate)(&desc, CUBLAS_COMPUTE_32F, CUDA_R_32F),
              CUBLAS_STATUS_SUCCESS);
    return {desc, FUNCTION(cublasLtMatmulDescDestroy)};
  }
  Owned<cublasLtMatrixLayout_t> NewLayout(cudaDataType type, uint64_t rows, uint64_t cols,
                                          int64_t ld) const {
    cublasLtMatrixLayout_t layout = nullptr;
    EXPECT_EQ(FUNCTION(cublasLtMatrixLayoutCreate)(&layout, type, rows, cols, ld),
              CUBLAS_STATUS_SUCCESS);
    return {layout, FUNCTION(cublasLtMatrixLayoutDestroy)};
  }
  Owned<cublasLtMatmulPreference_t> NewPreference() const {
    cublasLtMatmulPreference_t preference = nullptr;
    EXPECT_EQ(FUNCTION(cublasLtMatmulPreferenceCreate)(&preference), CUBLAS_STATUS_SUCCESS);
    return {preference, FUNCTION(cublasLtMatmulPreferenceDestroy)};
  }

  // D = A B of column-major matrices, m x n x k, with an epilogue.
  struct Product {
    uint64_t m = 64, n = 48, k = 32, k_of_b = 32;
    cudaDataType type = CUDA_R_16BF, result = CUDA_R_16BF;
    cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    int64_t aux_ld = 64;
    uint64_t workspace = kWorkspace;
    uint32_t schemes = CUBLASLT_REDUCTION_SCHEME_MASK;
  };
  struct Call {
    Owned<cublasLtMatmulDesc_t> desc;
    Owned<cublasLtMatrixLayout_t> a, b, d;
  };
  Call Describe(const Product& p) const {
    Call call{NewDesc(), NewLayout(p.type, p.m, p.k, static_cast<int64_t>(p.m)),
              NewLayout(p.type, p.k_of_b, p.n, static_cast<int64_t>(p.k_of_b)),
              NewLayout(p.result, p.m, p.n, static_cast<int64_t>(p.m))};
    const auto set = [&](cublasLtMatmulDescAttributes_t attribute, const auto& value) {
      EXPECT_EQ(FUNCTION(cublasLtMatmulDescSetAttribute)(call.desc.get(), attribute, &value,
                                                         sizeof(value)),
                CUBLAS_STATUS_SUCCESS);
    };
    const auto* const somewhere = reinterpret_cast<const void*>(uintptr_t{16});  // NOLINT
    set(CUBLASLT_MATMUL_DESC_EPILOGUE, p.epilogue);
    if ((p.epilogue & CUBLASLT_EPILOGUE_BIAS) != 0) {
      set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, somewhere);
    }
    if ((p.epilogue & 128) != 0) {
      set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, somewhere);
      set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, p.aux_ld);
    }
    return call;
  }
  // The heuristic's algorithms; none where it refuses.
  std::vector<cublasLtMatmulHeuristicResult_t> Algorithms(const Product& p) const {
    const Call call = Describe(p);
    const auto preference = NewPreference();
    const auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
      EXPECT_EQ(FUNCTION(cublasLtMatmulPreferenceSetAttribute)(preference.get(), attribute, &value,
                                                               sizeof(value)),
                CUBLAS_STATUS_SUCCESS);
    };
    set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, p.workspace);
    set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, p.schemes);
    std::vector<cublasLtMatmulHeuristicResult_t> results(kMost);
    int found = 0;
    const cublasStatus_t status = FUNCTION(cublasLtMatmulAlgoGetHeuristic)(
        handle_, call.desc.get(), call.a.get(), call.b.get(), call.d.get(), call.d.get(),
        preference.get(), kMost, results.data(), &found);
    results.resize(status == CUBLAS_STATUS_SUCCESS ? found : 0);
    std::erase_if(results, [](const auto& one) { return one.state != CUBLAS_STATUS_SUCCESS; });
    return results;
  }

  FoundGpuLibrary library_;
  cublasLtHandle_t handle_ = nullptr;
};

// "sizeInBytes doesn't match the size of the internal storage": CUBLAS_STATUS_INVALID_VALUE.
TEST_F(CublasLtRulesTest, AttributesHaveOneSize) {
  const auto desc = NewDesc();
  const auto layout = NewLayout(CUDA_R_16BF, 64, 32, 64);
  const auto preference = NewPreference();
  const uint64_t zeros[2] = {};
  const auto want = [](size_t size, size_t right) {
    return size == right ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
  };
  for (const size_t size : {1, 2, 4, 8, 16}) {
    SCOPED_TRACE(size);
    const auto in_desc = [&](cublasLtMatmulDescAttributes_t attribute) {
      return FUNCTION(cublasLtMatmulDescSetAttribute)(desc.get(), attribute, zeros, size);
    };
    EXPECT_EQ(in_desc(CUBLASLT_MATMUL_DESC_TRANSA), want(size, 4));
    EXPECT_EQ(in_desc(CUBLASLT_MATMUL_DESC_TRANSB), want(size, 4));
    EXPECT_EQ(in_desc(CUBLASLT_MATMUL_DESC_EPILOGUE), want(size, 4));
    EXPECT_EQ(in_desc(CUBLASLT_MATMUL_DESC_BIAS_POINTER), want(size, 8));
    EXPECT_EQ(in_desc(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER), want(size, 8));
    EXPECT_EQ(in_desc(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD), want(size, 8));
    EXPECT_EQ(FUNCTION(cublasLtMatrixLayoutSetAttribute)(layout.get(), CUBLASLT_MATRIX_LAYOUT_LD,
                                                         zeros, size),
              want(size, 8));
    const auto in_preference = [&](cublasLtMatmulPreferenceAttributes_t attribute) {
      return FUNCTION(cublasLtMatmulPreferenceSetAttribute)(preference.get(), attribute, zeros,
                                                            size);
    };
    EXPECT_EQ(in_preference(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES), want(size, 8));
    EXPECT_EQ(in_preference(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK), want(size, 4));
    EXPECT_EQ(in_preference(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES), want(size, 4));
    EXPECT_EQ(in_preference(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES), want(size, 4));
  }
}

TEST_F(CublasLtRulesTest, TakesWhatProductsAreMadeOf) {
  if (!Open()) GTEST_SKIP() << "no handle without a GPU";
  for (const cudaDataType type : {CUDA_R_32F, CUDA_R_16BF, CUDA_R_16F}) {
    for (const auto epilogue : {CUBLASLT_EPILOGUE_DEFAULT, CUBLASLT_EPILOGUE_BIAS}) {
      EXPECT_FALSE(Algorithms({.type = type, .result = type, .epilogue = epilogue}).empty())
          << type << " " << epilogue;
    }
    EXPECT_FALSE(Algorithms({.type = type, .result = CUDA_R_32F}).empty()) << type;
  }
  for (const cudaDataType type : {CUDA_R_16BF, CUDA_R_16F}) {
    for (const auto epilogue :
         {CUBLASLT_EPILOGUE_GELU_AUX, CUBLASLT_EPILOGUE_GELU_AUX_BIAS, CUBLASLT_EPILOGUE_DGELU}) {
      EXPECT_FALSE(Algorithms({.type = type, .result = type, .epilogue = epilogue}).empty())
          << type << " " << epilogue;
    }
  }
}

// "Must be divisible by 8 and be no less than the number of rows in the output matrix." On an H100
// 13.1 has algorithms for 65 and 68, too; nobody asked what they compute.
TEST_F(CublasLtRulesTest, RefusesAnAuxOfTooFewRows) {
  if (!Open()) GTEST_SKIP() << "no handle without a GPU";
  EXPECT_TRUE(Algorithms({.epilogue = CUBLASLT_EPILOGUE_GELU_AUX_BIAS, .aux_ld = 56}).empty());
}

TEST_F(CublasLtRulesTest, RefusesFactorsThatDoNotMeet) {
  if (!Open()) GTEST_SKIP() << "no handle without a GPU";
  EXPECT_TRUE(Algorithms({.k_of_b = 40}).empty());
  EXPECT_TRUE(Algorithms({.k_of_b = 24}).empty());
}

TEST_F(CublasLtRulesTest, WorkspacesAreWithinTheLimit) {
  if (!Open()) GTEST_SKIP() << "no handle without a GPU";
  for (const uint64_t limit : {uint64_t{0}, uint64_t{1} << 16, kWorkspace}) {
    const auto algorithms =
        Algorithms({.m = 64, .n = 64, .k = 65536, .k_of_b = 65536, .workspace = limit});
    EXPECT_FALSE(algorithms.empty()) << limit;
    for (const auto& one : algorithms) EXPECT_LE(one.workspaceSize, limit);
  }
}

// Asked for by `run.deterministic`: k is long, and splitting it pays.
TEST_F(CublasLtRulesTest, NoSumsInPlaceWhereTheMaskHasNone) {
  if (!Open()) GTEST_SKIP() << "no handle without a GPU";
  const auto algorithms = Algorithms({.m = 64,
                                      .n = 64,
                                      .k = 65536,
                                      .k_of_b = 65536,
                                      .result = CUDA_R_32F,
                                      .schemes = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});
  EXPECT_FALSE(algorithms.empty());
  for (const auto& one : algorithms) {
    uint32_t scheme = 99;
    size_t written = 0;
    ASSERT_EQ(
        FUNCTION(cublasLtMatmulAlgoConfigGetAttribute)(
            &one.algo, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, &scheme, sizeof(scheme), &written),
        CUBLAS_STATUS_SUCCESS);
    EXPECT_EQ(scheme & ~static_cast<uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE), 0u);
  }
}

// "Can be trivially serialized and later restored for use with the same version".
TEST_F(CublasLtRulesTest, BytesOfAnAlgorithmAreOne) {
  if (!Open()) GTEST_SKIP() << "no handle without a GPU";
  const Product product;
  const Call call = Describe(product);
  for (const auto& one : Algorithms(product)) {
    uint64_t bytes[8];
    static_assert(sizeof(bytes) == sizeof(one.algo));
    std::memcpy(bytes, &one.algo, sizeof(bytes));
    cublasLtMatmulAlgo_t again;
    std::memcpy(&again, bytes, sizeof(bytes));
    cublasLtMatmulHeuristicResult_t result;
    EXPECT_EQ(
        FUNCTION(cublasLtMatmulAlgoCheck)(handle_, call.desc.get(), call.a.get(), call.b.get(),
                                          call.d.get(), call.d.get(), &again, &result),
        CUBLAS_STATUS_SUCCESS);
    EXPECT_EQ(result.workspaceSize, one.workspaceSize);
  }
}

// "The parameters are unexpectedly NULL": CUBLAS_STATUS_INVALID_VALUE, and nothing is launched.
TEST_F(CublasLtRulesTest, RefusesWhatIsNull) {
  if (!Open()) GTEST_SKIP() << "no handle without a GPU";
  const Product product{.workspace = 0};
  const Call call = Describe(product);
  const auto algorithms = Algorithms(product);
  ASSERT_FALSE(algorithms.empty());
  const float one = 1, zero = 0;
  EXPECT_EQ(FUNCTION(cublasLtMatmul)(handle_, call.desc.get(), &one, nullptr, call.a.get(), nullptr,
                                     call.b.get(), &zero, nullptr, call.d.get(), nullptr,
                                     call.d.get(), &algorithms[0].algo, nullptr, 0, nullptr),
            CUBLAS_STATUS_INVALID_VALUE);
}

}  // namespace
}  // namespace fsdp
