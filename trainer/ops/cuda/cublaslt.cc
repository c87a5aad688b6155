#include "trainer/ops/cuda/cublaslt.h"

#include <cublasLt.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <stdexcept>

#include "trainer/core/errors.h"
#include "trainer/ops/cuda/gelu_cuda.h"

namespace fsdp {
namespace {

constexpr int64_t kAlignment = 16;   // Of rows: what the fast kernels read at once.
constexpr int64_t kAuxElements = 8;  // Strides of an aux are multiples of it.

struct CublasLtApi {
  decltype(&cublasLtCreate) create;
  decltype(&cublasLtDestroy) destroy;
  decltype(&cublasLtGetStatusString) status_string;
  decltype(&cublasLtMatmulDescInit_internal) init_desc;
  decltype(&cublasLtMatmulDescSetAttribute) set_desc;
  decltype(&cublasLtMatrixLayoutInit_internal) init_layout;
  decltype(&cublasLtMatmulPreferenceInit_internal) init_preference;
  decltype(&cublasLtMatmulPreferenceSetAttribute) set_preference;
  decltype(&cublasLtMatmulAlgoGetHeuristic) heuristic;
  decltype(&cublasLtMatmulAlgoCheck) check;
  decltype(&cublasLtMatmul) matmul;
};

template <typename Function>
void Bind(const FoundGpuLibrary& library, const char* name, Function* function) {
  *function = reinterpret_cast<Function>(library.function(name));
  if (*function == nullptr) throw DeviceError(library.path + " has no function " + name);
}

CublasLtApi ApiOf(const FoundGpuLibrary& library) {
  CublasLtApi api;
  Bind(library, "cublasLtCreate", &api.create);
  Bind(library, "cublasLtDestroy", &api.destroy);
  Bind(library, "cublasLtGetStatusString", &api.status_string);
  Bind(library, "cublasLtMatmulDescInit_internal", &api.init_desc);
  Bind(library, "cublasLtMatmulDescSetAttribute", &api.set_desc);
  Bind(library, "cublasLtMatrixLayoutInit_internal", &api.init_layout);
  Bind(library, "cublasLtMatmulPreferenceInit_internal", &api.init_preference);
  Bind(library, "cublasLtMatmulPreferenceSetAttribute", &api.set_preference);
  Bind(library, "cublasLtMatmulAlgoGetHeuristic", &api.heuristic);
  Bind(library, "cublasLtMatmulAlgoCheck", &api.check);
  Bind(library, "cublasLtMatmul", &api.matmul);
  return api;
}

cudaDataType TypeOf(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return CUDA_R_32F;
    case DType::kBFloat16:
      return CUDA_R_16BF;
    case DType::kFloat16:
      return CUDA_R_16F;
    default:
      throw std::invalid_argument("[CublasLt] no products of " + std::string(Name(dtype)));
  }
}

int64_t PaddedRow(int64_t elements, DType dtype) {
  const int64_t pack = kAlignment / SizeOf(dtype);
  return (elements + pack - 1) / pack * pack;
}

cublasLtEpilogue_t EpilogueOf(const GemmShape& shape) {
  switch (shape.activation) {
    case Product::Activation::kGelu:
      return shape.bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
    case Product::Activation::kGeluBackward:
      return CUBLASLT_EPILOGUE_DGELU;
    case Product::Activation::kNone:
      break;
  }
  return shape.bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
}

// What the library is told of a product. Its matrices are column-major, so it computes the
// transpose of ours, C' = op(B)' op(A)', of the same bytes: its A is our B, and what it adds to
// each row is our bias.
struct Call {
  cublasLtMatmulDescOpaque_t desc;
  cublasLtMatrixLayoutOpaque_t a, b, c;
};

class CublasLt final : public GemmLibrary {
 public:
  CublasLt(const FoundGpuLibrary& library, bool deterministic)
      : api_(ApiOf(library)), deterministic_(deterministic) {
    Check(api_.create(&handle_), "cublasLtCreate");
  }
  ~CublasLt() override { (void)api_.destroy(handle_); }

  bool Multiply(const CudaStreamHandle& stream, int64_t m, int64_t n, int64_t k,
                const GemmOperand& a, const GemmOperand& b, const GemmResult& c,
                const GemmEpilogue& epilogue) override;
  std::optional<GemmShape> Resolve(const GemmShape& shape) override;
  std::vector<GemmAlgorithm> Candidates(const GemmShape& shape, int most) override;
  bool Use(const GemmShape& shape, const GemmAlgorithm& algorithm) override;
  std::vector<Usage> Usages() const override;

 private:
  struct Choice {
    GemmShape shape;
    std::optional<GemmAlgorithm> algorithm;  // None: the library has none.
    bool chosen = false;
    int64_t calls = 0;
  };

  void Check(cublasStatus_t status, const char* what) const {
    if (status == CUBLAS_STATUS_SUCCESS) return;
    throw DeviceError(std::string(what) + ": " + api_.status_string(status));
  }
  template <typename T>
  void Set(Call* call, cublasLtMatmulDescAttributes_t attribute, const T& value) const {
    Check(api_.set_desc(&call->desc, attribute, &value, sizeof(value)),
          "cublasLtMatmulDescSetAttribute");
  }
  void SetLayout(cublasLtMatrixLayoutOpaque_t* layout, DType dtype, int64_t rows, int64_t cols,
                 int64_t stride) const {
    Check(api_.init_layout(layout, sizeof(*layout), TypeOf(dtype), static_cast<uint64_t>(cols),
                           static_cast<uint64_t>(rows), stride),
          "cublasLtMatrixLayoutInit");
  }
  Call Describe(const GemmShape& shape, int64_t a_stride, int64_t b_stride, int64_t c_stride) const;
  // With rows as close to each other as may be, and a bias and an aux somewhere at kAlignment: from
  // where they are the library concludes what it may read at once.
  Call Describe(const GemmShape& shape) const;
  Choice& ChoiceFor(const GemmShape& shape);
  // False where the library refuses it after all.
  bool Run(const CudaStreamHandle& stream, const GemmShape& shape, const GemmAlgorithm& algorithm,
           const GemmOperand& a, const GemmOperand& b, const GemmResult& c,
           const GemmEpilogue& epilogue) const;

  const CublasLtApi api_;
  const bool deterministic_;
  cublasLtHandle_t handle_ = nullptr;
  std::map<std::string, Choice> choices_;
};

Call CublasLt::Describe(const GemmShape& shape, int64_t a_stride, int64_t b_stride,
                        int64_t c_stride) const {
  Call call;
  Check(api_.init_desc(&call.desc, sizeof(call.desc), CUBLAS_COMPUTE_32F, CUDA_R_32F),
        "cublasLtMatmulDescInit");
  const cublasOperation_t b_op = shape.b_transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
  const cublasOperation_t a_op = shape.a_transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
  Set(&call, CUBLASLT_MATMUL_DESC_TRANSA, b_op);
  Set(&call, CUBLASLT_MATMUL_DESC_TRANSB, a_op);
  Set(&call, CUBLASLT_MATMUL_DESC_EPILOGUE, EpilogueOf(shape));
  if (shape.activation != Product::Activation::kNone) {
    Set(&call, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, c_stride);
  }
  const int64_t m = shape.m, n = shape.n, k = shape.k;
  SetLayout(&call.a, shape.dtype, shape.b_transposed ? n : k, shape.b_transposed ? k : n, b_stride);
  SetLayout(&call.b, shape.dtype, shape.a_transposed ? k : m, shape.a_transposed ? m : k, a_stride);
  SetLayout(&call.c, shape.result, m, n, c_stride);
  return call;
}

Call CublasLt::Describe(const GemmShape& shape) const {
  const bool aux = shape.activation != Product::Activation::kNone;
  const int64_t c_stride = PaddedRow(shape.n, aux ? DType::kBFloat16 : shape.result);
  Call call = Describe(shape, PaddedRow(shape.a_transposed ? shape.m : shape.k, shape.dtype),
                       PaddedRow(shape.b_transposed ? shape.k : shape.n, shape.dtype), c_stride);
  // NOLINTNEXTLINE(performance-no-int-to-ptr): nobody follows it.
  const auto* const somewhere = reinterpret_cast<const void*>(kAlignment);
  if (shape.bias) Set(&call, CUBLASLT_MATMUL_DESC_BIAS_POINTER, somewhere);
  if (aux) Set(&call, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, somewhere);
  return call;
}

std::vector<GemmAlgorithm> CublasLt::Candidates(const GemmShape& shape, int most) {
  Call call = Describe(shape);
  cublasLtMatmulPreferenceOpaque_t preference;
  Check(api_.init_preference(&preference, sizeof(preference)), "cublasLtMatmulPreferenceInit");
  const auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
    Check(api_.set_preference(&preference, attribute, &value, sizeof(value)),
          "cublasLtMatmulPreferenceSetAttribute");
  };
  set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<uint64_t>(kGemmWorkspaceBytes));
  for (const auto attribute :
       {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
    set(attribute, static_cast<uint32_t>(kAlignment));
  }
  if (deterministic_) {
    set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
        static_cast<uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  }
  std::vector<cublasLtMatmulHeuristicResult_t> results(most);
  int found = 0;
  const cublasStatus_t status = api_.heuristic(handle_, &call.desc, &call.a, &call.b, &call.c,
                                               &call.c, &preference, most, results.data(), &found);
  if (status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE) return {};
  Check(status, "cublasLtMatmulAlgoGetHeuristic");
  std::vector<GemmAlgorithm> algorithms;
  for (int i = 0; i < found; ++i) {
    if (results[i].state != CUBLAS_STATUS_SUCCESS) continue;
    GemmAlgorithm& algorithm = algorithms.emplace_back();
    static_assert(sizeof(algorithm.data) == sizeof(results[i].algo));
    std::memcpy(algorithm.data.data(), &results[i].algo, sizeof(results[i].algo));
    algorithm.workspace = static_cast<int64_t>(results[i].workspaceSize);
  }
  return algorithms;
}

bool CublasLt::Use(const GemmShape& shape, const GemmAlgorithm& algorithm) {
  Call call = Describe(shape);
  cublasLtMatmulAlgo_t algo;
  std::memcpy(&algo, algorithm.data.data(), sizeof(algo));
  cublasLtMatmulHeuristicResult_t result;
  const cublasStatus_t status =
      api_.check(handle_, &call.desc, &call.a, &call.b, &call.c, &call.c, &algo, &result);
  if (status != CUBLAS_STATUS_SUCCESS ||
      result.workspaceSize > static_cast<size_t>(kGemmWorkspaceBytes)) {
    return false;
  }
  Choice& choice = choices_[shape.Text()];
  choice = {shape, algorithm, /*chosen=*/true, choice.calls};
  choice.algorithm->workspace = static_cast<int64_t>(result.workspaceSize);
  return true;
}

CublasLt::Choice& CublasLt::ChoiceFor(const GemmShape& shape) {
  const auto [at, is_new] = choices_.try_emplace(shape.Text());
  if (is_new) {
    at->second.shape = shape;
    const std::vector<GemmAlgorithm> candidates = Candidates(shape, 1);
    if (!candidates.empty()) at->second.algorithm = candidates.front();
  }
  return at->second;
}

std::optional<GemmShape> CublasLt::Resolve(const GemmShape& shape) {
  GemmShape resolved = shape;
  if (deterministic_ && shape.activation == Product::Activation::kGelu) {
    resolved.activation = Product::Activation::kNone;
  }
  if (ChoiceFor(resolved).algorithm) return resolved;
  resolved.activation = Product::Activation::kNone;
  if (ChoiceFor(resolved).algorithm) return resolved;
  return std::nullopt;
}

std::vector<GemmLibrary::Usage> CublasLt::Usages() const {
  std::vector<Usage> usages;
  for (const auto& [text, choice] : choices_) {
    if (choice.chosen || choice.calls > 0) {
      usages.push_back({choice.shape, choice.chosen, choice.calls});
    }
  }
  return usages;
}

bool IsAligned(const void* data) { return reinterpret_cast<uintptr_t>(data) % kAlignment == 0; }
bool InWholePacks(const void* data, int64_t stride, DType dtype) {
  return IsAligned(data) && stride * SizeOf(dtype) % kAlignment == 0;
}

bool CublasLt::Multiply(const CudaStreamHandle& stream, int64_t m, int64_t n, int64_t k,
                        const GemmOperand& a, const GemmOperand& b, const GemmResult& c,
                        const GemmEpilogue& epilogue) {
  if (m == 0 || n == 0 || k == 0 || a.dtype != b.dtype) return false;
  if (c.dtype != a.dtype && c.dtype != DType::kFloat32) return false;
  if (epilogue.bias && epilogue.bias->dtype != c.dtype) return false;
  if (epilogue.gelu_of != nullptr && (epilogue.bias || epilogue.added != nullptr)) return false;
  if (!InWholePacks(a.data, a.stride, a.dtype) || !InWholePacks(b.data, b.stride, b.dtype) ||
      !InWholePacks(c.data, c.stride, c.dtype) || !IsAligned(epilogue.added) ||
      !IsAligned(epilogue.gelu) || !IsAligned(epilogue.gelu_of) ||
      (epilogue.bias && !IsAligned(epilogue.bias->data))) {
    return false;
  }
  const GemmShape shape = ShapeOf(m, n, k, a, b, c, epilogue);
  if (shape.activation != Product::Activation::kNone && c.stride % kAuxElements != 0) return false;
  const std::optional<GemmShape> resolved = Resolve(shape);
  if (!resolved) return false;
  const bool apart = resolved->activation != shape.activation;
  if (apart && c.stride != n) return false;
  Choice& choice = ChoiceFor(*resolved);
  GemmEpilogue rest = epilogue;
  if (apart) rest.gelu = nullptr, rest.gelu_of = nullptr;
  if (!Run(stream, *resolved, *choice.algorithm, a, b, c, rest)) {
    choice.algorithm.reset();  // Another form of it, in the end ours, from now on.
    return Multiply(stream, m, n, k, a, b, c, epilogue);
  }
  ++choice.calls;
  if (!apart) return true;
  const View product(static_cast<std::byte*>(c.data), c.dtype, {m, n});
  if (epilogue.gelu != nullptr) {
    GeluForwardCuda(stream, product, View(static_cast<std::byte*>(epilogue.gelu), c.dtype, {m, n}));
  } else {
    const ConstView u(static_cast<const std::byte*>(epilogue.gelu_of), c.dtype, {m, n});
    GeluBackwardCuda(stream, u, product, product);
  }
  return true;
}

bool CublasLt::Run(const CudaStreamHandle& stream, const GemmShape& shape,
                   const GemmAlgorithm& algorithm, const GemmOperand& a, const GemmOperand& b,
                   const GemmResult& c, const GemmEpilogue& epilogue) const {
  Call call = Describe(shape, a.stride, b.stride, c.stride);
  if (epilogue.bias) {
    const void* const bias = epilogue.bias->data;
    Set(&call, CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
  }
  // Forward its D is our gelu(C), and our C what it computed that of.
  const bool gelu = epilogue.gelu != nullptr;
  void* const d = gelu ? epilogue.gelu : c.data;
  const void* const aux = gelu ? c.data : epilogue.gelu_of;
  if (aux != nullptr) Set(&call, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, aux);
  cublasLtMatmulAlgo_t algo;
  std::memcpy(&algo, algorithm.data.data(), sizeof(algo));
  const float beta = epilogue.added != nullptr ? 1.0f : 0.0f;
  const cublasStatus_t status =
      api_.matmul(handle_, &call.desc, &epilogue.scale, b.data, &call.a, a.data, &call.b, &beta,
                  epilogue.added != nullptr ? epilogue.added : d, &call.c, d, &call.c, &algo,
                  stream.gemm.workspace, static_cast<size_t>(kGemmWorkspaceBytes), stream);
  if (status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE) return false;
  if (status != CUBLAS_STATUS_SUCCESS) {
    throw DeviceError("cublasLtMatmul of " + shape.Text() + ": " + api_.status_string(status));
  }
  return true;
}

}  // namespace

std::unique_ptr<GemmLibrary> OpenCublasLt(const FoundGpuLibrary& library, bool deterministic) {
  return std::make_unique<CublasLt>(library, deterministic);
}

}  // namespace fsdp
