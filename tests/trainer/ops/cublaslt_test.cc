// Which products become a call of cuBLASLt, with which epilogue and algorithm, and which do not.
// The emulated library refuses the calls that the real one refuses. Tests of ops check the results
// of such calls.
#include "trainer/ops/cuda/cublaslt.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cmath>
#include <cstdlib>
#include <memory>
#include <vector>

#include "tests/emulated/cublaslt.h"
#include "tests/emulated/cudart.h"
#include "trainer/core/dtype.h"
#include "trainer/core/errors.h"
#include "trainer/ops/cuda/gemm/gemm.h"

namespace fsdp {

// Values of EmulatedMatmul, for messages and ==.
static std::ostream& operator<<(std::ostream& out, const EmulatedMatmul& x) {
  return out << x.m << "x" << x.n << "x" << x.k << " epilogue " << x.epilogue
             << (x.adds ? " adds" : "") << " algorithm " << x.algorithm;
}
static bool operator==(const EmulatedMatmul& a, const EmulatedMatmul& b) {
  return a.m == b.m && a.n == b.n && a.k == b.k && a.epilogue == b.epilogue && a.adds == b.adds &&
         a.algorithm == b.algorithm;
}

namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

constexpr int64_t kM = 48, kN = 24, kK = 32;

class CublasLtTest : public ::testing::Test {
 protected:
  void SetUp() override {
    RefuseEmulatedActivations(false);
    RefuseEmulatedAlgorithm(-1);
    (void)TakeEmulatedMatmuls();
  }
  void TearDown() override { EXPECT_EQ(LiveEmulatedDescriptors(), 0); }

  static std::unique_ptr<GemmLibrary> Open(bool deterministic = false) {
    return OpenCublasLt(FindGpuLibrary(GpuLibrary::kCublasLt, {}), deterministic);
  }

  std::byte* New(int64_t bytes) {
    memory_.emplace_back(
        static_cast<std::byte*>(std::aligned_alloc(256, (bytes + 255) / 256 * 256)), &std::free);
    std::fill_n(memory_.back().get(), bytes, std::byte{0});
    return memory_.back().get();
  }

  struct Want {
    DType a = DType::kBFloat16, b = DType::kBFloat16, c = DType::kBFloat16;
    int64_t m = kM, n = kN, k = kK, stride = 0, begin = 0;  // Elements of C.
    std::optional<DType> bias = std::nullopt;
    bool adds = false, gelu = false, gelu_backward = false;
  };
  void Multiply(GemmLibrary& library, const Want& w, std::byte* workspace = nullptr) {
    const GemmOperand a{New(w.m * w.k * 4), w.k, false, w.a},
        b{New(w.n * w.k * 4), w.n, false, w.b};
    const int64_t stride = w.stride == 0 ? w.n : w.stride;
    GemmResult c{New(w.m * stride * 4 + 256), stride, w.c};
    c.data = static_cast<std::byte*>(c.data) + w.begin * SizeOf(w.c);
    GemmEpilogue epilogue;
    if (w.bias) epilogue.bias = ConstView(New(w.n * 4), *w.bias, {w.n});
    if (w.adds) epilogue.added = c.data;
    if (w.gelu) epilogue.gelu = New(w.m * stride * 4);
    if (w.gelu_backward) epilogue.gelu_of = New(w.m * stride * 4);
    const GemmResources lent(&library, workspace == nullptr ? workspace_ : workspace);
    Gemm({nullptr, &lent}, w.m, w.n, w.k, a, b, c, epilogue);
  }

  std::vector<std::unique_ptr<std::byte, decltype(&std::free)>> memory_;
  std::byte* const workspace_ = New(kGemmWorkspaceBytes);
};

// The library computes the transpose of our C[m, n].
EmulatedMatmul Call(cublasLtEpilogue_t epilogue, bool adds = false, int algorithm = 0) {
  return {kN, kM, kK, epilogue, adds, algorithm};
}

GemmShape PlainShape() {
  return {.m = kM, .n = kN, .k = kK, .dtype = DType::kBFloat16, .result = DType::kBFloat16};
}

TEST_F(CublasLtTest, EpiloguesAreOneCall) {
  const auto library = Open();
  Multiply(*library, {});
  Multiply(*library, {.bias = DType::kBFloat16});
  Multiply(*library, {.adds = true});
  Multiply(*library, {.c = DType::kFloat32, .adds = true});
  Multiply(*library, {.bias = DType::kBFloat16, .adds = true});
  Multiply(*library, {.gelu = true});
  Multiply(*library, {.bias = DType::kBFloat16, .gelu = true});
  Multiply(*library, {.gelu_backward = true});
  EXPECT_THAT(
      TakeEmulatedMatmuls(),
      ElementsAre(Call(CUBLASLT_EPILOGUE_DEFAULT), Call(CUBLASLT_EPILOGUE_BIAS),
                  Call(CUBLASLT_EPILOGUE_DEFAULT, true), Call(CUBLASLT_EPILOGUE_DEFAULT, true),
                  Call(CUBLASLT_EPILOGUE_BIAS, true), Call(CUBLASLT_EPILOGUE_GELU_AUX),
                  Call(CUBLASLT_EPILOGUE_GELU_AUX_BIAS), Call(CUBLASLT_EPILOGUE_DGELU)));
}

// The reason why `run.deterministic` avoids it: y was not made from the stored u.
TEST_F(CublasLtTest, ItsGeluIsOfWhatWasNotRounded) {
  constexpr int64_t kSide = 8;
  auto* const a = reinterpret_cast<BFloat16*>(New(kSide * kSide * 2));
  auto* const b = reinterpret_cast<BFloat16*>(New(kSide * kSide * 2));
  auto* const u = reinterpret_cast<BFloat16*>(New(kSide * kSide * 2));
  auto* const y = reinterpret_cast<BFloat16*>(New(kSide * kSide * 2));
  for (int64_t i = 0; i < kSide; ++i) {  // Sums of 1 + i / 1024, which bf16 rounds to 1 or so.
    a[kSide * i] = a[kSide * i + 1] = BFloat16(1.0f);
    b[i] = BFloat16(1.0f);
    b[kSide + i] = BFloat16(static_cast<float>(i) / 1024);
  }
  const auto gelu = [](float x) {
    return BFloat16(x / (1 + std::exp(-1.5957691216f * (x + 0.044715f * x * x * x))));
  };
  for (const bool deterministic : {false, true}) {
    const auto library = Open(deterministic);
    GemmEpilogue epilogue;
    epilogue.gelu = y;
    const GemmResources lent(library.get(), workspace_);
    Gemm({nullptr, &lent}, kSide, kSide, kSide, {a, kSide, false, DType::kBFloat16},
         {b, kSide, false, DType::kBFloat16}, {u, kSide, DType::kBFloat16}, epilogue);
    int differ = 0;
    for (int64_t i = 0; i < kSide; ++i) {
      const float sum = 1 + static_cast<float>(i) / 1024, stored = static_cast<float>(u[i]);
      EXPECT_EQ(stored, static_cast<float>(BFloat16(sum)));
      const float want = static_cast<float>(gelu(deterministic ? stored : sum));
      EXPECT_EQ(static_cast<float>(y[i]), want) << i;
      differ += want != static_cast<float>(gelu(stored)) ? 1 : 0;
    }
    EXPECT_EQ(differ > 0, !deterministic);
  }
}

TEST_F(CublasLtTest, WhatItHasNotIsOurs) {
  const auto library = Open();
  Multiply(*library, {.b = DType::kFloat32});     // Two dtypes.
  Multiply(*library, {.c = DType::kFloat16});     // Another one.
  Multiply(*library, {.bias = DType::kFloat32});  // Not C's.
  Multiply(*library, {.stride = kN + 1});         // Rows that begin anywhere.
  Multiply(*library, {.begin = 1});               // C that does.
  Multiply(*library, {.m = 3, .n = 7, .k = 5});   // Sizes that make such rows.
  Multiply(*library, {.k = 0});                   // Nothing to add up.
  Multiply(*library, {.bias = DType::kBFloat16, .gelu_backward = true});  // A sum inside of GELU'.
  Multiply(*library, {.a = DType::kFloat32,
                      .b = DType::kFloat32,
                      .c = DType::kFloat32,
                      .n = 12,
                      .gelu = true});                                // An aux of odd stride.
  Multiply(*library, {.a = DType::kFloat32, .b = DType::kFloat32});  // fp32 to bf16.
  EXPECT_THAT(TakeEmulatedMatmuls(), IsEmpty());
}

// A refused epilogue costs a kernel of its own, not the library.
TEST_F(CublasLtTest, RefusedActivationsComeBehind) {
  RefuseEmulatedActivations(true);
  const auto library = Open();
  Multiply(*library, {.bias = DType::kBFloat16, .gelu = true});
  Multiply(*library, {.gelu_backward = true});
  EXPECT_THAT(TakeEmulatedMatmuls(),
              ElementsAre(Call(CUBLASLT_EPILOGUE_BIAS), Call(CUBLASLT_EPILOGUE_DEFAULT)));
  // Those kernels know no stride.
  Multiply(*library, {.stride = kN + 8, .gelu = true});
  EXPECT_THAT(TakeEmulatedMatmuls(), IsEmpty());
}

// A product that the library offers and then refuses is still multiplied.
TEST_F(CublasLtTest, WhatIsRefusedAfterAllIsOurs) {
  RefuseEmulatedAlgorithm(0);
  const auto library = Open();
  Multiply(*library, {.bias = DType::kBFloat16, .gelu = true});
  Multiply(*library, {});
  EXPECT_THAT(TakeEmulatedMatmuls(), IsEmpty());
  RefuseEmulatedAlgorithm(-1);
  Multiply(*library, {});
  EXPECT_THAT(TakeEmulatedMatmuls(), IsEmpty());  // It is not asked again.
  EXPECT_THAT(library->Refusals(), Contains(AllOf(HasSubstr(PlainShape().Text() + ": "),
                                                  HasSubstr(" when it was called"))));
  ASSERT_TRUE(library->Use(PlainShape(), library->Candidates(PlainShape(), 1)[0]));
  Multiply(*library, {});
  EXPECT_THAT(TakeEmulatedMatmuls(), SizeIs(1));
  EXPECT_THAT(library->Refusals(), Not(Contains(HasSubstr(PlainShape().Text() + ":"))));
}

// The library may use all the workspace that it is told of, so that must not be more than there is.
TEST_F(CublasLtTest, TheWorkspaceEndsWhereItDoes) {
  const auto library = Open();
  const auto size = static_cast<size_t>(kGemmWorkspaceBytes);
  auto* const all =
      static_cast<std::byte*>(mmap(nullptr, 4 * size, PROT_READ | PROT_WRITE,
                                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  ASSERT_NE(all, MAP_FAILED);
  Multiply(*library, {}, all);
  EXPECT_NE(all[size - 1], std::byte{0}) << "the fake uses all of it";
  for (size_t at = size; at < 4 * size; at += 64) ASSERT_EQ(all[at], std::byte{0}) << at;
  munmap(all, 4 * size);
}

// An invalid call is our mistake, and no kind of product.
TEST_F(CublasLtTest, WhatIsInvalidIsAnError) {
  const auto library = Open();
  FailNextEmulatedMatmul(CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_THROW(Multiply(*library, {}), DeviceError);
  EXPECT_THAT(library->Refusals(), IsEmpty());
}

TEST_F(CublasLtTest, DeterministicReadsNothingUnrounded) {
  const auto library = Open(/*deterministic=*/true);
  Multiply(*library, {.bias = DType::kBFloat16, .gelu = true});
  Multiply(*library, {.gelu_backward = true});
  EXPECT_THAT(TakeEmulatedMatmuls(),
              ElementsAre(Call(CUBLASLT_EPILOGUE_BIAS), Call(CUBLASLT_EPILOGUE_DGELU)));
}

// Neither mode takes more memory than there is; the deterministic one leaves out what adds up in
// place.
TEST_F(CublasLtTest, CandidatesAreThoseOfTheMode) {
  EXPECT_EQ(Open()->Candidates(PlainShape(), 16).size(), 3u);
  EXPECT_EQ(Open()->Candidates(PlainShape(), 2).size(), 2u);
  const auto library = Open(/*deterministic=*/true);
  const std::vector<GemmAlgorithm> candidates = library->Candidates(PlainShape(), 16);
  ASSERT_EQ(candidates.size(), 2u);
  for (const GemmAlgorithm& algorithm : candidates) {
    ASSERT_TRUE(library->Use(PlainShape(), algorithm));
    Multiply(*library, {});
  }
  EXPECT_THAT(TakeEmulatedMatmuls(), ElementsAre(Call(CUBLASLT_EPILOGUE_DEFAULT, false, 0),
                                                 Call(CUBLASLT_EPILOGUE_DEFAULT, false, 1)));
}

std::vector<GemmShape> Unchosen(const GemmLibrary& library) {
  std::vector<GemmShape> shapes;
  for (const GemmLibrary::Usage& usage : library.Usages()) {
    if (!usage.chosen) shapes.push_back(usage.shape);
  }
  return shapes;
}

TEST_F(CublasLtTest, AnAlgorithmIsForItsShape) {
  const auto library = Open();
  const GemmShape shape = PlainShape();
  GemmShape other = shape;
  other.n *= 2;
  const GemmAlgorithm third = library->Candidates(shape, 16).back();
  EXPECT_FALSE(library->Use(other, third));
  EXPECT_FALSE(library->Use(shape, {}));  // No version of the library has it.
  Multiply(*library, {});
  Multiply(*library, {.n = 2 * kN});
  EXPECT_THAT(Unchosen(*library), SizeIs(2));
  EXPECT_TRUE(library->Use(shape, third));
  Multiply(*library, {});
  Multiply(*library, {.n = 2 * kN});
  EXPECT_THAT(Unchosen(*library), ElementsAre(other));
  const std::vector<EmulatedMatmul> calls = TakeEmulatedMatmuls();
  ASSERT_EQ(calls.size(), 4u);
  EXPECT_EQ(calls[0].algorithm, 0);
  EXPECT_EQ(calls[2].algorithm, 2);
  EXPECT_EQ(calls[3].algorithm, 0);
}

TEST_F(CublasLtTest, ShapesHaveNamesOfTheirOwn) {
  EXPECT_EQ(PlainShape().Text(), "48x24x32 nn bf16 to bf16");
  GemmShape shape = PlainShape();
  shape.b_transposed = shape.bias = true;
  shape.result = DType::kFloat32;
  shape.activation = Product::Activation::kGelu;
  EXPECT_EQ(shape.Text(), "48x24x32 nt bf16 to fp32, bias, gelu");
  shape.activation = Product::Activation::kGeluBackward;
  EXPECT_EQ(shape.Text(), "48x24x32 nt bf16 to fp32, bias, gelu backward");
}

// Algorithms are for that number, and so is every product.
TEST_F(CublasLtTest, RunsOnSoManyMultiprocessors) {
  const FoundGpuLibrary found = FindGpuLibrary(GpuLibrary::kCublasLt, {});
  const auto some = OpenCublasLt(found, false, /*multiprocessors=*/3), all = Open();
  EXPECT_TRUE(some->Use(PlainShape(), some->Candidates(PlainShape(), 1).at(0)));
  EXPECT_FALSE(some->Use(PlainShape(), all->Candidates(PlainShape(), 1).at(0)));
  Multiply(*some, {});
  Multiply(*some, {.bias = DType::kBFloat16});
  Multiply(*all, {});
  std::vector<int> multiprocessors;
  for (const EmulatedMatmul& one : TakeEmulatedMatmuls()) {
    multiprocessors.push_back(one.multiprocessors);
  }
  EXPECT_THAT(multiprocessors, ElementsAre(3, 3, 0));
}

TEST_F(CublasLtTest, AFunctionThatIsMissingIsNamed) {
  FoundGpuLibrary library = FindGpuLibrary(GpuLibrary::kCublasLt, {});
  library.function = [all = library.function](const char* name) {
    return std::string_view(name) == "cublasLtMatmulAlgoCheck" ? nullptr : all(name);
  };
  try {
    (void)OpenCublasLt(library, false);
    FAIL();
  } catch (const DeviceError& error) {
    EXPECT_THAT(error.what(),
                HasSubstr("libcublasLt.so.13 has no function cublasLtMatmulAlgoCheck"));
  }
}

// Errors for wrong calls of ours.
using CublasLtDeathTest = CublasLtTest;

TEST_F(CublasLtDeathTest, TheEmulatedOneRefuses) {
  cublasLtHandle_t handle;
  cublasLtCreate(&handle);
  cublasLtMatmulDesc_t desc;
  cublasLtMatrixLayout_t a, b, c;
  cublasLtMatmulPreference_t preference;
  cublasLtMatmulDescCreate(&desc, CUBLAS_COMPUTE_32F, CUDA_R_32F);
  cublasLtMatrixLayoutCreate(&a, CUDA_R_16BF, 16, 32, 16);
  cublasLtMatrixLayoutCreate(&b, CUDA_R_16BF, 32, 8, 32);
  cublasLtMatrixLayoutCreate(&c, CUDA_R_16BF, 16, 8, 16);
  cublasLtMatmulPreferenceCreate(&preference);
  const uint64_t megabyte = 1 << 20;
  cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                       &megabyte, sizeof(megabyte));
  cublasLtMatmulHeuristicResult_t found[3];
  int n = 0;
  const auto heuristic = [&] {
    return cublasLtMatmulAlgoGetHeuristic(handle, desc, a, b, c, c, preference, 3, found, &n);
  };
  ASSERT_EQ(heuristic(), CUBLAS_STATUS_SUCCESS);
  ASSERT_EQ(n, 3);
  const float one = 1, zero = 0;
  std::byte *const x = New(4096), *const y = New(4096), *const z = New(4096);
  const auto matmul = [&](const std::byte* from, std::byte* to, const cublasLtMatmulAlgo_t& algo,
                          void* workspace, size_t bytes) {
    return cublasLtMatmul(handle, desc, &one, from, a, y, b, &zero, to, c, to, c, &algo, workspace,
                          bytes, nullptr);
  };
  EXPECT_EQ(matmul(x, z, found[0].algo, nullptr, 0), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(matmul(x, z, found[1].algo, workspace_, megabyte), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(matmul(x, z, found[1].algo, workspace_, megabyte - 1), CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_EQ(matmul(x, z, found[1].algo, workspace_ + 16, megabyte), CUBLAS_STATUS_INVALID_VALUE);
  // x + 16 begins at no multiple of 256.
  EXPECT_EQ(matmul(x + 16, z, found[0].algo, nullptr, 0), CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_EQ(matmul(x, nullptr, found[0].algo, nullptr, 0), CUBLAS_STATUS_INVALID_VALUE);
  const cublasLtEpilogue_t bias = CUBLASLT_EPILOGUE_BIAS, gelu = CUBLASLT_EPILOGUE_GELU_AUX;
  cublasLtMatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_EPILOGUE, &bias, sizeof(bias));
  EXPECT_EQ(matmul(x, z, found[0].algo, nullptr, 0), CUBLAS_STATUS_INVALID_VALUE);  // Another's.
  ASSERT_EQ(heuristic(), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(matmul(x, z, found[0].algo, nullptr, 0), CUBLAS_STATUS_INVALID_VALUE);  // No bias.
  cublasLtMatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_EPILOGUE, &gelu, sizeof(gelu));
  const int64_t odd = 17;
  cublasLtMatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &odd, sizeof(odd));
  EXPECT_EQ(heuristic(), CUBLAS_STATUS_NOT_SUPPORTED);
  cublasLtMatrixLayoutDestroy(b);
  cublasLtMatrixLayoutCreate(&b, CUDA_R_16BF, 33, 8, 33);
  EXPECT_EQ(heuristic(), CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_EQ(LiveEmulatedDescriptors(), 5);
  cublasLtMatmulPreferenceDestroy(preference);
  for (const auto layout : {a, b, c}) cublasLtMatrixLayoutDestroy(layout);
  cublasLtMatmulDescDestroy(desc);
  EXPECT_DEATH(cublasLtMatmulDescDestroy(desc), "a descriptor that has been destroyed");
  cublasLtDestroy(handle);
}

// They lie with the algorithm: strides and addresses are told anew.
TEST_F(CublasLtTest, NoCallMakesADescriptor) {
  const auto library = Open();
  const auto made = [] {
    return EmulatedCalls("cublasLtMatmulDescCreate") + EmulatedCalls("cublasLtMatrixLayoutCreate") +
           EmulatedCalls("cublasLtMatmulPreferenceCreate");
  };
  const std::vector<Want> products = {{},
                                      {.bias = DType::kBFloat16},
                                      {.gelu = true},
                                      {.gelu_backward = true},
                                      {.c = DType::kFloat32, .adds = true}};
  for (const Want& product : products) Multiply(*library, product);
  const int64_t before = made();
  EXPECT_GT(before, 0);
  for (const int64_t stride : {kN + 8, kN + 16, kN}) {
    for (Want product : products) {
      product.stride = stride;
      Multiply(*library, product);
    }
  }
  EXPECT_THAT(TakeEmulatedMatmuls(), SizeIs(20));
  EXPECT_EQ(made(), before);
}

}  // namespace
}  // namespace fsdp
