#include "trainer/ops/cudnn/execution_plan.h"

#include <algorithm>
#include <utility>

#include "trainer/core/errors.h"

namespace fsdp::cudnn {
namespace {

constexpr const char* kGpu = "the GPU's properties";

// The configurations that the heuristic would run, best first.
std::vector<Descriptor> Configs(const Api& api, const Descriptor& gpu, const Descriptor& graph,
                                HeurMode mode) {
  Descriptor heuristic(api, DescriptorType::kEngineHeur, "heuristic");
  heuristic.Set(Attribute::kEngineHeurOperationGraph, graph)
      .Set(Attribute::kEngineHeurMode, mode)
      .Set(Attribute::kEngineHeurDeviceProp, gpu)
      .Finalize();
  const int64_t n =
      heuristic.Get(Attribute::kEngineHeurResults, AttributeType::kBackendDescriptor, 0, nullptr);
  std::vector<Descriptor> configs;
  std::vector<DescriptorHandle> handles;
  for (int64_t i = 0; i < n; ++i) {
    configs.emplace_back(api, DescriptorType::kEngineCfg, "engine configuration");
    handles.push_back(configs.back().handle());
  }
  if (n == 0) return configs;
  const int64_t got = heuristic.Get(Attribute::kEngineHeurResults,
                                    AttributeType::kBackendDescriptor, n, handles.data());
  while (static_cast<int64_t>(configs.size()) > std::min(n, got)) configs.pop_back();
  return configs;
}

const char* Words(NumericalNote note) {
  switch (note) {
    case NumericalNote::kNondeterministic:
      return " is not deterministic";
    case NumericalNote::kTensorCore:
      return " multiplies by tensor cores";
    case NumericalNote::kDownConvertInputs:
      return " rounds its inputs";
    case NumericalNote::kReducedPrecisionReduction:
      return " rounds its sums on the way";
    default:
      return " transforms its inputs";
  }
}

}  // namespace

Descriptor DevicePropertiesOf(const Api& api, Handle handle) {
  Descriptor gpu(api, DescriptorType::kDeviceProp, kGpu);
  gpu.Set(Attribute::kDevicePropHandle, AttributeType::kHandle, 1, &handle).Finalize();
  return gpu;
}
Descriptor DevicePropertiesOf(const Api& api, int gpu_index) {
  Descriptor gpu(api, DescriptorType::kDeviceProp, kGpu);
  gpu.Set(Attribute::kDevicePropDeviceId, static_cast<int32_t>(gpu_index)).Finalize();
  return gpu;
}
Descriptor DevicePropertiesOf(const Api& api, const std::string& description) {
  Descriptor gpu(api, DescriptorType::kDeviceProp, kGpu);
  gpu.Set(Attribute::kDevicePropJsonRepresentation, description.data(),
          static_cast<int64_t>(description.size()))
      .Finalize();
  return gpu;
}

ExecutionPlan::ExecutionPlan(const Api& api, const Descriptor& gpu, const Descriptor& graph,
                             const PlanLimits& limits, const std::string& name)
    : api_(api) {
  std::string refusals;
  for (const HeurMode mode : {HeurMode::kA, HeurMode::kFallback}) {
    for (const Descriptor& config : Configs(api, gpu, graph, mode)) {
      const std::string refusal = Take(gpu, config, limits);
      if (refusal.empty()) return;
      refusals += (refusals.empty() ? ": " : "; ") + refusal;
    }
  }
  throw DeviceError(name + ": no kernel" + refusals);
}

std::string ExecutionPlan::Take(const Descriptor& gpu, const Descriptor& config,
                                const PlanLimits& limits) {
  try {
    Descriptor engine(api_, DescriptorType::kEngine, "engine");
    DescriptorHandle handle = engine.handle();
    config.Get(Attribute::kEngineCfgEngine, AttributeType::kBackendDescriptor, 1, &handle);
    engine.Get(Attribute::kEngineGlobalIndex, AttributeType::kInt64, 1, &engine_);
    const std::string name = "engine " + std::to_string(engine_);
    std::vector<NumericalNote> notes(32);
    const auto room = static_cast<int64_t>(notes.size());
    notes.resize(static_cast<size_t>(
        std::min(room, engine.Get(Attribute::kEngineNumericalNote, AttributeType::kNumericalNote,
                                  room, notes.data()))));
    for (const NumericalNote note : limits.refused) {
      if (std::find(notes.begin(), notes.end(), note) != notes.end()) return name + Words(note);
    }
    Descriptor plan(api_, DescriptorType::kExecutionPlan, "execution plan");
    plan.Set(Attribute::kExecutionPlanEngineConfig, config)
        .Set(Attribute::kExecutionPlanDeviceProp, gpu)
        .Finalize();
    plan.Get(Attribute::kExecutionPlanWorkspaceSize, AttributeType::kInt64, 1, &workspace_bytes_);
    if (workspace_bytes_ > limits.bytes) {
      return name + " wants " + std::to_string(workspace_bytes_) + " bytes, planned are " +
             std::to_string(limits.bytes);
    }
    plan_.push_back(std::move(plan));
    return "";
  } catch (const DeviceError& error) {
    return error.what();
  }
}

void ExecutionPlan::Execute(Handle handle, const GraphOperands& operands, std::byte* workspace,
                            const char* what) const {
  Descriptor pack(api_, DescriptorType::kVariantPack, "variant pack");
  const auto n = static_cast<int64_t>(operands.ids.size());
  pack.Set(Attribute::kVariantPackUniqueIds, operands.ids.data(), n)
      .Set(Attribute::kVariantPackDataPointers, AttributeType::kVoidPtr, n,
           operands.addresses.data())
      .Set(Attribute::kVariantPackWorkspace, AttributeType::kVoidPtr, 1, &workspace)
      .Finalize();
  Check(api_, api_.execute(handle, plan_[0].handle(), pack.handle()), what);
}

namespace {

const Api& TheApi() {
  const FoundApi& found = FindApi();
  if (found.api == nullptr) throw DeviceError("no cuDNN: " + found.why_not);
  return *found.api;
}

Handle NewHandle(const Api& api) {
  Handle handle = nullptr;
  Check(api, api.create(&handle), "cudnnCreate");
  return handle;
}

}  // namespace

ThreadHandle& ThreadHandle::Get() {
  thread_local ThreadHandle handle;
  return handle;
}

Handle ThreadHandle::On(CudaStreamHandle stream) const {
  Check(api_, api_.set_stream(handle_, stream), "cudnnSetStream");
  stream.WillPut(kOperationsOfCudnn);
  return handle_;
}

ThreadHandle::ThreadHandle()
    : api_(TheApi()), handle_(NewHandle(api_)), gpu_(DevicePropertiesOf(api_, handle_)) {}

}  // namespace fsdp::cudnn
