#include "trainer/engine/step_memory.h"

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <utility>

#include "trainer/comm/sim/sim_communicator.h"
#include "trainer/core/check.h"
#include "trainer/fsdp/executor.h"
#include "trainer/fsdp/memory_plan.h"
#include "trainer/fsdp/model_layout.h"
#include "trainer/fsdp/step_position.h"
#include "trainer/runtime/sim/sim_device.h"

namespace fsdp {
namespace {

constexpr const char* kWait = "wait";

// A plan's recorder that adds up what is there.
class CountingRecorder final : public PhasedAllocator {
 public:
  explicit CountingRecorder(bool host_too) : host_too_(host_too) {}

  void Begin(Phase phase) override {
    recorder_.Begin(phase);
    persistent_now_ = phase == Phase::kPersistent;
  }
  std::byte* Allocate(int64_t bytes, MemoryUse use) override {
    if (!persistent_now_) {
      working_ += Counted(bytes, use);
    } else if (use.kind != MemoryKind::kUnsharded) {
      persistent_ += Counted(bytes, use);
    }
    return recorder_.Allocate(bytes, use);
  }
  std::byte* AllocateForUpdates(int64_t bytes, MemoryUse use) override {
    updates_ += Counted(bytes, use);
    return recorder_.AllocateForUpdates(bytes, use);
  }
  void Free(std::byte* data, int64_t bytes, MemoryUse use) noexcept override {
    working_ -= Counted(bytes, use);  // Nobody frees persistent memory.
    recorder_.Free(data, bytes, use);
  }

  int64_t persistent() const { return persistent_; }  // Without what units take and give back.
  int64_t working() const { return working_; }        // A micro-batch's, now.
  int64_t updates() const { return updates_; }

 private:
  int64_t Counted(int64_t bytes, MemoryUse use) const {
    const bool counts =
        use.place == MemoryPlace::kDevice || (host_too_ && use.place != MemoryPlace::kDisk);
    return counts ? AlignedBytes(bytes, use) : 0;
  }

  const bool host_too_;
  PlanRecorder recorder_;
  bool persistent_now_ = true;
  int64_t persistent_ = 0, working_ = 0, updates_ = 0;
};

}  // namespace

StepMemory::StepMemory(Model& model, const SessionOptions& options, int world, DeviceType kernels) {
  FSDP_CHECK(options.executor.buffers == FsdpOptions::Buffers::kSlots);
  SimDevice device({.s_per_enqueue = 1}, /*checker=*/nullptr, kernels);
  CountingRecorder memory(/*host_too=*/kernels == DeviceType::kCpu);
  const MeshCommunicators communicators(MeshFor(options.executor, /*rank=*/0, world),
                                        options.executor.communicators, ConnectSim);
  Session session(device, memory, model, options, communicators);
  Executor& executor = session.executor();
  executor.Synchronize();
  std::vector<int64_t> working;  // By operation of the compute stream.
  device.Observe([&](const Operation&, const Stream& stream) {
    if (stream.name() == "compute") working.push_back(memory.working());
  });
  device.StartTrace();
  session.Train(1, session.FullTargets(), /*save=*/false, [](int, const Batch&) {});
  executor.Synchronize();
  device.Observe(nullptr);

  const Schedule& train = executor.schedule(Mode::kTrain);
  working_.assign(train.actions.size(), -1);
  size_t operation = 0;
  for (const Span& span : device.TakeTrace()) {
    if (span.stream != "compute" || span.name == kWait) continue;
    FSDP_CHECK_LT(operation, working.size());
    const int64_t bytes = working[operation++];
    if (span.tag == 0) continue;
    int64_t& most = working_[PositionOf(span.tag).action];
    most = std::max(most, bytes);
  }
  FSDP_CHECK_EQ(operation, working.size());

  for (const Action& action : train.actions) streams_.push_back(action.stream);
  const Storage storage(executor.layout(), train, options.executor.averages,
                        options.executor.change_storage);
  always_ = memory.persistent() + storage.FetchElements() * SizeOf(DType::kFloat32);
  AddUnits(train, storage);
  AddTravels(train, storage);
  AddUpdates(train, memory.updates());
}

// Memory that an action takes and another gives back.
void StepMemory::AddUnits(const Schedule& train, const Storage& storage) {
  std::map<std::pair<Resource, int>, Part> taken;
  for (size_t a = 0; a < train.actions.size(); ++a) {
    const Action& action = train.actions[a];
    for (const Use& use : action.takes) {
      taken[{use.what, use.of}] = {a, a, storage.BytesOf(use.what, action.unit)};
    }
    for (const Use& use : action.gives) {
      const auto part = taken.find({use.what, use.of});
      if (part == taken.end()) continue;
      parts_.push_back({part->second.from, a, part->second.bytes});
      taken.erase(part);
    }
  }
  for (const auto& [use, part] : taken) always_ += part.bytes;
}

// Memory of a collective alone, as fsdp/unit_memory.cc has it.
void StepMemory::AddTravels(const Schedule& train, const Storage& storage) {
  constexpr std::pair<ActionKind, Resource> kTravels[] = {
      {ActionKind::kGather, Resource::kGatherWire},
      {ActionKind::kReduce, Resource::kWire},
      {ActionKind::kReduce, Resource::kArrived},
      {ActionKind::kReduce, Resource::kInsideSum},
      {ActionKind::kAllReduce, Resource::kReplicaWire},
      {ActionKind::kAllReduce, Resource::kReplicaArrived}};
  for (size_t a = 0; a < train.actions.size(); ++a) {
    const Action& action = train.actions[a];
    if (action.secondary()) continue;  // It travels as it lies.
    for (const auto& [kind, what] : kTravels) {
      if (action.kind != kind) continue;
      parts_.push_back({a, a, storage.LargestRow(what, action.unit)});
    }
  }
}

// From the clipping, which begins the optimizer's part of the step.
void StepMemory::AddUpdates(const Schedule& train, int64_t bytes) {
  const std::vector<Action>& actions = train.actions;
  const auto clip = std::ranges::find(actions, ActionKind::kClip, &Action::kind);
  if (bytes == 0 || clip == actions.end()) return;
  Part part{static_cast<size_t>(clip - actions.begin()), 0, bytes};
  for (size_t a = part.from; a < actions.size(); ++a) {
    if (actions[a].stream == StreamId::kCompute && actions[a].kind != ActionKind::kEnd) part.to = a;
  }
  parts_.push_back(part);
}

std::vector<MemoryPoint> StepMemory::Over(std::span<const Span> spans, int64_t planned) const {
  const auto of_step = [](const Span& span) {
    return span.tag != 0 && span.name != kWait && PositionOf(span.tag).mode == Mode::kTrain;
  };
  int64_t step = -1;
  for (const Span& span : spans) {
    if (of_step(span)) step = std::max(step, PositionOf(span.tag).step);
  }
  struct Time {
    double begin = std::numeric_limits<double>::infinity();
    double end = -std::numeric_limits<double>::infinity();
  };
  std::vector<Time> times(streams_.size());
  double first = std::numeric_limits<double>::infinity();
  for (const Span& span : spans) {
    if (!of_step(span) || PositionOf(span.tag).step != step) continue;
    Time& time = times[PositionOf(span.tag).action];
    time.begin = std::min(time.begin, span.begin_s);
    time.end = std::max(time.end, span.end_s);
    first = std::min(first, span.begin_s);
  }
  if (step < 0) return {};
  std::array<double, kNumStreams> ended;
  ended.fill(first);
  for (size_t a = 0; a < times.size(); ++a) {
    double& before = ended[static_cast<int>(streams_[a])];
    if (times[a].end < times[a].begin) times[a] = {before, before};
    before = std::max(before, times[a].end);
  }

  std::vector<std::pair<double, int64_t>> changes;  // At one time, bytes given back go first.
  for (const Part& part : parts_) {
    changes.emplace_back(times[part.from].begin, part.bytes);
    changes.emplace_back(times[part.to].end, -part.bytes);
  }
  int64_t working = 0;
  for (size_t a = 0; a < times.size(); ++a) {
    if (working_[a] < 0) continue;
    changes.emplace_back(times[a].begin, working_[a] - working);
    working = working_[a];
  }
  std::sort(changes.begin(), changes.end());
  std::vector<MemoryPoint> points = {{first, always_, always_, planned}};
  for (const auto& [at, bytes] : changes) {
    if (bytes == 0) continue;
    const int64_t now = points.back().allocated + bytes;
    if (at > points.back().at_s) points.push_back({at, now, now, planned});
    points.back().allocated = points.back().active = now;
  }
  return points;
}

}  // namespace fsdp
