#include "tests/emulated/cublaslt.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "tests/emulated/cudart.h"
#include "tests/emulated/gpu_libraries.h"
#include "trainer/core/dtype.h"
#include "trainer/ops/cuda/gemm/gemm.h"
#include "trainer/runtime/memory.h"

struct cublasLtContext {
  int64_t taken = 2 << 20;  // Bytes of the GPU.
};

namespace fsdp {
namespace {

constexpr uint64_t kMagic = 0x6c747ac0de;
constexpr size_t kWorkspaceAlignment = 256;
constexpr int kAlgorithms = 3;
constexpr size_t kWorkspaceOf[kAlgorithms] = {0, 1 << 20, 4096};
constexpr uint32_t kSchemeOf[kAlgorithms] = {0, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE,
                                             CUBLASLT_REDUCTION_SCHEME_INPLACE};

// The contents of the opaque structs.
struct Desc {
  int32_t a_op, b_op, epilogue;
  const void* bias;
  void* aux;
  int64_t aux_ld;
  int32_t multiprocessors;  // 0: all.
};
struct Layout {
  int32_t type;
  int64_t rows, cols, ld;
};
struct Preference {
  uint64_t workspace;
  uint32_t schemes;
  uint32_t alignment[4];  // For A, B, C and D.
};
struct Algo {
  uint64_t magic, of;  // Which product it is for.
  uint32_t id, alignment[4];
};

std::mutex live_mutex;
std::set<const void*>& Live() {
  static auto* const live = new std::set<const void*>;
  return *live;
}

void RequireLive(const void* opaque) {
  std::lock_guard lock(live_mutex);
  if (Live().contains(opaque)) return;
  std::fprintf(stderr, "fake cuBLASLt: a descriptor that has been destroyed, or never was\n");
  std::abort();
}

template <typename T, typename Opaque>
T Get(const Opaque* opaque) {
  static_assert(sizeof(T) <= sizeof(*opaque));
  if constexpr (!std::is_same_v<T, Algo>) RequireLive(opaque);
  T value;
  std::memcpy(&value, opaque, sizeof(T));
  return value;
}
template <typename T, typename Opaque>
void Put(const T& value, Opaque* opaque) {
  static_assert(sizeof(T) <= sizeof(*opaque));
  std::memcpy(opaque, &value, sizeof(T));
}

template <typename T, typename Opaque>
cublasStatus_t Make(const T& value, const char* function, Opaque** opaque) {
  CountEmulatedCall(function);
  *opaque = new Opaque;
  Put(value, *opaque);
  std::lock_guard lock(live_mutex);
  Live().insert(*opaque);
  return CUBLAS_STATUS_SUCCESS;
}
template <typename Opaque>
cublasStatus_t Destroy(const Opaque* opaque) {
  if (opaque == nullptr) return CUBLAS_STATUS_SUCCESS;  // So says the real one's 13.1.
  RequireLive(opaque);
  {
    std::lock_guard lock(live_mutex);
    Live().erase(opaque);
  }
  delete opaque;
  return CUBLAS_STATUS_SUCCESS;
}

std::mutex mutex;  // Guards the list.
std::vector<EmulatedMatmul> matmuls;
std::atomic<bool> refuses_activations{false};
std::atomic<int> refused_algorithm{-1};
std::atomic<cublasStatus_t> next_status{CUBLAS_STATUS_SUCCESS};
std::atomic<int64_t> matmul_calls{0};
std::atomic<int> cold_calls{0}, cold_ms{0};

DType DTypeOf(int32_t type) {
  return type == CUDA_R_32F    ? DType::kFloat32
         : type == CUDA_R_16BF ? DType::kBFloat16
                               : DType::kFloat16;
}

// A product as the library is told of it.
struct Told {
  Told(cublasLtMatmulDesc_t desc_at, cublasLtMatrixLayout_t a_at, cublasLtMatrixLayout_t b_at,
       cublasLtMatrixLayout_t c_at, cublasLtMatrixLayout_t d_at)
      : desc(Get<Desc>(desc_at)),
        a(Get<Layout>(a_at)),
        b(Get<Layout>(b_at)),
        c(Get<Layout>(c_at)),
        d(Get<Layout>(d_at)) {
    const bool at = desc.a_op == CUBLAS_OP_T, bt = desc.b_op == CUBLAS_OP_T;
    m = at ? a.cols : a.rows;
    k = at ? a.rows : a.cols;
    n = bt ? b.rows : b.cols;
    b_k = bt ? b.cols : b.rows;
  }

  bool HasBias() const { return (desc.epilogue & CUBLASLT_EPILOGUE_BIAS) != 0; }
  bool HasAux() const { return (desc.epilogue & 128) != 0; }

  // The real library's answer: invalid, not supported, or success.
  cublasStatus_t Status() const {
    if (k != b_k || d.rows != m || d.cols != n || c.rows != m || c.cols != n || m < 1 || n < 1 ||
        k < 1) {
      return CUBLAS_STATUS_INVALID_VALUE;
    }
    for (const Layout* layout : {&a, &b, &c, &d}) {
      if (layout->ld < layout->rows) return CUBLAS_STATUS_INVALID_VALUE;
    }
    if (desc.multiprocessors < 0 || desc.multiprocessors > TheEmulatedGpus().multiprocessors) {
      return CUBLAS_STATUS_INVALID_VALUE;
    }
    if (a.type != b.type || c.type != d.type) return CUBLAS_STATUS_NOT_SUPPORTED;
    if (d.type != a.type && d.type != CUDA_R_32F) return CUBLAS_STATUS_NOT_SUPPORTED;
    if (HasAux()) {
      if (refuses_activations || desc.aux_ld % 8 != 0) return CUBLAS_STATUS_NOT_SUPPORTED;
      if (desc.aux_ld < m) return CUBLAS_STATUS_INVALID_VALUE;
    }
    return CUBLAS_STATUS_SUCCESS;
  }

  uint64_t Fingerprint() const {
    uint64_t all = kMagic;
    for (const int64_t part :
         {m, n, k, int64_t{desc.a_op}, int64_t{desc.b_op}, int64_t{desc.epilogue}, int64_t{a.type},
          int64_t{d.type}, int64_t{desc.multiprocessors}}) {
      all = (all ^ static_cast<uint64_t>(part)) * 0x9e3779b97f4a7c15;
      all ^= all >> 29;
    }
    return all;
  }

  Desc desc;
  Layout a, b, c, d;
  int64_t m, n, k, b_k;
};

bool IsAt(const void* address, uint32_t alignment) {
  return reinterpret_cast<uintptr_t>(address) % alignment == 0;
}

}  // namespace

std::vector<EmulatedMatmul> TakeEmulatedMatmuls() {
  std::lock_guard lock(mutex);
  return std::exchange(matmuls, {});
}

int64_t LiveEmulatedDescriptors() {
  std::lock_guard lock(live_mutex);
  return static_cast<int64_t>(Live().size());
}

void RefuseEmulatedActivations(bool refuse) { refuses_activations = refuse; }
void RefuseEmulatedAlgorithm(int algorithm) { refused_algorithm = algorithm; }
void FailNextEmulatedMatmul(cublasStatus_t status) { next_status = status; }
void CoolEmulatedClock(int calls, int ms) {
  cold_ms = ms;
  cold_calls = calls;
}

}  // namespace fsdp

using namespace fsdp;  // NOLINT: behind the names of C functions.

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  const cublasLtContext context;
  if (!TakeEmulatedMemory(context.taken)) return CUBLAS_STATUS_ALLOC_FAILED;
  *handle = new cublasLtContext(context);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  (void)TakeEmulatedMemory(-handle->taken);
  delete handle;
  return CUBLAS_STATUS_SUCCESS;
}

const char* cublasLtGetStatusString(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS:
      return "success";
    case CUBLAS_STATUS_INVALID_VALUE:
      return "an unsupported value or parameter was passed to the function";
    case CUBLAS_STATUS_NOT_SUPPORTED:
      return "the functionality requested is not supported";
    default:
      return "the library was not initialized";
  }
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* desc, cublasComputeType_t compute,
                                        cudaDataType_t scale) {
  if (compute != CUBLAS_COMPUTE_32F || scale != CUDA_R_32F) return CUBLAS_STATUS_INVALID_VALUE;
  return Make(Desc{CUBLAS_OP_N, CUBLAS_OP_N, CUBLASLT_EPILOGUE_DEFAULT, nullptr, nullptr, 0, 0},
              "cublasLtMatmulDescCreate", desc);
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc) { return Destroy(desc); }

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, size_t size) {
  Desc in = Get<Desc>(desc);
  const auto set = [&](auto* member) {
    if (size != sizeof(*member)) return CUBLAS_STATUS_INVALID_VALUE;
    std::memcpy(member, value, size);
    Put(in, desc);
    return CUBLAS_STATUS_SUCCESS;
  };
  switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
      return set(&in.a_op);
    case CUBLASLT_MATMUL_DESC_TRANSB:
      return set(&in.b_op);
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
      return set(&in.epilogue);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
      return set(&in.bias);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER:
      return set(&in.aux);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD:
      return set(&in.aux_ld);
    case CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET:
      return set(&in.multiprocessors);
  }
  return CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType type,
                                          uint64_t rows, uint64_t cols, int64_t ld) {
  return Make(Layout{type, static_cast<int64_t>(rows), static_cast<int64_t>(cols), ld},
              "cublasLtMatrixLayoutCreate", layout);
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  return Destroy(layout);
}

cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                cublasLtMatrixLayoutAttribute_t attribute,
                                                const void* value, size_t size) {
  Layout in = Get<Layout>(layout);
  if (attribute != CUBLASLT_MATRIX_LAYOUT_LD || size != sizeof(in.ld)) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  std::memcpy(&in.ld, value, size);
  Put(in, layout);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  return Make(Preference{0, CUBLASLT_REDUCTION_SCHEME_MASK, {256, 256, 256, 256}},
              "cublasLtMatmulPreferenceCreate", preference);
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  return Destroy(preference);
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void* value, size_t size) {
  Preference in = Get<Preference>(preference);
  const auto set = [&](auto* member) {
    if (size != sizeof(*member)) return CUBLAS_STATUS_INVALID_VALUE;
    std::memcpy(member, value, size);
    Put(in, preference);
    return CUBLAS_STATUS_SUCCESS;
  };
  switch (attribute) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
      return set(&in.workspace);
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
      return set(&in.schemes);
    default:
      return set(&in.alignment[attribute - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES]);
  }
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t desc,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int most,
                                              cublasLtMatmulHeuristicResult_t results[],
                                              int* found) {
  *found = 0;
  const Told told(desc, a, b, c, d);
  if (const cublasStatus_t status = told.Status(); status != CUBLAS_STATUS_SUCCESS) return status;
  const Preference wants = Get<Preference>(preference);
  for (int id = 0; id < kAlgorithms && *found < most; ++id) {
    if (kWorkspaceOf[id] > wants.workspace || (kSchemeOf[id] & ~wants.schemes) != 0) continue;
    cublasLtMatmulHeuristicResult_t& result = results[(*found)++] = {};
    Algo algo{kMagic, told.Fingerprint(), static_cast<uint32_t>(id), {}};
    std::copy(std::begin(wants.alignment), std::end(wants.alignment), algo.alignment);
    Put(algo, &result.algo);
    result.workspaceSize = kWorkspaceOf[id];
    result.state = CUBLAS_STATUS_SUCCESS;
  }
  return *found > 0 ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t, cublasLtMatmulDesc_t desc,
                                       cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                       cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                       const cublasLtMatmulAlgo_t* algo,
                                       cublasLtMatmulHeuristicResult_t* result) {
  const Told told(desc, a, b, c, d);
  if (const cublasStatus_t status = told.Status(); status != CUBLAS_STATUS_SUCCESS) return status;
  const Algo in = Get<Algo>(algo);
  if (in.magic != kMagic || in.of != told.Fingerprint() || in.id >= kAlgorithms) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  *result = {};
  result->algo = *algo;
  result->workspaceSize = kWorkspaceOf[in.id];
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t* algo,
                                                    cublasLtMatmulAlgoConfigAttributes_t attribute,
                                                    void* value, size_t size, size_t* written) {
  const Algo in = Get<Algo>(algo);
  if (in.magic != kMagic || attribute != CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME ||
      size != sizeof(kSchemeOf[in.id])) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  std::memcpy(value, &kSchemeOf[in.id], size);
  *written = size;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void* alpha,
                              const void* a, cublasLtMatrixLayout_t a_layout, const void* b,
                              cublasLtMatrixLayout_t b_layout, const void* beta, const void* c,
                              cublasLtMatrixLayout_t c_layout, void* d,
                              cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t* algo,
                              void* workspace, size_t workspace_bytes, cudaStream_t stream) {
  if (handle == nullptr || algo == nullptr) return CUBLAS_STATUS_NOT_INITIALIZED;
  cublasLtMatmulHeuristicResult_t checked;
  const cublasStatus_t status =
      cublasLtMatmulAlgoCheck(handle, desc, a_layout, b_layout, c_layout, d_layout, algo, &checked);
  if (status != CUBLAS_STATUS_SUCCESS) return status;
  const Told told(desc, a_layout, b_layout, c_layout, d_layout);
  const Algo in = Get<Algo>(algo);
  if (static_cast<int>(in.id) == refused_algorithm) return CUBLAS_STATUS_NOT_SUPPORTED;
  if (++matmul_calls == TheEmulatedGpus().cublaslt_refuses) return CUBLAS_STATUS_NOT_SUPPORTED;
  if (const auto failure = next_status.exchange(CUBLAS_STATUS_SUCCESS);
      failure != CUBLAS_STATUS_SUCCESS) {
    return failure;
  }
  const bool adds = *static_cast<const float*>(beta) != 0;
  const bool gelu = told.HasAux() && told.desc.epilogue != CUBLASLT_EPILOGUE_DGELU;
  if (gelu && adds) return CUBLAS_STATUS_NOT_SUPPORTED;  // The real one has it; no op of ours.
  const void* const matrices[] = {a, b, adds ? c : d, d};
  for (int i = 0; i < 4; ++i) {
    if (matrices[i] == nullptr || !IsAt(matrices[i], in.alignment[i])) {
      return CUBLAS_STATUS_INVALID_VALUE;
    }
  }
  if (workspace_bytes < checked.workspaceSize ||
      (checked.workspaceSize > 0 &&
       (workspace == nullptr || !IsAt(workspace, kWorkspaceAlignment))) ||
      (told.HasBias() && told.desc.bias == nullptr) ||
      (told.HasAux() && (told.desc.aux == nullptr || !IsAt(told.desc.aux, 16))) ||
      (told.HasAux() && told.desc.aux_ld != told.d.ld) ||  // Ours have one stride.
      (adds && *static_cast<const float*>(beta) != 1)) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  {
    std::lock_guard lock(mutex);
    matmuls.push_back({told.m, told.n, told.k, static_cast<cublasLtEpilogue_t>(told.desc.epilogue),
                       adds, static_cast<int>(in.id), told.desc.multiprocessors});
  }
  const EmulatedLibraryCall call;
  // Whatever the algorithm is, as many operations of the stream.
  std::byte* const at = HostAddress(static_cast<std::byte*>(workspace));
  // All that it was told of is the library's to use, to the end.
  constexpr size_t kEnd = 64;
  const bool cold = cold_calls > 0 && cold_calls-- > 0;
  const int slow_ms = cold ? cold_ms.load() : in.id == 0 ? 0 : cold_ms / 3;
  const cudaError_t launched =
      LaunchOnEmulatedStream(stream, [at, bytes = checked.workspaceSize, workspace_bytes, slow_ms] {
        if (bytes > 0) std::memset(at, 0xff, bytes);
        if (workspace_bytes >= kEnd) std::memset(at + workspace_bytes - kEnd, 0xff, kEnd);
        if (slow_ms > 0) std::this_thread::sleep_for(std::chrono::milliseconds(slow_ms));
      });
  if (launched != cudaSuccess) return CUBLAS_STATUS_NOT_INITIALIZED;
  // Row by row it is the product of the transposes, the other way round.
  const auto operand = [](const void* data, const Layout& layout, int32_t op) {
    return GemmOperand{data, layout.ld, op == CUBLAS_OP_T, DTypeOf(layout.type)};
  };
  const DType type = DTypeOf(told.d.type);
  GemmEpilogue epilogue{.scale = *static_cast<const float*>(alpha)};
  if (told.HasBias()) {
    epilogue.bias = ConstView(static_cast<const std::byte*>(told.desc.bias), type, {told.m});
  }
  if (adds) epilogue.added = c;
  if (told.HasAux() && !gelu) epilogue.gelu_of = told.desc.aux;
  const auto multiply = [&](void* to, DType as) {
    Gemm(stream, told.n, told.m, told.k, operand(b, told.b, told.desc.b_op),
         operand(a, told.a, told.desc.a_op), {to, told.d.ld, as}, epilogue);
  };
  multiply(gelu ? told.desc.aux : d, type);
  if (!gelu) return CUBLAS_STATUS_SUCCESS;
  // GELU of the unrounded sum, as in the real library.
  const auto sums = std::make_shared<std::vector<float>>(told.n * told.d.ld);
  const auto activated = std::make_shared<std::vector<float>>(sums->size());
  epilogue.gelu = activated->data();
  multiply(sums->data(), DType::kFloat32);
  (void)LaunchOnEmulatedStream(
      stream, [sums, activated, type, told, to = HostAddress(static_cast<std::byte*>(d))] {
        for (int64_t row = 0; row < told.n; ++row) {
          for (int64_t i = row * told.d.ld; i < row * told.d.ld + told.m; ++i) {
            const float value = (*activated)[i];
            if (type == DType::kFloat32) reinterpret_cast<float*>(to)[i] = value;
            if (type == DType::kBFloat16) reinterpret_cast<BFloat16*>(to)[i] = BFloat16(value);
            if (type == DType::kFloat16) reinterpret_cast<Float16*>(to)[i] = Float16(value);
          }
        }
      });
  return CUBLAS_STATUS_SUCCESS;
}

namespace {

const fsdp::EmulatedGpuLibrary fake(GpuLibrary::kCublasLt,
                                    {FSDP_EMULATED_FUNCTION(cublasLtCreate),
                                     FSDP_EMULATED_FUNCTION(cublasLtDestroy),
                                     FSDP_EMULATED_FUNCTION(cublasLtGetStatusString),
                                     FSDP_EMULATED_FUNCTION(cublasLtMatmulDescCreate),
                                     FSDP_EMULATED_FUNCTION(cublasLtMatmulDescDestroy),
                                     FSDP_EMULATED_FUNCTION(cublasLtMatmulDescSetAttribute),
                                     FSDP_EMULATED_FUNCTION(cublasLtMatrixLayoutCreate),
                                     FSDP_EMULATED_FUNCTION(cublasLtMatrixLayoutDestroy),
                                     FSDP_EMULATED_FUNCTION(cublasLtMatrixLayoutSetAttribute),
                                     FSDP_EMULATED_FUNCTION(cublasLtMatmulPreferenceCreate),
                                     FSDP_EMULATED_FUNCTION(cublasLtMatmulPreferenceDestroy),
                                     FSDP_EMULATED_FUNCTION(cublasLtMatmulPreferenceSetAttribute),
                                     FSDP_EMULATED_FUNCTION(cublasLtMatmulAlgoGetHeuristic),
                                     FSDP_EMULATED_FUNCTION(cublasLtMatmulAlgoCheck),
                                     FSDP_EMULATED_FUNCTION(cublasLtMatmulAlgoConfigGetAttribute),
                                     FSDP_EMULATED_FUNCTION(cublasLtMatmul)});

}  // namespace
