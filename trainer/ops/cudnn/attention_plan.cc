#include "trainer/ops/cudnn/attention_plan.h"

#include <algorithm>
#include <limits>

#include "trainer/core/errors.h"
#include "trainer/ops/cudnn/attention_workspace.h"

namespace fsdp::cudnn {
namespace {

constexpr const char* kGpu = "the GPU's properties";

int64_t PlannedBytes(const AttentionProblem& p) {
  return p.backward ? CudnnBackwardWorkspace(p.dims, p.deterministic).plan
                    : CudnnForwardWorkspace(p.dims).plan;
}

std::string NameOf(const AttentionProblem& p) {
  return std::string("cuDNN: attention ") + (p.backward ? "backward" : "forward") + " of " +
         std::to_string(p.dims.batch) + " x " + std::to_string(p.dims.seq) + " tokens, " +
         (p.mask == AttentionMask::kFull ? std::to_string(p.dims.keys) + " keys, " : "") +
         std::to_string(p.dims.heads) + ":" + std::to_string(p.dims.kv_heads) + " x " +
         std::to_string(p.dims.head_dim);
}

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

AttentionPlan::AttentionPlan(const Api& api, const Descriptor& gpu, const AttentionProblem& problem)
    : api_(api),
      backward_(problem.backward),
      deterministic_(problem.deterministic),
      planned_bytes_(PlannedBytes(problem)),
      operations_(AttentionGraph(api, problem)),
      graph_(operations_.Finish()),
      masked_(problem.mask == AttentionMask::kCausal),
      negative_infinity_(-std::numeric_limits<float>::infinity()) {
  for (const HeurMode mode : {HeurMode::kA, HeurMode::kFallback}) {
    for (const Descriptor& config : Configs(api, gpu, graph_, mode)) {
      if (Take(gpu, config)) return;
    }
  }
  throw DeviceError(NameOf(problem) + ": no kernel" + (refusals_.empty() ? "" : ": " + refusals_));
}

bool AttentionPlan::Take(const Descriptor& gpu, const Descriptor& config) {
  const auto refuse = [&](const std::string& why) {
    refusals_ += (refusals_.empty() ? "" : "; ") + why;
    return false;
  };
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
    if (deterministic_ &&
        std::find(notes.begin(), notes.end(), NumericalNote::kNondeterministic) != notes.end()) {
      return refuse(name + " is not deterministic");
    }
    Descriptor plan(api_, DescriptorType::kExecutionPlan, "execution plan");
    plan.Set(Attribute::kExecutionPlanEngineConfig, config)
        .Set(Attribute::kExecutionPlanDeviceProp, gpu)
        .Finalize();
    plan.Get(Attribute::kExecutionPlanWorkspaceSize, AttributeType::kInt64, 1, &workspace_bytes_);
    if (workspace_bytes_ > planned_bytes_) {
      return refuse(name + " wants " + std::to_string(workspace_bytes_) + " bytes, planned are " +
                    std::to_string(planned_bytes_));
    }
    plan_.push_back(std::move(plan));
    return true;
  } catch (const DeviceError& error) {
    return refuse(error.what());
  }
}

void AttentionPlan::Execute(Handle handle, const Operands& operands, float scale,
                            std::byte* workspace) const {
  std::vector<int64_t> ids;
  std::vector<const void*> addresses;
  for (const auto& [id, address] : operands) {
    ids.push_back(id);
    addresses.push_back(address);
  }
  const auto add = [&](AttentionTensor id, const float& scalar) {
    ids.push_back(id);
    addresses.push_back(&scalar);
  };
  add(kScale, scale);
  if (masked_) add(kNegativeInfinity, negative_infinity_);
  if (backward_) add(kOne, one_);
  Descriptor pack(api_, DescriptorType::kVariantPack, "variant pack");
  const auto n = static_cast<int64_t>(ids.size());
  pack.Set(Attribute::kVariantPackUniqueIds, ids.data(), n)
      .Set(Attribute::kVariantPackDataPointers, AttributeType::kVoidPtr, n, addresses.data())
      .Set(Attribute::kVariantPackWorkspace, AttributeType::kVoidPtr, 1, &workspace)
      .Finalize();
  Check(api_, api_.execute(handle, plan_[0].handle(), pack.handle()), "attention");
}

}  // namespace fsdp::cudnn
