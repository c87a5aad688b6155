// cuDNN's backend API for an emulated GPU. It has cuDNN's descriptors, recognises attention and
// convolutions (cudnn_graph.h), and refuses all that a caller might get wrong.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/emulated/cudart.h"
#include "tests/emulated/cudnn_attributes.h"
#include "tests/emulated/cudnn_graph.h"
#include "tests/emulated/gpu_libraries.h"
#include "trainer/ops/cudnn/cudnn_api.h"

namespace fsdp {
namespace {

using cudnn::Attribute;
using cudnn::AttributeType;
using cudnn::DescriptorType;
using cudnn::Status;

constexpr Status kBadParam = 2000, kNotSupported = 3000, kNoDeviceMemory = 4004;

constexpr int64_t kBytesOfAHandle = 4 << 20;
// For EmulatedCalls().
constexpr const char *kPlan = "a plan of cuDNN's", *kExecution = "a graph of cuDNN's";

struct Object {
  DescriptorType type;
  bool finalized = false;
  struct Values {
    int64_t n = 0;
    std::vector<std::byte> bytes;
  };
  std::map<Attribute, Values> values = {};
  std::shared_ptr<const CudnnGraph> graph = nullptr;  // For a graph, and objects made from one.
  int64_t engine = 0;                                 // For a configuration, an engine, a plan.

  template <typename T>
  T Get(Attribute attribute, T otherwise) const {
    const auto at = values.find(attribute);
    if (at != values.end()) std::memcpy(&otherwise, at->second.bytes.data(), sizeof(T));
    return otherwise;
  }
  const Object* Of(Attribute attribute) const { return Get<const Object*>(attribute, nullptr); }
};

struct HandleObject {
  cudaStream_t stream = nullptr;
};

thread_local std::string last_error;

Status Refuse(Status status, const std::string& why) {
  last_error = why;
  return status;
}

CudnnTensor TensorOf(const Object& object) {
  CudnnTensor t;
  t.id = object.Get<int64_t>(Attribute::kTensorUniqueId, 0);
  t.dims = object.Get(Attribute::kTensorDimensions, t.dims);
  t.strides = object.Get(Attribute::kTensorStrides, t.strides);
  t.type = object.Get(Attribute::kTensorDataType, t.type);
  t.alignment = object.Get<int64_t>(Attribute::kTensorByteAlignment, 0);
  t.is_virtual = object.Get(Attribute::kTensorIsVirtual, false);
  t.by_value = object.Get(Attribute::kTensorIsByValue, false);
  return t;
}

// The attributes of an operation that is a convolution: 6, all of which it needs.
struct ConvolutionAttributes {
  Attribute alpha, beta, rule, x, w, y;
};
std::optional<ConvolutionAttributes> ConvolutionAttributesOf(DescriptorType type) {
  using A = Attribute;
  switch (type) {
    case DescriptorType::kOperationConvolutionForward:
      return ConvolutionAttributes{
          A::kOperationConvolutionForwardAlpha,    A::kOperationConvolutionForwardBeta,
          A::kOperationConvolutionForwardConvDesc, A::kOperationConvolutionForwardX,
          A::kOperationConvolutionForwardW,        A::kOperationConvolutionForwardY};
    case DescriptorType::kOperationConvolutionBackwardData:
      return ConvolutionAttributes{
          A::kOperationConvolutionBwdDataAlpha,    A::kOperationConvolutionBwdDataBeta,
          A::kOperationConvolutionBwdDataConvDesc, A::kOperationConvolutionBwdDataDx,
          A::kOperationConvolutionBwdDataW,        A::kOperationConvolutionBwdDataDy};
    case DescriptorType::kOperationConvolutionBackwardFilter:
      return ConvolutionAttributes{
          A::kOperationConvolutionBwdFilterAlpha,    A::kOperationConvolutionBwdFilterBeta,
          A::kOperationConvolutionBwdFilterConvDesc, A::kOperationConvolutionBwdFilterX,
          A::kOperationConvolutionBwdFilterDw,       A::kOperationConvolutionBwdFilterDy};
    default:
      return std::nullopt;
  }
}

CudnnConvolution RuleOf(const Object& object) {
  CudnnConvolution rule;
  rule.math = object.Get(Attribute::kConvolutionCompType, rule.math);
  rule.stride = object.Get(Attribute::kConvolutionFilterStrides, rule.stride);
  rule.before = object.Get(Attribute::kConvolutionPrePaddings, rule.before);
  rule.after = object.Get(Attribute::kConvolutionPostPaddings, rule.after);
  rule.dilation = object.Get(Attribute::kConvolutionDilations, rule.dilation);
  return rule;
}

// Seven attributes, those of two dimensions with as many values.
Status FinalizeConvolution(const Object& object) {
  if (object.values.size() != 7) return Refuse(kBadParam, "an attribute of a convolution");
  if (object.Get<int64_t>(Attribute::kConvolutionSpatialDims, 0) != 2) {
    return Refuse(kBadParam, "no convolution of two dimensions");
  }
  for (const Attribute a :
       {Attribute::kConvolutionFilterStrides, Attribute::kConvolutionPrePaddings,
        Attribute::kConvolutionPostPaddings, Attribute::kConvolutionDilations}) {
    if (object.values.at(a).n != 2) return Refuse(kBadParam, "two values are wanted");
  }
  if (object.Get(Attribute::kConvolutionConvMode, cudnn::ConvolutionMode{}) !=
      cudnn::ConvolutionMode::kCrossCorrelation) {
    return Refuse(kNotSupported, "a convolution that turns its kernel round");
  }
  return cudnn::kSuccess;
}

Status FinalizeGraph(Object& object) {
  CudnnGraph graph;
  const auto take = [&](const Object& operation, Attribute attribute) -> int64_t {
    const Object* const tensor = operation.Of(attribute);
    if (tensor == nullptr) return 0;
    const CudnnTensor t = TensorOf(*tensor);
    graph.tensors[t.id] = t;
    return t.id;
  };
  const Object::Values& all = object.values[Attribute::kOperationGraphOps];
  for (int64_t i = 0; i < all.n; ++i) {
    const Object* operation = nullptr;
    std::memcpy(&operation, all.bytes.data() + i * sizeof(operation), sizeof(operation));
    CudnnOperation o;
    o.type = operation->type;
    if (const auto pass = ConvolutionAttributesOf(o.type)) {
      if (operation->values.size() != 6 || all.n != 1) return Refuse(kBadParam, "a convolution");
      o.x = take(*operation, pass->x);
      o.b = take(*operation, pass->w);
      o.y = take(*operation, pass->y);
      graph.convolution = RuleOf(*operation->Of(pass->rule));
      graph.convolution->alpha = operation->Get(pass->alpha, 0.0f);
      graph.convolution->beta = operation->Get(pass->beta, 0.0f);
      graph.operations.push_back(o);
      continue;
    }
    switch (o.type) {
      case DescriptorType::kOperationMatmul:
        o.x = take(*operation, Attribute::kOperationMatmulADesc);
        o.b = take(*operation, Attribute::kOperationMatmulBDesc);
        o.y = take(*operation, Attribute::kOperationMatmulCDesc);
        break;
      case DescriptorType::kOperationReduction:
        o.x = take(*operation, Attribute::kOperationReductionXDesc);
        o.y = take(*operation, Attribute::kOperationReductionYDesc);
        o.reduction = operation->Of(Attribute::kOperationReductionDesc)
                          ->Get(Attribute::kReductionOperator, o.reduction);
        break;
      case DescriptorType::kOperationReshape:
        o.x = take(*operation, Attribute::kOperationReshapeXDesc);
        o.y = take(*operation, Attribute::kOperationReshapeYDesc);
        break;
      case DescriptorType::kOperationPointwise: {
        const Object& rule = *operation->Of(Attribute::kOperationPointwisePwDescriptor);
        o.mode = rule.Get(Attribute::kPointwiseMode, o.mode);
        o.axis = rule.Get<int64_t>(Attribute::kPointwiseAxis, -1);
        o.x = take(*operation, Attribute::kOperationPointwiseXDesc);
        o.b = take(*operation, Attribute::kOperationPointwiseBDesc);
        o.t = take(*operation, Attribute::kOperationPointwiseTDesc);
        o.y = take(*operation, Attribute::kOperationPointwiseYDesc);
        break;
      }
      default:
        return Refuse(kBadParam, "no operation");
    }
    graph.operations.push_back(o);
  }
  object.graph = std::make_shared<const CudnnGraph>(std::move(graph));
  return cudnn::kSuccess;
}

Status FinalizeDeviceProp(const Object& object) {
  if (object.values.contains(Attribute::kDevicePropDeviceId)) {
    const auto gpu = object.Get<int32_t>(Attribute::kDevicePropDeviceId, 0);
    if (gpu < 0 || gpu >= TheEmulatedGpus().count) return Refuse(kBadParam, "no such GPU");
  }
  return object.values.size() == 1 ? cudnn::kSuccess : Refuse(kBadParam, "one GPU is wanted");
}

Status cudnnCreate(cudnn::Handle* handle) {
  static std::vector<std::unique_ptr<HandleObject>> all;  // They live as long as the process.
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  if (!fsdp::TakeEmulatedMemory(kBytesOfAHandle)) return kNoDeviceMemory;
  *handle = all.emplace_back(std::make_unique<HandleObject>()).get();
  return cudnn::kSuccess;
}

Status cudnnSetStream(cudnn::Handle handle, cudaStream_t stream) {
  static_cast<HandleObject*>(handle)->stream = stream;
  return cudnn::kSuccess;
}

const char* cudnnGetErrorString(Status status) {
  return status == kNotSupported ? "CUDNN_STATUS_NOT_SUPPORTED" : "CUDNN_STATUS_BAD_PARAM";
}

void cudnnGetLastErrorString(char* message, size_t max_size) {
  std::snprintf(message, max_size, "%s", last_error.c_str());
}

Status cudnnBackendCreateDescriptor(DescriptorType type, cudnn::DescriptorHandle* descriptor) {
  *descriptor = new Object{type};
  return cudnn::kSuccess;
}

Status cudnnBackendDestroyDescriptor(cudnn::DescriptorHandle descriptor) {
  delete static_cast<Object*>(descriptor);
  return cudnn::kSuccess;
}

Status cudnnBackendSetAttribute(cudnn::DescriptorHandle descriptor, Attribute attribute,
                                AttributeType type, int64_t count, const void* values) {
  Object& object = *static_cast<Object*>(descriptor);
  if (object.finalized || !IsCudnnAttribute(object.type, attribute, type)) {
    return Refuse(kBadParam, "attribute " + std::to_string(static_cast<int>(attribute)));
  }
  if (type == AttributeType::kBackendDescriptor) {
    for (int64_t i = 0; i < count; ++i) {
      if (!static_cast<Object* const*>(values)[i]->finalized) {
        return Refuse(kBadParam, "a descriptor that is not finalized");
      }
    }
  }
  const auto* const bytes = static_cast<const std::byte*>(values);
  object.values[attribute] = {count, {bytes, bytes + count * CudnnSizeOf(type)}};
  return cudnn::kSuccess;
}

Status cudnnBackendFinalize(cudnn::DescriptorHandle descriptor) {
  Object& object = *static_cast<Object*>(descriptor);
  Status status = cudnn::kSuccess;
  switch (object.type) {
    case DescriptorType::kTensor: {
      const CudnnTensor t = TensorOf(object);
      if (t.id == 0 || t.Elements() <= 0 || t.alignment <= 0) status = Refuse(kBadParam, "tensor");
      break;
    }
    case DescriptorType::kConvolution:
      status = FinalizeConvolution(object);
      break;
    case DescriptorType::kOperationGraph:
      status = FinalizeGraph(object);
      break;
    case DescriptorType::kDeviceProp:
      status = FinalizeDeviceProp(object);
      break;
    case DescriptorType::kEngineHeur:
      object.graph = object.Of(Attribute::kEngineHeurOperationGraph)->graph;
      if (object.Of(Attribute::kEngineHeurDeviceProp) == nullptr) {
        status = Refuse(kBadParam, "no GPU");
      }
      break;
    case DescriptorType::kExecutionPlan:
      object.graph = object.Of(Attribute::kExecutionPlanEngineConfig)->graph;
      object.engine = object.Of(Attribute::kExecutionPlanEngineConfig)->engine;
      fsdp::CountEmulatedCall(kPlan);
      if (const std::string why = object.graph->Refusal(); !why.empty()) {
        status = Refuse(kNotSupported, why);
      } else if (const std::string of = object.graph->RefusalOf(TheEmulatedGpus().cudnn);
                 !of.empty()) {
        status = Refuse(kNotSupported, of);
      } else if (const int64_t most = fsdp::TheEmulatedGpus().cudnn_plans;
                 most >= 0 && fsdp::EmulatedCalls(kPlan) > most) {
        status = Refuse(kNotSupported, "too many plans");
      } else if (!fsdp::TheEmulatedGpus().cudnn_late_plans && fsdp::EmulatedCalls(kExecution) > 0) {
        status = Refuse(kNotSupported, "a plan comes late");
      }
      break;
    default:
      break;
  }
  object.finalized = status == cudnn::kSuccess;
  return status;
}

Status cudnnBackendGetAttribute(cudnn::DescriptorHandle descriptor, Attribute attribute,
                                AttributeType type, int64_t requested, int64_t* count,
                                void* values) {
  const Object& object = *static_cast<const Object*>(descriptor);
  if (!IsCudnnAttribute(object.type, attribute, type)) {
    return Refuse(kBadParam, "attribute " + std::to_string(static_cast<int>(attribute)));
  }
  *count = 1;
  switch (attribute) {
    case Attribute::kEngineHeurResults: {
      const bool first =
          object.Get(Attribute::kEngineHeurMode, cudnn::HeurMode::kFallback) == cudnn::HeurMode::kA;
      const std::vector<CudnnEngine> engines = object.graph->Engines();
      *count = first ? static_cast<int64_t>(engines.size()) : 0;
      for (int64_t i = 0; i < std::min(requested, *count); ++i) {
        Object& config = *static_cast<Object* const*>(values)[i];
        config.graph = object.graph;
        config.engine = engines[static_cast<size_t>(i)].number;
        config.finalized = true;
      }
      return cudnn::kSuccess;
    }
    case Attribute::kEngineCfgEngine: {
      Object& engine = **static_cast<Object* const*>(values);
      engine.engine = object.engine;
      engine.graph = object.graph;
      return cudnn::kSuccess;
    }
    case Attribute::kEngineGlobalIndex:
      *static_cast<int64_t*>(values) = object.engine;
      return cudnn::kSuccess;
    case Attribute::kEngineNumericalNote: {
      const std::vector<cudnn::NumericalNote> notes = object.graph->Engine(object.engine).notes;
      *count = static_cast<int64_t>(notes.size());
      std::copy_n(notes.begin(), std::min(requested, *count),
                  static_cast<cudnn::NumericalNote*>(values));
      return cudnn::kSuccess;
    }
    case Attribute::kExecutionPlanWorkspaceSize:
      *static_cast<int64_t*>(values) = object.graph->Engine(object.engine).bytes;
      return cudnn::kSuccess;
    default:
      return Refuse(kBadParam, "attribute " + std::to_string(static_cast<int>(attribute)));
  }
}

struct Place {
  std::string name;
  uintptr_t begin, end;
};

// A GPU's blocks write sums and statistics while others still read. So each tensor needs a place of
// its own, and so does the workspace. q, k, v and their gradients may be interleaved: rows of one
// may lie between those of another.
std::string OverlapOf(const CudnnGraph& graph, const std::map<int64_t, void*>& memory,
                      const std::byte* workspace, int64_t bytes) {
  const auto place = [](std::string name, const void* begin, int64_t bytes) {
    const auto first = reinterpret_cast<uintptr_t>(begin);
    return Place{std::move(name), first, first + static_cast<uintptr_t>(bytes)};
  };
  std::vector<Place> all = {place("the workspace", workspace, bytes)};
  for (const auto& [id, address] : memory) {
    const CudnnTensor& t = graph.tensors.at(id);
    const bool is_float = t.type == cudnn::DataType::kFloat;
    if (t.by_value || (!is_float && !graph.convolution)) continue;
    all.push_back(
        place("tensor " + std::to_string(id), address, (is_float ? 4 : 2) * t.Elements()));
  }
  for (const Place& a : all) {
    for (const Place& b : all) {
      if (&a != &b && a.begin < b.end && b.begin < a.end) return a.name + " overlaps " + b.name;
    }
  }
  return "";
}

Status cudnnBackendExecute(cudnn::Handle handle, cudnn::DescriptorHandle plan,
                           cudnn::DescriptorHandle variant_pack) {
  fsdp::CountEmulatedCall(kExecution);
  const Object& made = *static_cast<const Object*>(plan);
  const Object& pack = *static_cast<const Object*>(variant_pack);
  if (!made.finalized || !pack.finalized) return Refuse(kBadParam, "not finalized");
  const std::shared_ptr<const CudnnGraph> graph = made.graph;
  std::map<int64_t, void*> given, memory;
  const Object::Values& ids = pack.values.at(Attribute::kVariantPackUniqueIds);
  const Object::Values& addresses = pack.values.at(Attribute::kVariantPackDataPointers);
  if (ids.n != addresses.n) return Refuse(kBadParam, "as many ids as addresses are wanted");
  for (int64_t i = 0; i < ids.n; ++i) {
    int64_t id = 0;
    void* address = nullptr;
    std::memcpy(&id, ids.bytes.data() + i * sizeof(id), sizeof(id));
    std::memcpy(&address, addresses.bytes.data() + i * sizeof(address), sizeof(address));
    if (!graph->tensors.contains(id)) return Refuse(kBadParam, "no tensor " + std::to_string(id));
    given[id] = address;
  }
  std::map<int64_t, float> scalars;
  for (const auto& [id, t] : graph->tensors) {
    if (t.is_virtual) continue;
    void* const address = given[id];
    if (address == nullptr || reinterpret_cast<uintptr_t>(address) % t.alignment != 0) {
      return Refuse(kBadParam, "the address of tensor " + std::to_string(id));
    }
    memory[id] = address;
    if (t.by_value) scalars[id] = *static_cast<const float*>(address);
  }
  const int64_t engine = made.engine, bytes = graph->Engine(engine).bytes;
  auto* const workspace = pack.Get<std::byte*>(Attribute::kVariantPackWorkspace, nullptr);
  if (workspace == nullptr || reinterpret_cast<uintptr_t>(workspace) % 16 != 0) {
    return Refuse(kBadParam, "the workspace");
  }
  if (const std::string why = OverlapOf(*graph, memory, workspace, bytes); !why.empty()) {
    return Refuse(kBadParam, why);
  }
  const bool wrong = graph->IsWrongIn(TheEmulatedGpus().cudnn);
  const auto run = [graph, memory, scalars, workspace, engine, bytes, wrong]() mutable {
    std::memset(workspace, 0xff, static_cast<size_t>(bytes));  // All of it is cuDNN's to use.
    for (auto& [id, value] : scalars) memory[id] = &value;
    graph->Run(memory, engine);
    if (wrong) graph->Spoil(memory);
  };
  const fsdp::EmulatedLibraryCall call;
  return LaunchOnEmulatedStream(static_cast<HandleObject*>(handle)->stream, run) == cudaSuccess
             ? cudnn::kSuccess
             : Refuse(kBadParam, "the GPU has failed");
}

const EmulatedGpuLibrary library(
    GpuLibrary::kCudnn,
    {FSDP_EMULATED_FUNCTION(cudnnCreate), FSDP_EMULATED_FUNCTION(cudnnSetStream),
     FSDP_EMULATED_FUNCTION(cudnnGetErrorString), FSDP_EMULATED_FUNCTION(cudnnGetLastErrorString),
     FSDP_EMULATED_FUNCTION(cudnnBackendCreateDescriptor),
     FSDP_EMULATED_FUNCTION(cudnnBackendDestroyDescriptor),
     FSDP_EMULATED_FUNCTION(cudnnBackendFinalize), FSDP_EMULATED_FUNCTION(cudnnBackendSetAttribute),
     FSDP_EMULATED_FUNCTION(cudnnBackendGetAttribute),
     FSDP_EMULATED_FUNCTION(cudnnBackendExecute)});

}  // namespace
}  // namespace fsdp
