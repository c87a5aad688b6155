#include "trainer/fsdp/executor.h"

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <stdexcept>
#include <utility>

#include "trainer/core/check.h"
#include "trainer/ops/cast.h"
#include "trainer/ops/elementwise.h"
#include "trainer/ops/reductions.h"
#include "trainer/ops/step_parameters.h"

namespace fsdp {
namespace {

// Where the step's scalars lie, in the order of StepScalars. The first four are summed over ranks.
enum Scalar { kLoss, kSumSquares, kStop, kSave, kMeanScale, kGradNorm, kCoefficient };
constexpr int kSummedScalars = 4;

// Initial values go to the device in pieces of 4 MiB.
constexpr int64_t kUploadElements = int64_t{1} << 20;

// Takes views from bytes, one behind the other, each at a multiple of 64.
class Carver {
 public:
  explicit Carver(std::byte* begin) : next_(begin) {}
  explicit Carver(const View& bytes) : next_(bytes.data) {}
  std::byte* end() const { return next_; }
  View Take(int64_t elements, DType dtype) {
    const View view(next_, dtype, Shape{elements});
    next_ += (view.bytes() + 63) / 64 * 64;
    return view;
  }

 private:
  std::byte* next_;
};

// What an action on the compute stream is part of; null: of what was before it.
StepClock::Part PartOf(const Action& action) {
  switch (action.kind) {
    case ActionKind::kRun:
      return action.pass == Pass::kForward     ? &StepTimes::forward
             : action.pass == Pass::kRecompute ? &StepTimes::recompute
                                               : &StepTimes::backward;
    case ActionKind::kBegin:
      return &StepTimes::forward;
    case ActionKind::kClear:
      return &StepTimes::backward;
    case ActionKind::kSumSquares:
    case ActionKind::kClip:
    case ActionKind::kOptimizer:
    case ActionKind::kEnd:
      return &StepTimes::optimizer;
    default:
      return nullptr;
  }
}

}  // namespace

Executor::Executor(Device& device, PhasedAllocator& allocator, Model& model,
                   const ExecutorOptions& options, const MeshCommunicators& communicators)
    : device_(device),
      allocator_(allocator),
      model_(model),
      options_(options),
      communicators_(communicators),
      layout_(MakeLayout(ShapesOf(model, options.dtypes), options.auto_wrap,
                         communicators.mesh().shard_size())),
      shard_rank_(communicators.mesh().coordinate().shard),
      schedules_{ScheduleFor(options, model, communicators.mesh(), Mode::kTrain),
                 ScheduleFor(options, model, communicators.mesh(), Mode::kEval)},
      flats_(layout_.flat_parameters.size()),
      units_(layout_.units.size()) {
  for (const FlatParameter& flat : layout_.flat_parameters) {
    const DTypes& d = flat.dtypes;
    for (const DType dtype : {d.master, d.grad, d.reduce}) {
      if (dtype == DType::kFloat32) continue;
      throw std::invalid_argument("[Executor] master, grad or reduce of " + flat.name + " is " +
                                  std::string(fsdp::Name(dtype)) + ", want fp32");
    }
  }
  streams_.push_back(device.CreateStream("compute", options.threads));
  for (const char* name : {"gather", "reduce", "data"}) {
    streams_.push_back(device.CreateStream(name));
  }
  allocator_.Begin(Phase::kPersistent);
  std::map<std::string, Parameter*> parameters;
  for (const ModelSegment& segment : model.segments()) {
    for (Parameter* p : segment.parameters) parameters[p->name()] = p;
  }
  for (size_t f = 0; f < flats_.size(); ++f) {
    for (const Placement& p : layout_.flat_parameters[f].parameters) {
      flats_[f].parameters.push_back(parameters.at(p.name));
    }
  }

  const Schedule& train = schedules_[0];
  for (int i = 0; i < train.gather_slots; ++i) {
    gather_slots_.push_back(NewBytes(layout_.MaxGatheredBytes(), MemoryKind::kUnsharded));
  }
  for (int i = 0; i < train.gradient_slots; ++i) {
    gradient_slots_.push_back(NewBytes(layout_.MaxGradientBytes(), MemoryKind::kUnsharded));
  }
  for (size_t f = 0; f < flats_.size(); ++f) {
    const FlatParameter& flat = layout_.flat_parameters[f];
    const DTypes& d = flat.dtypes;
    masters_.push_back(NewPersistent(flat.shard_size, MemoryKind::kParameters, d.master));
    compute_shards_.push_back(
        d.compute == d.master ? masters_[f]
                              : NewPersistent(flat.shard_size, MemoryKind::kParameters, d.compute));
    gradients_.push_back(
        NewPersistent(flat.frozen ? 0 : flat.shard_size, MemoryKind::kGradients, DType::kFloat32));
    if (!sharded()) {
      flats_[f].value = compute_shards_[f];
      flats_[f].gradient = gradients_[f];
    }
  }
  int64_t largest_shards = 0;  // Of a unit, as they travel.
  for (int u = 0; u < static_cast<int>(units_.size()); ++u) {
    if (!sharded()) continue;
    if (u == 0 || train.gather_slots == 0) {
      units_[u].own_value = NewBytes(layout_.GatheredBytes(u), MemoryKind::kUnsharded);
    }
    if (u == 0 || train.gradient_slots == 0) {
      units_[u].own_gradient = NewBytes(layout_.GradientBytes(u), MemoryKind::kUnsharded);
    }
    int64_t bytes = 0;
    for (const int f : layout_.TrainableFlatParameters(u)) {
      bytes += gradients_[f].NumElements() * SizeOf(layout_.flat_parameters[f].dtypes.reduce);
    }
    largest_shards = std::max(largest_shards, bytes);
  }
  const auto staged = [](const Action& action) { return action.staged; };
  if (std::any_of(train.actions.begin(), train.actions.end(), staged)) {
    staging_ = NewBytes(largest_shards, MemoryKind::kUnsharded);
  }
  for (StagedBatch& batch : batches_) {
    batch.device = NewBatch(MemoryPlace::kDevice, &batch.device_bytes);
    batch.host = NewBatch(MemoryPlace::kPinned, &batch.host_bytes);
  }
  int64_t largest_shard = 0;
  for (const View& master : masters_) largest_shard = std::max(largest_shard, master.NumElements());
  upload_ = NewPersistent(std::min(largest_shard, kUploadElements),
                          {MemoryKind::kActivations, MemoryPlace::kPinned}, DType::kFloat32);
  scalars_ = NewPersistent(kNumScalars, MemoryKind::kActivations, DType::kFloat32);
  for (View& report : reports_) {
    report = NewPersistent(kNumScalars, {MemoryKind::kActivations, MemoryPlace::kPinned},
                           DType::kFloat32);
  }
  inputs_ = NewBytes(sizeof(StepInputs), MemoryKind::kActivations);
  for (View& staged : staged_inputs_) {
    staged = NewBytes(sizeof(StepInputs), {MemoryKind::kActivations, MemoryPlace::kPinned});
  }
}

Executor::~Executor() = default;

void Executor::ReplaceSchedule(Mode mode, Schedule schedule) {
  schedules_[static_cast<int>(mode)] = std::move(schedule);
}

View Executor::NewPersistent(int64_t elements, MemoryUse use, DType dtype) {
  View view(nullptr, dtype, Shape{elements});
  if (elements > 0) view.data = allocator_.Allocate(view.bytes(), use);
  return view;
}

View Executor::NewBuffer(int64_t elements, DType dtype, MemoryUse use) {
  return NewPersistent(elements, use, dtype);
}

Batch Executor::NewBatch(MemoryPlace place, View* bytes) {
  const Shape shape{options_.micro_batch_size, options_.seq_len};
  const Shape keys{options_.micro_batch_size, 2};
  const auto carve = [&](std::byte* begin) {
    Carver carver(begin);
    const auto tensor = [&](DType dtype, const Shape& s) {
      return carver.Take(s.NumElements(), dtype).Reshape(s);
    };
    const Batch batch{tensor(DType::kInt32, shape), tensor(DType::kInt32, shape),
                      tensor(DType::kFloat32, shape), tensor(DType::kInt32, shape),
                      tensor(DType::kInt32, keys)};
    return std::pair(batch, carver.end() - begin);
  };
  // Of the first only the distance counts.
  *bytes = NewBytes(carve(reinterpret_cast<std::byte*>(uintptr_t{64})).second,
                    {MemoryKind::kActivations, place});
  return carve(bytes->data).first;
}

View Executor::NewShard(const FlatParameter& flat, MemoryUse use, DType dtype) {
  const View shard = NewPersistent(flat.frozen ? 0 : flat.shard_size, use, dtype);
  if (shard.NumElements() > 0) Fill(compute(), 0, shard);
  return shard;
}

std::vector<View> Executor::NewShards(MemoryUse use, DType DTypes::*as) {
  std::vector<View> shards;
  for (const FlatParameter& flat : layout_.flat_parameters) {
    shards.push_back(NewShard(flat, use, flat.dtypes.*as));
  }
  return shards;
}

std::vector<View> Executor::NewShards(MemoryUse use, const std::vector<View>& like) {
  std::vector<View> shards;
  for (size_t f = 0; f < flats_.size(); ++f) {
    shards.push_back(NewShard(layout_.flat_parameters[f], use, like[f].dtype));
  }
  return shards;
}

void Executor::Initialize(const FillParameter& fill) {
  for (size_t f = 0; f < flats_.size(); ++f) {
    const int64_t size = layout_.flat_parameters[f].shard_size;
    for (int64_t at = 0; at < size; at += upload_.NumElements()) {
      const View part = upload_.Slice(0, std::min(upload_.NumElements(), size - at));
      Operation operation{"initialize", {}, {part}, {}};
      operation.costs = {Cost{.bytes_written = static_cast<double>(part.bytes())}};
      const auto initialize = [this, f, at, fill](ThreadPool& pool, const View& host) {
        FillShard(pool, static_cast<int>(f), at, host, fill);
      };
      operation.kernels.cpu = OnCpu(initialize, part);
      compute().Enqueue(std::move(operation));
      Copy(compute(), part, masters_[f].Slice(at, part.NumElements()));
    }
  }
  MastersWritten();
}

void Executor::FillShard(ThreadPool& pool, int flat, int64_t at, const View& host,
                         const FillParameter& fill) const {
  const FlatParameter& layout = layout_.flat_parameters[flat];
  const std::span<float> values(host.As<float>(), host.NumElements());
  std::fill(values.begin(), values.end(), 0.0f);
  for (const Piece& piece : PiecesOfShard(layout, shard_rank_)) {
    const int64_t from = std::max(piece.at, at);
    const int64_t to = std::min(piece.at + piece.count, at + host.NumElements());
    if (from >= to) continue;
    const Parameter& parameter = *flats_[flat].parameters[piece.parameter - &layout.parameters[0]];
    pool.ParallelFor(to - from, kShardAlignment, [&](int64_t begin, int64_t end) {
      fill(parameter, piece.begin + from - piece.at + begin,
           values.subspan(from - at + begin, end - begin));
    });
  }
}

void Executor::WriteComputeShard(Stream& stream, int flat) {
  const View &from = masters_[flat], &to = compute_shards_[flat];
  if (from.data != to.data) Cast(stream, from, to);
}

void Executor::MastersWritten() {
  for (size_t f = 0; f < flats_.size(); ++f) WriteComputeShard(compute(), static_cast<int>(f));
}

const View& Executor::ShardInUse(int flat) const {
  const FlatParameter& layout = layout_.flat_parameters[flat];
  if (!step_->weights || layout.frozen) return compute_shards_[flat];
  const View& shard = (*step_->weights)[flat];
  FSDP_CHECK(shard.dtype == layout.dtypes.compute)
      << layout.name << ": weights to evaluate are " << fsdp::Name(shard.dtype);
  return shard;
}

// The step before the last one has read the place and is done.
void Executor::WriteInputs() {
  if (device_.type() == DeviceType::kSim) return;
  const View& staged = staged_inputs_[steps_ % 2];
  if (device_.checker()) device_.checker()->OnHostAccess("step inputs", {}, {staged});
  *staged.As<StepInputs>() = {
      .lr = step_->lr, .mean_scale = step_->mean_scale, .stop = step_->stop, .save = step_->save};
}

void Executor::Run(const Step& step) {
  EventPtr& end = ends_[steps_ % 2];
  if (end) end->Synchronize();
  step_ = &step;
  WriteInputs();
  running_ = &schedules_[static_cast<int>(step.mode)];
  clocks_[steps_ % 2].Clear();
  events_.assign(running_->actions.size(), nullptr);
  cursor_ = 0;
  for (size_t f = 0; f < flats_.size() && !sharded(); ++f) {
    flats_[f].value = ShardInUse(static_cast<int>(f));
  }
  AdvanceToRun();
  const bool train = step.mode == Mode::kTrain;
  for (int m = 0; m < running_->options.micro_batches; ++m) {
    allocator_.Begin(step.forward ? Phase::kGenerate : train ? Phase::kTrain : Phase::kEval);
    Tape tape(compute(), allocator_, *this, train, options_.recompute);
    const Batch& batch = batches_[m % 2].device;
    if (step.forward) {
      step.forward(tape, batch);
    } else {
      model_.Loss(tape, batch, step.target_scale, scalars_.Slice(kLoss, 1));
    }
    tape.Backward();
  }
  FSDP_CHECK_EQ(cursor_, running_->actions.size()) << "the model left runs of the schedule out";
  end = compute().Record();
  clocks_[steps_ % 2].End(end);
  ++steps_;
  step_ = nullptr;
}

StepScalars Executor::Result(int64_t index) {
  FSDP_CHECK(index < steps_ && index >= 0 && index + 2 >= steps_) << index << " of " << steps_;
  ends_[index % 2]->Synchronize();
  StepScalars scalars;
  if (device_.type() == DeviceType::kSim) return scalars;
  const View& report = reports_[index % 2];
  if (device_.checker()) device_.checker()->OnHostAccess("result", {report}, {});
  const float* s = report.As<float>();
  scalars = {
      s[kLoss] * s[kMeanScale], s[kSumSquares], s[kStop], s[kSave], s[kMeanScale], s[kGradNorm],
      s[kCoefficient]};
  return scalars;
}

StepTimes Executor::Times(int64_t index) {
  FSDP_CHECK(index < steps_ && index >= 0 && index + 2 >= steps_) << index << " of " << steps_;
  ends_[index % 2]->Synchronize();
  return clocks_[index % 2].Read();
}

void Executor::Synchronize() {
  for (const auto& stream : streams_) stream->Synchronize();
}

const Action& Executor::CurrentRun(int segment, Pass pass, const char* what) const {
  const auto name = [&](int s, Pass p) { return model_.segments()[s].name + " " + Name(p); };
  FSDP_CHECK(running_ != nullptr && cursor_ < running_->actions.size())
      << what << " " << name(segment, pass) << ", but the schedule has ended";
  const Action& action = running_->actions[cursor_];
  FSDP_CHECK(action.kind == ActionKind::kRun && action.segment == segment && action.pass == pass)
      << what << " " << name(segment, pass) << ", but the schedule says "
      << name(action.segment, action.pass);
  return action;
}

void Executor::Enter(int segment, Pass pass) {
  const Action& action = CurrentRun(segment, pass, "entering");
  WaitFor(action);
  Bind(layout_.unit_of_segment[segment], /*value=*/true, pass == Pass::kBackward);
}

void Executor::Leave(int segment, Pass pass) {
  CurrentRun(segment, pass, "leaving");
  Bind(layout_.unit_of_segment[segment], false, false);
  Signal(cursor_++);
  AdvanceToRun();
}

bool Executor::HasBackward(int segment) const {
  return running_->options.mode == Mode::kTrain && segment >= running_->options.backward_from;
}

void Executor::AdvanceToRun() {
  const std::vector<Action>& actions = running_->actions;
  for (; cursor_ < actions.size() && actions[cursor_].kind != ActionKind::kRun; ++cursor_) {
    WaitFor(actions[cursor_]);
    Execute(actions[cursor_]);
    Signal(cursor_);
  }
}

std::string Executor::Where() const {
  std::string busy, waiting;
  for (const auto& stream : streams_) {
    const std::optional<StreamPosition> position = stream->Position();
    if (!position) continue;
    const std::string operation = position->operation;
    std::string& list = operation == "wait" ? waiting : busy;
    if (!list.empty()) list += "; ";
    const StepPosition at = PositionOf(position->tag);
    list += position->tag == 0 ? "start" : Describe(at, schedule(at.mode), layout_);
    list += ", op " + operation + (operation == "wait" ? " of stream " + stream->name() : "");
  }
  return busy.empty() ? waiting : busy;
}

void Executor::WaitFor(const Action& action) {
  Stream& stream = StreamOf(action);
  stream.SetTag(TagOf({step_->mode, step_->number, cursor_}));
  StepClock* const clock = action.stream == StreamId::kCompute ? &clocks_[steps_ % 2] : nullptr;
  for (const Wait& wait : action.waits) {
    const bool data = running_->actions[wait.action].stream == StreamId::kData;
    if (clock) clock->Enter(stream, data ? &StepTimes::data : &StepTimes::communication);
    stream.Wait(events_[wait.action]);
  }
  if (clock) {
    if (const StepClock::Part part = PartOf(action)) work_ = part;
    clock->Enter(stream, work_);
  }
}

void Executor::Signal(size_t index) {
  const Action& action = running_->actions[index];
  if (action.signals) events_[index] = StreamOf(action).Record();
}

void Executor::Bind(int unit, bool value, bool gradient) {
  for (const int f : layout_.units[unit].flat_parameters) {
    const FlatParameter& layout = layout_.flat_parameters[f];
    const Flat& flat = flats_[f];
    for (size_t i = 0; i < flat.parameters.size(); ++i) {
      const Placement& p = layout.parameters[i];
      const auto part = [&](bool bound, const View& all) {
        return bound && all.data ? all.Slice(p.offset, p.size()).Reshape(p.shape) : View();
      };
      flat.parameters[i]->Bind(part(value, flat.value), part(gradient, flat.gradient));
    }
  }
}

void Executor::Execute(const Action& action) {
  Stream& stream = StreamOf(action);
  const int u = action.unit;
  if (u >= 0 && layout_.GatheredBytes(u) == 0) return;  // A root without parameters of its own.
  std::span<const int> trainable;                       // Whose gradients it is about.
  if (u >= 0) trainable = layout_.TrainableFlatParameters(u);
  switch (action.kind) {
    case ActionKind::kRun:
      break;
    case ActionKind::kBegin:
      Fill(stream, 0, scalars_);
      Copy(stream, staged_inputs_[steps_ % 2], inputs_);
      UnpackStepInputs(stream, inputs_, scalars_.Slice(kMeanScale, 1), scalars_.Slice(kStop, 1),
                       scalars_.Slice(kSave, 1));
      break;
    case ActionKind::kLoad: {
      const StagedBatch& batch = batches_[action.slot];
      Operation operation{"load", {}, {batch.host_bytes}, {}};
      operation.costs = {Cost{.bytes_written = static_cast<double>(batch.host_bytes.bytes())}};
      const auto load = [load = step_->load, m = action.micro_batch](
                            ThreadPool&, const Batch& host) { load(m, host); };
      operation.kernels.cpu = OnCpu(load, batch.host);
      stream.Enqueue(std::move(operation));
      Copy(stream, batch.host_bytes, batch.device_bytes);
      break;
    }
    case ActionKind::kGather: {
      Carver slot(action.slot >= 0 ? gather_slots_[action.slot] : units_[u].own_value);
      for (const int f : layout_.units[u].flat_parameters) {
        const FlatParameter& flat = layout_.flat_parameters[f];
        flats_[f].value = slot.Take(flat.size, flat.dtypes.compute);
        communicators_.Over(Group::kGather)->AllGather(stream, ShardInUse(f), flats_[f].value);
      }
      break;
    }
    case ActionKind::kFree:
      for (const int flat : layout_.units[u].flat_parameters) {
        const View value = std::exchange(flats_[flat].value, View());
        if (options_.poison) Fill(stream, std::numeric_limits<float>::quiet_NaN(), value);
      }
      break;
    case ActionKind::kClear: {
      Carver slot(action.slot >= 0 ? gradient_slots_[action.slot] : units_[u].own_gradient);
      for (const int f : trainable) {
        const FlatParameter& flat = layout_.flat_parameters[f];
        if (sharded()) flats_[f].gradient = slot.Take(flat.size, flat.dtypes.grad);
        Fill(stream, 0, flats_[f].gradient);
      }
      break;
    }
    case ActionKind::kReduce: {
      Carver staging(staging_);
      for (const int f : trainable) {
        if (!sharded()) {
          communicators_.Over(Group::kReplicate)->AllReduce(stream, flats_[f].gradient);
          continue;
        }
        const FlatParameter& flat = layout_.flat_parameters[f];
        const View shard =
            action.staged ? staging.Take(flat.shard_size, flat.dtypes.reduce) : gradients_[f];
        communicators_.Over(Group::kReduce)->ReduceScatter(stream, flats_[f].gradient, shard);
      }
      break;
    }
    case ActionKind::kAccumulate: {
      Carver staging(staging_);
      for (const int f : trainable) {
        const FlatParameter& flat = layout_.flat_parameters[f];
        Accumulate(stream, staging.Take(flat.shard_size, flat.dtypes.reduce), gradients_[f]);
      }
      break;
    }
    case ActionKind::kSumSquares:
      for (const int f : trainable) {
        SumOfSquares(stream, gradients_[f], scalars_.Slice(kSumSquares, 1));
      }
      break;
    case ActionKind::kReduceScalars:
      // Replicas hold the same squares: they count once.
      if (communicators_.mesh().coordinate().replicate > 0) {
        Fill(stream, 0, scalars_.Slice(kSumSquares, 1));
      }
      communicators_.Over(Group::kWorld)->AllReduce(stream, scalars_.Slice(0, kSummedScalars));
      break;
    case ActionKind::kClip:
      ClipCoefficient(stream, scalars_.Slice(kSumSquares, 1), scalars_.Slice(kMeanScale, 1),
                      options_.max_norm, scalars_.Slice(kGradNorm, 1),
                      scalars_.Slice(kCoefficient, 1));
      if (step_->begin_update) {
        step_->begin_update(stream, inputs_, scalars_.Slice(kCoefficient, 1));
      }
      break;
    case ActionKind::kOptimizer:
      for (const int f : trainable) {
        step_->optimize(stream, f, masters_[f], gradients_[f], scalars_.Slice(kCoefficient, 1));
        WriteComputeShard(stream, f);
      }
      break;
    case ActionKind::kEnd:
      Copy(stream, scalars_, reports_[steps_ % 2]);
      break;
  }
}

}  // namespace fsdp
