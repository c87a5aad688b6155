#include "trainer/engine/session.h"

#include <algorithm>
#include <set>
#include <utility>

#include "trainer/autograd/tape.h"
#include "trainer/core/check.h"
#include "trainer/fsdp/executor.h"
#include "trainer/nn/model.h"
#include "trainer/ops/elementwise.h"
#include "trainer/runtime/stream_checker.h"

namespace fsdp {
namespace {

void CopyBuffers(Stream& stream, const std::vector<BufferState>& from,
                 const std::vector<BufferState>& to) {
  for (size_t i = 0; i < from.size(); ++i) {
    const View &source = from[i].value, &copy = to[i].value;
    if (HostAddress(source.data) != HostAddress(copy.data)) Copy(stream, source, copy);
  }
}

// A base is no state.
View StateOfMaster(const Executor& executor, int flat) {
  const View& master = executor.master(flat);
  const bool of_base = executor.layout().flat_parameters[flat].of_base;
  return of_base ? View(nullptr, master.dtype, Shape{0}) : master;
}

ExecutorOptions ForExecutor(const SessionOptions& options) {
  ExecutorOptions executor = options.executor;
  executor.averages = options.eval_ema;
  return executor;
}

}  // namespace

Session::Session(Device& device, PhasedAllocator& allocator, Model& model,
                 const SessionOptions& options, const MeshCommunicators& communicators)
    : options_(options),
      device_(device),
      model_(model),
      targets_(model.Inputs(options.executor.sample_length).targets),
      executor_(std::make_unique<Executor>(device, allocator, model, ForExecutor(options),
                                           communicators)) {
  optimizer_.emplace(options.optimizer, *executor_, model);
  on_device_.state.push_back({"master", {}});
  for (size_t f = 0; f < executor_->layout().flat_parameters.size(); ++f) {
    on_device_.state[0].shards.push_back(StateOfMaster(*executor_, static_cast<int>(f)));
  }
  for (const ShardState& state : optimizer_->state()) on_device_.state.push_back(state);
  if (options.optimizer.ema) ema_ = on_device_.state.back().shards;
  FSDP_CHECK(!options.eval_ema || options.optimizer.ema) << "no averaged weights to evaluate";
  PlaceStateOnHost();
  const ModelBuffers& buffers = executor_->buffers();
  for (size_t i = 0; i < buffers.values().size(); ++i) {
    on_device_.buffers.push_back({buffers.buffers()[i]->name(), buffers.values()[i]});
  }
  PlaceOnHost(&Kept::buffers);
  if (const TableExchange* const tables = executor_->tables()) {
    on_device_.rows = {{"rows", tables->rows()}, {"sums of rows", tables->sums()}};
  }
  PlaceOnHost(&Kept::rows);
  if (const Muon* const muon = optimizer_->muon(); muon && muon->row_moments().NumElements() > 0) {
    on_device_.row_moments = {{"row_v", muon->row_moments()}};
  }
  PlaceOnHost(&Kept::row_moments);
  for (const OwnState& own : optimizer_->own()) {
    on_device_.factors.push_back({own.name, own.value, own.parameter});
  }
  PlaceOnHost(&Kept::factors);
  NameSpilled();
  if (options.snapshot) {
    snapshots_ = device.CreateStream("snapshot");
    bool offloaded = false;
    for (int f = 0; f < static_cast<int>(executor_->layout().flat_parameters.size()); ++f) {
      offloaded |= executor_->PlaceOf(f) != MemoryPlace::kDevice;
    }
    if (offloaded) host_snapshots_ = device.host().CreateStream("snapshot of host memory");
  }
  if (options.generate) {
    const Autoregressive* const next = model.autoregressive();
    FSDP_CHECK(next != nullptr) << "nothing can be generated from this model";
    logits_ = executor_->NewBuffer(next->outputs(), DType::kFloat32);
    host_logits_ = executor_->NewBuffer(next->outputs(), DType::kFloat32,
                                        {MemoryKind::kActivations, MemoryPlace::kPinned});
  }
  if (options.predict) {
    const int64_t all = options.executor.micro_batch_size * predictions();
    FSDP_CHECK(all > 0) << "the model judges no sample as a whole";
    predicted_ = executor_->NewBuffer(all, DType::kFloat32);
    host_predicted_ = executor_->NewBuffer(all, DType::kFloat32,
                                           {MemoryKind::kActivations, MemoryPlace::kPinned});
  }
}

Session::~Session() = default;

int64_t Session::WaveTargets() const {
  return options_.executor.micro_batch_size * targets_ * executor_->mesh().data_size();
}

const EvalMetric* Session::eval_metric() const { return model_.eval_metric(); }

void Session::PlaceStateOnHost() {
  on_host_.state = on_device_.state;
  for (ShardState& state : on_host_.state) {
    for (size_t f = 0; f < state.shards.size(); ++f) {
      View& shard = state.shards[f];
      if (shard.NumElements() == 0) continue;
      if (!IsOnHost(f)) {
        shard = executor_->NewBuffer(shard.NumElements(), shard.dtype,
                                     {MemoryKind::kSnapshot, MemoryPlace::kPinned});
      } else if (device_.type() == DeviceType::kCpu && !executor_->spilled().Holds(shard)) {
        shard = *device_.OnHost(shard);
      }
    }
  }
  snapshot_.state = on_host_.state;
  if (!options_.snapshot) return;
  for (ShardState& state : snapshot_.state) {
    for (size_t f = 0; f < state.shards.size(); ++f) {
      // Shards that are copies already, and frozen ones, stay as they are.
      if (!IsOnHost(f) || executor_->layout().flat_parameters[f].frozen) continue;
      View& shard = state.shards[f];
      const MemoryPlace place =
          executor_->spilled().Holds(shard) ? MemoryPlace::kDisk : MemoryPlace::kPinned;
      shard =
          executor_->NewBuffer(shard.NumElements(), shard.dtype, {MemoryKind::kSnapshot, place});
    }
  }
}

void Session::PlaceOnHost(std::vector<BufferState> Kept::*values) {
  const auto copies = [&](bool in_place) {
    std::vector<BufferState> on_host = on_device_.*values;
    for (auto& [name, value, owner] : on_host) {
      const View copy = in_place
                            ? device_.OnHost(value).value_or(value)
                            : executor_->NewBuffer(value.NumElements(), value.dtype,
                                                   {MemoryKind::kSnapshot, MemoryPlace::kPinned});
      value = copy.Reshape(value.shape);
    }
    return on_host;
  };
  const bool shared = device_.kernel_type() == DeviceType::kCpu;
  on_host_.*values = copies(shared);
  snapshot_.*values = options_.snapshot && shared ? copies(false) : on_host_.*values;
}

void Session::NameSpilled() const {
  SpillMemory* const spill = executor_->spill();
  if (spill == nullptr) return;
  std::byte* end = spill->data();
  const auto name = [&](const std::vector<ShardState>& states, const std::string& copy) {
    for (const ShardState& state : states) {
      for (size_t f = 0; f < state.shards.size(); ++f) {
        const View& shard = state.shards[f];
        if (!spill->Holds(shard)) continue;
        spill->Name(shard,
                    copy + state.name + " of " + executor_->layout().flat_parameters[f].name);
        end = std::max(end, shard.data + shard.bytes());
      }
    }
  };
  name(snapshot_.state, "the copy to be saved of ");
  name(on_device_.state, "");  // Where there is no copy, too.
  // Behind all that lives on.
  const int64_t rest = spill->data() + spill->bytes() - end;
  if (end > spill->data() && rest > 0) {
    spill->Name({end, DType::kUInt8, Shape{rest}}, "activations");
  }
}

bool Session::IsOnHost(size_t flat) const {
  return device_.kernel_type() == DeviceType::kCpu ||
         executor_->PlaceOf(static_cast<int>(flat)) != MemoryPlace::kDevice;
}

void Session::Train(int64_t step, int64_t targets, bool save, Load load, Load load_next) {
  const double full = static_cast<double>(FullTargets());
  Executor::Step run;
  run.mode = Mode::kTrain;
  run.number = last_step_ = step;
  run.lr = options_.lr.At(step);
  run.target_scale = static_cast<float>(1 / full);
  // Nothing to learn from: a gradient of zero and a loss of zero, not 0 x infinity.
  run.mean_scale = targets > 0 ? static_cast<float>(full / static_cast<double>(targets)) : 0.0f;
  run.save = save ? 1.0f : 0.0f;
  run.load = std::move(load);
  run.begin_update = [this](Stream& stream, ConstView inputs, ConstView coefficient) {
    optimizer_->Begin(stream, inputs, coefficient);
  };
  run.optimize = [this](Stream& stream, const ShardUpdate& update) {
    optimizer_->Step(stream, update);
  };
  run.matrices = [this](Stream& stream, const MatrixAction& action) {
    optimizer_->RunMatrices(stream, action);
  };
  run.update_rows = [this](Stream& stream, const RowUpdate& update) {
    optimizer_->StepRows(stream, update);
  };
  run.load_next = std::move(load_next);
  executor_->Run(run);
}

void Session::Eval(float scale, Load load) {
  Executor::Step run;
  run.mode = Mode::kEval;
  run.number = last_step_;
  run.target_scale = scale;
  run.second_sum = eval_metric() != nullptr && eval_metric()->has_sum;
  run.weights = EvalWeights();
  run.load = std::move(load);
  executor_->Run(run);
}

int64_t Session::predictions() const { return model_.predictions(); }

std::span<const float> Session::Logits(int64_t column, Load load) {
  FSDP_CHECK(options_.generate);
  return Forward(
      [&](Tape& tape, const Batch& batch) {
        model_.autoregressive()->Logits(tape, batch.First(1), column, logits_);
      },
      logits_, host_logits_, std::move(load));
}

std::span<const float> Session::Predict(Load load) {
  FSDP_CHECK(options_.predict);
  return Forward([&](Tape& tape, const Batch& batch) { model_.Predict(tape, batch, predicted_); },
                 predicted_, host_predicted_, std::move(load));
}

std::span<const float> Session::Forward(
    const std::function<void(Tape& tape, const Batch& batch)>& forward, const View& on_device,
    const View& on_host, Load load) {
  Executor::Step run;
  run.mode = Mode::kEval;
  run.number = last_step_;
  run.weights = EvalWeights();
  run.load = std::move(load);
  run.forward = [&](Tape& tape, const Batch& batch) {
    forward(tape, batch);
    Copy(tape.stream(), on_device, on_host);
  };
  executor_->Run(run);
  executor_->Result(executor_->steps() - 1);
  if (device_.type() == DeviceType::kSim) return {};
  if (device_.checker()) device_.checker()->OnHostAccess("logits", {on_host}, {});
  return {on_host.As<float>(), static_cast<size_t>(on_host.NumElements())};
}

void Session::InitializeEma() {
  for (size_t f = 0; f < ema_.size(); ++f) {
    if (ema_[f].NumElements() > 0) {
      const int flat = static_cast<int>(f);
      executor_->CastShard(flat, executor_->master(flat), ema_[f]);
    }
  }
}

void Session::CopyUnit(int unit, Stream& of_device, Stream& of_host,
                       const std::vector<ShardState>& from, const std::vector<ShardState>& to,
                       bool frozen) const {
  const Layout& layout = executor_->layout();
  for (const int f : layout.units[unit].flat_parameters) {
    if (layout.flat_parameters[f].frozen && !frozen) continue;
    const bool on_device = executor_->PlaceOf(f) == MemoryPlace::kDevice;
    for (size_t s = 0; s < from.size(); ++s) {
      const View &source = from[s].shards[f], &copy = to[s].shards[f];
      if (source.NumElements() == 0 || HostAddress(source.data) == HostAddress(copy.data)) continue;
      if (executor_->spilled().Holds(source)) {
        CopySpilled(of_host, executor_->spill(), source, copy);
      } else {
        Copy(on_device ? of_device : of_host, source, copy);
      }
    }
  }
}

void Session::CopyOnCompute(const std::vector<ShardState>& from, const std::vector<ShardState>& to,
                            bool frozen) {
  Stream& compute = executor_->compute();
  for (int u = 0; u < static_cast<int>(executor_->layout().units.size()); ++u) {
    CopyUnit(u, compute, compute, from, to, frozen);
  }
}

void Session::ToHost() {
  CopyOnCompute(on_device_.state, on_host_.state, !std::exchange(frozen_on_host_, true));
  CopyBuffers(executor_->compute(), on_device_.buffers, on_host_.buffers);
  CopyBuffers(executor_->compute(), on_device_.rows, on_host_.rows);
  CopyBuffers(executor_->compute(), on_device_.row_moments, on_host_.row_moments);
  CopyBuffers(executor_->compute(), on_device_.factors, on_host_.factors);
}

void Session::ToDevice() {
  CopyOnCompute(on_host_.state, on_device_.state, /*frozen=*/true);
  CopyBuffers(executor_->compute(), on_host_.buffers, on_device_.buffers);
  CopyBuffers(executor_->compute(), on_host_.rows, on_device_.rows);
  CopyBuffers(executor_->compute(), on_host_.row_moments, on_device_.row_moments);
  CopyBuffers(executor_->compute(), on_host_.factors, on_device_.factors);
  frozen_on_host_ = true;
}

Session::Snapshot Session::TakeSnapshot() {
  FSDP_CHECK(options_.snapshot);
  Stream& of_host = host_snapshots_ ? *host_snapshots_ : *snapshots_;
  executor_->WaitUntilLanded(*snapshots_);
  if (host_snapshots_) executor_->WaitUntilLanded(of_host);
  const bool frozen = !std::exchange(frozen_on_host_, true);
  CopyBuffers(*snapshots_, on_device_.buffers, snapshot_.buffers);
  if (!on_device_.buffers.empty()) executor_->buffers().Hold(snapshots_->Record());
  CopyBuffers(*snapshots_, on_device_.rows, snapshot_.rows);
  if (executor_->tables()) executor_->tables()->Hold(snapshots_->Record());
  // Before any unit: its update waits for all that was copied until then.
  CopyBuffers(*snapshots_, on_device_.row_moments, snapshot_.row_moments);
  if (host_snapshots_ && !on_device_.row_moments.empty()) of_host.Wait(snapshots_->Record());
  CopyBuffers(*snapshots_, on_device_.factors, snapshot_.factors);
  if (!on_device_.factors.empty()) optimizer_->Hold(snapshots_->Record());
  std::set<int> copied;  // In the order of the updates that wait.
  for (const int u : executor_->layout().unit_of_segment) {
    if (!copied.insert(u).second) continue;
    CopyUnit(u, *snapshots_, of_host, on_device_.state, snapshot_.state, frozen);
    const bool on_host =
        std::ranges::any_of(executor_->layout().TrainableFlatParameters(u),
                            [&](int f) { return executor_->PlaceOf(f) != MemoryPlace::kDevice; });
    executor_->HoldUpdate(u, (on_host ? of_host : *snapshots_).Record());
  }
  if (host_snapshots_) snapshots_->Wait(of_host.Record());
  return {snapshot_, snapshots_->Record()};
}

}  // namespace fsdp
