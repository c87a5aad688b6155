#include "trainer/ops/cuda/cublaslt.h"

#include <cublasLt.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <stdexcept>
#include <type_traits>
#include <utility>

#include "trainer/core/errors.h"
#include "trainer/ops/element_backends.h"

namespace fsdp {
namespace {

constexpr int64_t kAlignment = 16;   // Bytes of rows that the fast kernels read at once.
constexpr int64_t kAuxElements = 8;  // Strides of an aux are multiples of it.

struct CublasLtApi {
  decltype(&cublasLtCreate) create;
  decltype(&cublasLtDestroy) destroy;
  decltype(&cublasLtGetStatusString) status_string;
  decltype(&cublasLtMatmulDescCreate) create_desc;
  decltype(&cublasLtMatmulDescDestroy) destroy_desc;
  decltype(&cublasLtMatmulDescSetAttribute) set_desc;
  decltype(&cublasLtMatrixLayoutCreate) create_layout;
  decltype(&cublasLtMatrixLayoutDestroy) destroy_layout;
  decltype(&cublasLtMatrixLayoutSetAttribute) set_layout;
  decltype(&cublasLtMatmulPreferenceCreate) create_preference;
  decltype(&cublasLtMatmulPreferenceDestroy) destroy_preference;
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
  Bind(library, "cublasLtMatmulDescCreate", &api.create_desc);
  Bind(library, "cublasLtMatmulDescDestroy", &api.destroy_desc);
  Bind(library, "cublasLtMatmulDescSetAttribute", &api.set_desc);
  Bind(library, "cublasLtMatrixLayoutCreate", &api.create_layout);
  Bind(library, "cublasLtMatrixLayoutDestroy", &api.destroy_layout);
  Bind(library, "cublasLtMatrixLayoutSetAttribute", &api.set_layout);
  Bind(library, "cublasLtMatmulPreferenceCreate", &api.create_preference);
  Bind(library, "cublasLtMatmulPreferenceDestroy", &api.destroy_preference);
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

// A descriptor of the library's, made and freed by it: another version may have a larger one.
template <typename T>
using Owned = std::unique_ptr<std::remove_pointer_t<T>, cublasStatus_t (*)(T)>;

struct Strides {
  int64_t a = 0, b = 0, c = 0;  // Elements.
};

// The description of a product for the library. Its matrices are column-major, so it computes the
// transpose of ours, C' = op(B)' op(A)', of the same bytes. Its A is our B, and our bias is added
// to each of its columns.
struct Call {
  Owned<cublasLtMatmulDesc_t> desc;
  Owned<cublasLtMatrixLayout_t> a, b, c;
  Strides strides;  // Our matrices' strides.
};

class CublasLt final : public GemmLibrary {
 public:
  CublasLt(const FoundGpuLibrary& library, bool deterministic, int multiprocessors)
      : api_(ApiOf(library)), deterministic_(deterministic), multiprocessors_(multiprocessors) {
    Check(api_.create(&handle_), "cublasLtCreate");
  }
  ~CublasLt() override {
    choices_.clear();
    (void)api_.destroy(handle_);
  }

  bool Multiply(const CudaStreamHandle& stream, int64_t m, int64_t n, int64_t k,
                const GemmOperand& a, const GemmOperand& b, const GemmResult& c,
                const GemmEpilogue& epilogue) override;
  std::optional<GemmShape> Resolve(const GemmShape& shape) override;
  std::vector<GemmAlgorithm> Candidates(const GemmShape& shape, int most) override;
  bool Use(const GemmShape& shape, const GemmAlgorithm& algorithm) override;
  std::vector<Usage> Usages() const override;
  std::vector<std::string> Refusals() const override;

 private:
  struct Choice {
    GemmShape shape;
    std::optional<GemmAlgorithm> algorithm;  // None: the library has none.
    std::optional<Call> call;                // Beside an algorithm: no step makes one.
    bool chosen = false;
    int64_t calls = 0;
    std::string refusal = {};  // Why there is no algorithm.
  };

  void Check(cublasStatus_t status, const char* what) const {
    if (status == CUBLAS_STATUS_SUCCESS) return;
    throw DeviceError(std::string(what) + ": " + api_.status_string(status));
  }
  template <typename T>
  void Set(const Call& call, cublasLtMatmulDescAttributes_t attribute, const T& value) const {
    Check(api_.set_desc(call.desc.get(), attribute, &value, sizeof(value)),
          "cublasLtMatmulDescSetAttribute");
  }
  Owned<cublasLtMatrixLayout_t> Layout(DType dtype, int64_t rows, int64_t cols,
                                       int64_t stride) const {
    cublasLtMatrixLayout_t layout = nullptr;
    Check(api_.create_layout(&layout, TypeOf(dtype), static_cast<uint64_t>(cols),
                             static_cast<uint64_t>(rows), stride),
          "cublasLtMatrixLayoutCreate");
    return {layout, api_.destroy_layout};
  }
  // Rows lie as close to each other as allowed, and a bias and an aux lie somewhere at kAlignment:
  // the library concludes from their places how much it may read at once.
  Call Describe(const GemmShape& shape) const;
  void SetStrides(const GemmShape& shape, const Strides& strides, Call& call) const;
  Choice& ChoiceFor(const GemmShape& shape);
  // False where the library refuses it after all.
  bool Run(const CudaStreamHandle& stream, Choice& choice, const GemmOperand& a,
           const GemmOperand& b, const GemmResult& c, const GemmEpilogue& epilogue) const;

  const CublasLtApi api_;
  const bool deterministic_;
  const int32_t multiprocessors_;
  cublasLtHandle_t handle_ = nullptr;
  std::map<std::string, Choice> choices_;
};

Call CublasLt::Describe(const GemmShape& shape) const {
  const bool aux = shape.activation != Product::Activation::kNone;
  const int64_t m = shape.m, n = shape.n, k = shape.k;
  const Strides strides = {PaddedRow(shape.a_transposed ? m : k, shape.dtype),
                           PaddedRow(shape.b_transposed ? k : n, shape.dtype),
                           PaddedRow(n, aux ? DType::kBFloat16 : shape.result)};
  cublasLtMatmulDesc_t desc = nullptr;
  Check(api_.create_desc(&desc, CUBLAS_COMPUTE_32F, CUDA_R_32F), "cublasLtMatmulDescCreate");
  Call call = {
      {desc, api_.destroy_desc},
      Layout(shape.dtype, shape.b_transposed ? n : k, shape.b_transposed ? k : n, strides.b),
      Layout(shape.dtype, shape.a_transposed ? k : m, shape.a_transposed ? m : k, strides.a),
      Layout(shape.result, m, n, strides.c),
      strides};
  const cublasOperation_t b_op = shape.b_transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
  const cublasOperation_t a_op = shape.a_transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
  Set(call, CUBLASLT_MATMUL_DESC_TRANSA, b_op);
  Set(call, CUBLASLT_MATMUL_DESC_TRANSB, a_op);
  Set(call, CUBLASLT_MATMUL_DESC_EPILOGUE, EpilogueOf(shape));
  if (multiprocessors_ > 0) Set(call, CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET, multiprocessors_);
  // NOLINTNEXTLINE(performance-no-int-to-ptr): nobody follows it.
  const auto* const somewhere = reinterpret_cast<const void*>(kAlignment);
  if (shape.bias) Set(call, CUBLASLT_MATMUL_DESC_BIAS_POINTER, somewhere);
  if (aux) {
    Set(call, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, somewhere);
    Set(call, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, strides.c);
  }
  return call;
}

void CublasLt::SetStrides(const GemmShape& shape, const Strides& strides, Call& call) const {
  const auto set = [&](const Owned<cublasLtMatrixLayout_t>& layout, int64_t& has, int64_t stride) {
    if (std::exchange(has, stride) == stride) return false;
    Check(api_.set_layout(layout.get(), CUBLASLT_MATRIX_LAYOUT_LD, &stride, sizeof(stride)),
          "cublasLtMatrixLayoutSetAttribute");
    return true;
  };
  set(call.b, call.strides.a, strides.a);
  set(call.a, call.strides.b, strides.b);
  if (set(call.c, call.strides.c, strides.c) && shape.activation != Product::Activation::kNone) {
    Set(call, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, strides.c);
  }
}

std::vector<GemmAlgorithm> CublasLt::Candidates(const GemmShape& shape, int most) {
  const Call call = Describe(shape);
  cublasLtMatmulPreference_t made = nullptr;
  Check(api_.create_preference(&made), "cublasLtMatmulPreferenceCreate");
  const Owned<cublasLtMatmulPreference_t> preference(made, api_.destroy_preference);
  const auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
    Check(api_.set_preference(preference.get(), attribute, &value, sizeof(value)),
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
  const cublasStatus_t status =
      api_.heuristic(handle_, call.desc.get(), call.a.get(), call.b.get(), call.c.get(),
                     call.c.get(), preference.get(), most, results.data(), &found);
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
  const cublasStatus_t status = api_.check(handle_, call.desc.get(), call.a.get(), call.b.get(),
                                           call.c.get(), call.c.get(), &algo, &result);
  if (status != CUBLAS_STATUS_SUCCESS ||
      result.workspaceSize > static_cast<size_t>(kGemmWorkspaceBytes)) {
    return false;
  }
  Choice& choice = choices_[shape.Text()];
  choice = {shape, algorithm, std::move(call), /*chosen=*/true, choice.calls};
  choice.algorithm->workspace = static_cast<int64_t>(result.workspaceSize);
  return true;
}

CublasLt::Choice& CublasLt::ChoiceFor(const GemmShape& shape) {
  const auto [at, is_new] = choices_.try_emplace(shape.Text());
  if (is_new) {
    at->second.shape = shape;
    const std::vector<GemmAlgorithm> candidates = Candidates(shape, 1);
    if (!candidates.empty()) {
      at->second.algorithm = candidates.front();
      at->second.call = Describe(shape);
    } else {
      at->second.refusal = "no algorithm for it";
    }
  }
  return at->second;
}

std::optional<GemmShape> CublasLt::Resolve(const GemmShape& shape) {
  GemmShape resolved = shape;
  if (LeavesActivation(shape.activation, deterministic_)) {
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

std::vector<std::string> CublasLt::Refusals() const {
  std::vector<std::string> refusals;
  for (const auto& [text, choice] : choices_) {
    if (!choice.algorithm) refusals.push_back(text + ": " + choice.refusal);
  }
  return refusals;
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
  if (!Run(stream, choice, a, b, c, rest)) {
    choice.refusal =
        std::string(api_.status_string(CUBLAS_STATUS_NOT_SUPPORTED)) + " when it was called";
    choice.call.reset();
    choice.algorithm.reset();  // Another form of it, in the end ours, from now on.
    return Multiply(stream, m, n, k, a, b, c, epilogue);
  }
  ++choice.calls;
  if (!apart) return true;
  const View product(static_cast<std::byte*>(c.data), c.dtype, {m, n});
  if (epilogue.gelu != nullptr) {
    ActivationForwardCuda(stream, Activation::kGelu, product,
                          View(static_cast<std::byte*>(epilogue.gelu), c.dtype, {m, n}));
  } else {
    const ConstView u(static_cast<const std::byte*>(epilogue.gelu_of), c.dtype, {m, n});
    ActivationBackwardCuda(stream, Activation::kGelu, u, product, product);
  }
  return true;
}

bool CublasLt::Run(const CudaStreamHandle& stream, Choice& choice, const GemmOperand& a,
                   const GemmOperand& b, const GemmResult& c, const GemmEpilogue& epilogue) const {
  Call& call = *choice.call;
  SetStrides(choice.shape, {a.stride, b.stride, c.stride}, call);
  if (epilogue.bias) {
    const void* const bias = epilogue.bias->data;
    Set(call, CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
  }
  // In forward the library's D is our gelu(C), and its aux is our C, from which it computed D.
  const bool gelu = epilogue.gelu != nullptr;
  void* const d = gelu ? epilogue.gelu : c.data;
  const void* const aux = gelu ? c.data : epilogue.gelu_of;
  if (aux != nullptr) Set(call, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, aux);
  cublasLtMatmulAlgo_t algo;
  std::memcpy(&algo, choice.algorithm->data.data(), sizeof(algo));
  const float beta = epilogue.added != nullptr ? 1.0f : 0.0f;
  stream.WillPut(kOperationsOfCublasLt);
  const cublasStatus_t status = api_.matmul(
      handle_, call.desc.get(), &epilogue.scale, b.data, call.a.get(), a.data, call.b.get(), &beta,
      epilogue.added != nullptr ? epilogue.added : d, call.c.get(), d, call.c.get(), &algo,
      GemmOf(stream).workspace, static_cast<size_t>(kGemmWorkspaceBytes), stream);
  if (status == CUBLAS_STATUS_NOT_SUPPORTED) return false;
  if (status != CUBLAS_STATUS_SUCCESS) {  // An invalid value, too: a mistake of ours.
    throw DeviceError("cublasLtMatmul of " + choice.shape.Text() + ": " +
                      api_.status_string(status));
  }
  return true;
}

}  // namespace

std::unique_ptr<GemmLibrary> OpenCublasLt(const FoundGpuLibrary& library, bool deterministic,
                                          int multiprocessors) {
  return std::make_unique<CublasLt>(library, deterministic, multiprocessors);
}

}  // namespace fsdp
