#include "trainer/fsdp/executor.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <optional>
#include <stdexcept>
#include <utility>

#include "trainer/autograd/tape.h"
#include "trainer/core/check.h"
#include "trainer/fsdp/caching_buffers.h"
#include "trainer/fsdp/loss_scale.h"
#include "trainer/fsdp/model_layout.h"
#include "trainer/fsdp/quantized_tables.h"
#include "trainer/fsdp/step_position.h"
#include "trainer/nn/model.h"
#include "trainer/ops/cast.h"
#include "trainer/ops/elementwise.h"
#include "trainer/ops/loss_scaler.h"
#include "trainer/ops/step_parameters.h"
#include "trainer/runtime/operation.h"
#include "trainer/runtime/stream_checker.h"

namespace fsdp {
namespace {

// Throws std::invalid_argument for dtypes that nobody updates.
Layout SupportedLayout(const ExecutorOptions& options, const Model& model, int shards) {
  Layout layout = LayoutFor(options, model, shards);
  for (const FlatParameter& flat : layout.flat_parameters) {
    const DTypes& d = flat.dtypes;
    if (d.master == DType::kFloat32 || d.master == DType::kBFloat16 || flat.HasRecords()) continue;
    throw std::invalid_argument("[Executor] master of " + flat.name + " is " +
                                std::string(Name(d.master)) + ", want fp32 or bf16");
  }
  return layout;
}

// Null where the model has none.
std::unique_ptr<TableExchange> MakeTables(Device& device, PhasedAllocator& allocator,
                                          const Model& model, const ExecutorOptions& options,
                                          const MeshCommunicators& communicators) {
  const std::vector<EmbeddingTable> tables = model.tables();
  if (tables.empty()) return nullptr;
  const Mesh& mesh = communicators.mesh();
  return std::make_unique<TableExchange>(
      device, allocator,
      MakeTableLayout(tables, mesh.world_size(), options.micro_batch_size, options.micro_batches),
      model.Inputs(options.sample_length), mesh.position(), communicators.Over(Group::kWorld));
}

// Collectives over the world.
StreamId WorldStream(const ExecutorOptions& options) {
  return options.communicators == 1 ? StreamId::kGather : StreamId::kReduce;
}

// Threads of the stream kUpdate; 1 where the host updates nothing.
int UpdateThreads(const ScheduleOptions& train, int compute_threads) {
  const auto asked = static_cast<int>(train.cpu_offload.threads);
  return !train.Any(&UnitRow::on_host) ? 1 : asked > 0 ? asked : compute_threads;
}

}  // namespace

Executor::Executor(Device& device, PhasedAllocator& allocator, Model& model,
                   const ExecutorOptions& options, const MeshCommunicators& communicators)
    : device_(device),
      allocator_(allocator),
      model_(model),
      options_(options),
      communicators_(communicators),
      layout_(SupportedLayout(options, model, communicators.mesh().shard_size())),
      shard_rank_(communicators.mesh().coordinate().shard),
      schedules_{ScheduleFor(options, model, communicators.mesh(), Mode::kTrain),
                 ScheduleFor(options, model, communicators.mesh(), Mode::kEval)},
      memory_(allocator, layout_, schedules_[0], schedules_[1], model, options,
              device.kernel_type()),
      parameters_(layout_.flat_parameters.size()),
      tables_(MakeTables(device, allocator, model, options, communicators)),
      copied_(layout_.units.size()) {
  if (device.type() != DeviceType::kSim) {  // A dropped load leaves values in bounds.
    for (const ExecutorMemory::StagedBatch& batch : memory_.batches) {
      std::memset(batch.host_bytes.data, 0, batch.host_bytes.bytes());
    }
  }
  streams_.resize(kNumStreams);
  const auto create = [&](StreamId id, const char* name, int threads, StreamPriority priority) {
    streams_[static_cast<int>(id)] = device.CreateStream(name, threads, priority);
  };
  // NCCL orders its kernels between streams of one priority alone (docs/contributing.md, GPU
  // rules).
  create(StreamId::kCompute, "compute", options.threads, StreamPriority::kNormal);
  create(StreamId::kGather, "gather", 1, StreamPriority::kHigh);
  create(StreamId::kReduce, "reduce", 1, StreamPriority::kHigh);
  create(StreamId::kData, "data", 1, StreamPriority::kNormal);
  if (mesh().hybrid()) create(StreamId::kReplicate, "replicate", 1, StreamPriority::kHigh);
  if (schedules_[0].options.offloads()) {
    create(StreamId::kLeave, "leave", 1, StreamPriority::kNormal);
    create(StreamId::kFetch, "fetch", 1, StreamPriority::kNormal);
    streams_[static_cast<int>(StreamId::kUpdate)] =
        device.host().CreateStream("update", UpdateThreads(schedules_[0].options, options.threads));
  }
  if (schedules_[0].spill_slots > 0) {
    streams_[static_cast<int>(StreamId::kSpillRead)] = device.host().CreateStream("spill_read");
    streams_[static_cast<int>(StreamId::kSpillWrite)] = device.host().CreateStream("spill_write");
  }
  if (caching()) caching()->Attach(streams_);
  std::map<std::string, Parameter*> parameters;
  for (const ModelSegment& segment : model.segments()) {
    for (Parameter* p : segment.parameters) parameters[p->name()] = p;
  }
  for (size_t f = 0; f < parameters_.size(); ++f) {
    for (const Placement& p : layout_.flat_parameters[f].parameters) {
      parameters_[f].push_back(parameters.at(p.name));
    }
  }
  if (options.add_moves) options.add_moves(moves_);
  memory_.quantized =
      MakeQuantizedTables(allocator, compute(), layout_, memory_.storage, mesh(), options.quantize);
  if (tables_) tables_->Begin(stream(WorldStream(options)), compute());
  if (!scales_loss()) return;
  ResumeLossScaler({FirstLossScale(options.mixed_precision.scaler, mesh().world_size())});
}

Executor::~Executor() {
  communicators_.CountIn(nullptr);
  if (caching()) caching()->Attach({});
}

void Executor::UseForProducts(GemmLibrary& library) {
  memory_.products.library = &library;
  streams_[0]->Lend(&memory_.products);
}

void Executor::ReplaceSchedule(Mode mode, Schedule schedule) {
  memory_.units->Replace(mode, schedule);
  schedules_[static_cast<int>(mode)] = std::move(schedule);
}

View Executor::NewBuffer(int64_t elements, DType dtype, MemoryUse use, Phase phase) {
  if (phase == Phase::kPersistent) return NewPersistent(allocator_, elements, use, dtype);
  View view(nullptr, dtype, Shape{elements});
  if (elements > 0) view.data = allocator_.AllocateForUpdates(view.bytes(), use);
  return view;
}

View Executor::NewShard(int f, MemoryKind kind, const ShardForm& form) {
  const StorageRow& state = memory_.storage.At(Resource::kState, f);
  const MemoryPlace place = form.elements == 1 ? state.place : PlaceOf(f);
  const int64_t values = form.elements == 0 ? 0 : state.elements / form.elements;
  const View shard = NewPersistent(allocator_, values, {kind, place}, form.dtype);
  if (place == MemoryPlace::kDisk) {
    memory_.spilled.Add(f, shard, /*state=*/true);  // Zeros, as the file is.
  } else if (values > 0) {                          // Bytes are as many as whole words.
    const View words(shard.data, DType::kInt32, Shape{shard.bytes() / SizeOf(DType::kInt32)});
    Fill(StreamFor(f), 0, form.dtype == DType::kUInt8 ? words : shard);
  }
  return shard;
}

std::vector<std::vector<View>> Executor::NewShards(MemoryKind kind,
                                                   const std::vector<FormOf>& forms) {
  std::vector<std::vector<View>> shards(forms.size());
  for (size_t i = 0; i < forms.size(); ++i) {
    for (int f = 0; f < static_cast<int>(parameters_.size()); ++f) {
      shards[i].push_back(NewShard(f, kind, forms[i](layout_.flat_parameters[f])));
    }
  }
  memory_.spilled.TakeSlots(allocator_, schedules_[0].spill_slots);
  return shards;
}

void Executor::ResumeLossScaler(const LossScalerState& state) {
  SetLossScaler(compute(), state, memory_.scaler);
}

PlacedView Executor::InMemory(const ShardPart& part, const PlacedView& shard) {
  if (spilled().Holds(shard.view)) spilled().Read(host(), 0, part, shard.view);
  return spilled().In(0, part, shard);
}

void Executor::CastShard(int flat, const View& from, const View& to) {
  for (const ShardPart& part : spilled().PartsOf(flat)) {
    const View source = InMemory(part, {from}).view;
    Cast(StreamFor(flat), source, spilled().In(0, part, to));
    if (spilled().Holds(to)) spilled().Write(host(), 0, part, to);
  }
}

void Executor::MastersWritten() {
  for (int f = 0; f < static_cast<int>(parameters_.size()); ++f) {
    if (memory_.storage.Declared(Resource::kComputeShard, f).home != Home::kRun) continue;
    MoveBetweenSteps(f, memory_.At({Resource::kMaster}, f),
                     memory_.At({Resource::kComputeShard}, f));
  }
}

// Evaluated weights in another form, or elsewhere, have the place of the compute shard, or one of
// their own where that is the masters'.
void Executor::BindShard(int f) {
  if (memory_.storage.Declared(Resource::kValue, f).home != Home::kSame) return;
  const StorageRow& copy = memory_.storage.Declared(Resource::kComputeShard, f);
  const PlacedView shard = At({Resource::kComputeShard}, f);
  View& value = memory_.in_use[f];
  if (shard.Is(MemoryPlace::kDevice, {layout_.flat_parameters[f].dtypes.compute})) {
    value = shard.view;
  } else if (const View& apart = memory_.Shard(Resource::kAverageInUse, f);
             apart.NumElements() > 0) {
    Cast(compute(), shard.view, apart);
    value = apart;
  } else {
    value = compute_shard(f);
    if (copy.home == Home::kStep) return;  // The step makes it.
    MoveBetweenSteps(f, shard, memory_.At({Resource::kComputeShard}, f));
    compute_shards_hold_others_ = true;
  }
}

// The step before the last one has read the place and is done.
void Executor::WriteInputs() {
  if (device_.type() == DeviceType::kSim) return;
  const View& staged = memory_.staged_inputs[steps_ % 2];
  if (device_.checker()) device_.checker()->OnHostAccess("step inputs", {}, {staged});
  *staged.As<StepInputs>() = {
      .lr = step_->lr, .mean_scale = step_->mean_scale, .save = step_->save};
}

void Executor::Run(const Step& step) {
  EventPtr& end = ends_[steps_ % 2];
  if (end) end->Synchronize();
  step_ = &step;
  const struct Forget {
    const Step*& step;
    Tape*& tape;
    ~Forget() {
      step = nullptr;
      tape = nullptr;
    }
  } forget{step_, tape_};  // Where the model throws, too.
  WriteInputs();
  running_ = &schedules_[static_cast<int>(step.mode)];
  clocks_[steps_ % 2].Clear();
  if (caching()) caching()->TakePeaks();  // Those of what was between the steps.
  traffic_[steps_ % 2].Clear();
  communicators_.CountIn(nullptr);  // An agreement that no step before has made is of none.
  PrepareTables();
  communicators_.CountIn(&traffic_[steps_ % 2]);
  events_before_ = std::move(events_);
  events_.assign(running_->actions.size(), nullptr);
  cursor_ = 0;
  if (compute_shards_hold_others_ && !step.weights) MastersWritten();
  compute_shards_hold_others_ = false;
  for (int f = 0; f < static_cast<int>(parameters_.size()); ++f) BindShard(f);
  buffers().Bind(step.mode);
  const bool train = step.mode == Mode::kTrain;
  follows_training_ = std::exchange(trained_, false) && train;
  if (!follows_training_) JoinOthers();
  joined_ = !schedules_[0].options.offloads();
  AdvanceToRun();
  for (int m = 0; m < running_->options.micro_batches; ++m) {
    allocator_.Begin(step.forward ? Phase::kGenerate : train ? Phase::kTrain : Phase::kEval);
    Tape tape(*streams_[0], allocator_, *this, train, options_.recompute,
              options_.mixed_precision.param_dtype);
    tape_ = &tape;
    tape.AttendWith(options_.attention, options_.documents);
    tape.ConvolveWith(&options_.convolution);
    tape.BalanceWith(&options_.balance);
    if (tables_) tables_->Bind(m);
    tape.LookUpIn(tables_.get());
    if (scales_loss()) tape.ScaleGradients(memory_.scaler.Slice(0, 1));
    const Batch& batch = memory_.batches[m % 2].device;
    if (step.forward) {
      step.forward(tape, batch);
    } else {
      static_assert(kSumSquares == kLoss + 1);
      model_.Loss(tape, batch, step.target_scale,
                  memory_.scalars.Slice(kLoss, step.second_sum ? 2 : 1));
    }
    tape.Backward();
  }
  FSDP_CHECK_EQ(cursor_, running_->actions.size()) << "the model left runs of the schedule out";
  end = streams_[0]->RecordTime();
  clocks_[steps_ % 2].End(end);
  if (caching()) peaks_[steps_ % 2] = caching()->TakePeaks();
  ++steps_;
  trained_ = train;
}

StepScalars Executor::Result(int64_t index) {
  FSDP_CHECK(index < steps_ && index >= 0 && index + 2 >= steps_) << index << " of " << steps_;
  ends_[index % 2]->Synchronize();
  StepScalars scalars;
  if (device_.type() == DeviceType::kSim) return scalars;
  const View& report = memory_.reports[index % 2];
  if (device_.checker()) device_.checker()->OnHostAccess("result", {report}, {});
  std::memcpy(static_cast<void*>(&scalars), report.As<float>() + memory_.buffers.tallies(),
              sizeof(scalars));
  scalars.loss *= scalars.mean_scale;
  return scalars;
}

StepAccount Executor::Account(int64_t index) {
  FSDP_CHECK(index < steps_ && index >= 0 && index + 2 >= steps_) << index << " of " << steps_;
  ends_[index % 2]->Synchronize();
  StepAccount account{clocks_[index % 2].Read(), tables_ ? tables_->rounds_of(index) : 0,
                      traffic_[index % 2].Read(), peaks_[index % 2]};
  if (device_.type() != DeviceType::kSim) {
    account.tallies = memory_.buffers.TalliesIn(memory_.reports[index % 2]);
  }
  return account;
}

void Executor::Synchronize() {
  for (const auto& stream : streams_) {
    if (stream) stream->Synchronize();
  }
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
  if (layout_.reads_root[segment]) Bind(0, /*value=*/true, pass == Pass::kBackward);
  Bind(layout_.unit_of_segment[segment], /*value=*/true, pass == Pass::kBackward);
}

void Executor::Leave(int segment, Pass pass) {
  CurrentRun(segment, pass, "leaving");
  if (layout_.reads_root[segment]) Bind(0, false, false);
  Bind(layout_.unit_of_segment[segment], false, false);
  Signal(cursor_);
  cursor_ += 1 + std::exchange(summed_, 0);
  FSDP_CHECK(running_->actions[cursor_].kind != ActionKind::kSumBatch)
      << model_.segments()[segment].name << " has asked for fewer sums than the schedule lists";
  AdvanceToRun();
}

bool Executor::HasBackward(int segment) const {
  return running_->options.mode == Mode::kTrain && segment >= running_->options.backward_from;
}

void Executor::AdvanceToRun() {
  const std::vector<Action>& actions = running_->actions;
  for (; cursor_ < actions.size() && actions[cursor_].kind != ActionKind::kRun; ++cursor_) {
    const Action& action = actions[cursor_];
    WaitFor(action);
    // A root may have no parameters of its own.
    if (action.unit < 0 || layout_.GatheredBytes(action.unit) > 0) {
      memory_.Take(action, step_->mode, cursor_);
      Execute(action);
      memory_.Give(action);
    }
    Signal(cursor_);
    if (action.kind == ActionKind::kBegin && !follows_training_) HoldOthers();
  }
}

std::string Executor::Where() const {
  std::string busy, waiting;
  for (const auto& stream : streams_) {
    const auto position = stream ? stream->Position() : std::nullopt;
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
  Stream& stream = this->stream(action.stream);
  stream.SetTag(TagOf({step_->mode, step_->number, cursor_}));
  StepClock* const clock = action.stream == StreamId::kCompute ? &clocks_[steps_ % 2] : nullptr;
  for (const Wait& wait : action.waits) {
    if (clock) clock->Enter(stream, WaitOf(running_->actions[wait.action].stream));
    if (wait.step_before && !follows_training_) continue;
    const EventPtr& event = (wait.step_before ? events_before_ : events_)[wait.action];
    action.kind == ActionKind::kHostWait ? event->Synchronize() : stream.Wait(event);
  }
  if (clock) {
    if (const StepClock::Part part = PartOf(action)) work_ = part;
    clock->Enter(stream, work_);
  }
}

Stream& Executor::compute() {
  trained_ = false;
  if (std::exchange(held_, false)) {  // There are many units.
    for (EventPtr& copied : copied_) streams_[0]->Wait(std::exchange(copied, nullptr));
  }
  buffers().WaitForCopies(*streams_[0]);
  if (tables_) {
    streams_[0]->Wait(tables_->TakeCopied());
    streams_[0]->Wait(tables_->Exchanged());
  }
  JoinOthers();
  return *streams_[0];
}

Stream& Executor::host() {
  Stream& update = stream(StreamId::kUpdate);
  update.Wait(compute().Record());
  joined_ = false;
  return update;
}

void Executor::WaitUntilLanded(Stream& other) {
  other.Wait(streams_[0]->Record());
  if (tables_) other.Wait(tables_->Exchanged());
  for (const StreamId id : {StreamId::kUpdate, StreamId::kSpillWrite}) {
    const auto& stream = streams_[static_cast<int>(id)];
    if (stream) other.Wait(stream->Record());
  }
}

void Executor::JoinOthers() {
  if (std::exchange(joined_, true)) return;
  for (size_t id = static_cast<size_t>(StreamId::kLeave); id < streams_.size(); ++id) {
    if (streams_[id]) streams_[0]->Wait(streams_[id]->Record());
  }
}

void Executor::HoldOthers() {
  const EventPtr begun = streams_[0]->Record();
  for (size_t s = 1; s < streams_.size(); ++s) {
    if (streams_[s]) streams_[s]->Wait(begun);
  }
}

void Executor::Signal(size_t index) {
  const Action& action = running_->actions[index];
  if (action.signals) events_[index] = stream(action.stream).Record();
}

void Executor::Bind(int unit, bool value, bool gradient) {
  for (const int f : layout_.units[unit].flat_parameters) {
    const View values = value ? memory_.At({Resource::kValue, unit}, f).view : View();
    const View gradients = gradient ? memory_.At({Resource::kGradient, unit}, f).view : View();
    for (size_t i = 0; i < parameters_[f].size(); ++i) {
      const Placement& p = layout_.flat_parameters[f].parameters[i];
      const Shape shape = p.coded_bytes > 0 ? Shape{p.coded_bytes} : p.shape;
      const auto part = [&](const View& all) {
        return all.data ? all.Slice(p.offset, p.size()).Reshape(shape) : View();
      };
      parameters_[f][i]->Bind(part(values), part(gradients));
    }
  }
}

}  // namespace fsdp
