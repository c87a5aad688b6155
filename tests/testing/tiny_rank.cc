#include "tests/testing/tiny_rank.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <functional>
#include <memory>
#include <span>
#include <stdexcept>
#include <utility>

#include "models/shape.h"
#include "trainer/comm/nccl/nccl_communicator.h"
#include "trainer/comm/pinned_communicator.h"
#include "trainer/data/tokens/token_batch.h"
#include "trainer/engine/gemm_algorithms.h"
#include "trainer/engine/plan_memory.h"
#include "trainer/fsdp/caching_buffers.h"
#include "trainer/fsdp/executor.h"
#include "trainer/fsdp/model_layout.h"
#include "trainer/fsdp/records.h"
#include "trainer/nn/lora.h"
#include "trainer/nn/model.h"
#include "trainer/ops/cuda/cublaslt.h"
#include "trainer/ops/elementwise.h"
#include "trainer/ops/state_codes.h"
#include "trainer/runtime/choose_device.h"
#include "trainer/runtime/cpu/cpu_device.h"
#include "trainer/runtime/spill/spill_memory.h"
#include "trainer/runtime/stream_checker.h"

namespace fsdp::testing {
namespace {

// A rank's answer: pieces of named tensors, as bytes, so that it fits through a pipe.
class Report {
 public:
  void Add(const std::string& name, int64_t size, int64_t begin, std::span<const float> values) {
    const int64_t head[] = {static_cast<int64_t>(name.size()), size, begin,
                            static_cast<int64_t>(values.size())};
    bytes_.append(reinterpret_cast<const char*>(head), sizeof(head));
    bytes_ += name;
    bytes_.append(reinterpret_cast<const char*>(values.data()), values.size_bytes());
  }
  void Add(const std::string& name, const std::vector<float>& values) {
    Add(name, static_cast<int64_t>(values.size()), 0, values);
  }
  std::string Take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

// Memory that holds NaN until somebody writes to it.
class DirtyAllocator final : public PhasedAllocator {
 public:
  DirtyAllocator(Device& device, const MemoryPlan& plan, std::unique_ptr<SpillMemory> spill)
      : device_(device), arena_(device, plan, std::move(spill)) {}

  void Begin(Phase phase) override { arena_.Begin(phase); }
  std::byte* Allocate(int64_t bytes, MemoryUse use) override {
    std::byte* data = arena_.Allocate(bytes, use);
    // The first block of a place is its arena's first. Bytes never written to a disk are zero.
    if (use.place != MemoryPlace::kDisk &&
        !std::exchange(dirty_[static_cast<int>(use.place)], true)) {
      const int64_t elements = arena_.plan().bytes(use.place) / SizeOf(DType::kFloat32);
      const bool on_device = use.place == MemoryPlace::kDevice;
      const auto stream = (on_device ? device_ : device_.host()).CreateStream("dirty");
      Fill(*stream, std::bit_cast<float>(~uint32_t{0}), View(data, DType::kFloat32, {elements}));
      stream->Synchronize();
    }
    return data;
  }
  std::byte* AllocateForUpdates(int64_t bytes, MemoryUse use) override {
    return arena_.AllocateForUpdates(bytes, use);
  }
  void Free(std::byte* data, int64_t bytes, MemoryUse use) noexcept override {
    arena_.Free(data, bytes, use);
  }
  SpillMemory* spill() override { return arena_.spill(); }

 private:
  Device& device_;
  PlannedAllocator arena_;
  bool dirty_[kNumMemoryPlaces] = {};
};

class TinyRank {
 public:
  TinyRank(const TinyRun& run, Rank& rank)
      : run_(run),
        rank_(rank),
        rows_(run.options.executor.micro_batch_size),
        seq_(run.options.executor.sample_length),
        model_(ModelOf(run)),
        device_(CreateDevice(run.device,
                             {.checker = run.check ? std::make_shared<StreamChecker>() : nullptr,
                              .gpu = run.nccl == TinyRun::Nccl::kNo ? 0 : rank.rank})),
        plan_(PlanMemory(*model_, run.options, rank.size, /*traffic=*/nullptr, run.device)),
        allocator_(MemoryFor(run, plan_, *device_)),
        communicators_(MeshFor(run.options.executor, rank.rank, rank.size, run.ranks_by_position),
                       run.options.executor.communicators,
                       [&](const std::string& name, const RankGroup& group) {
                         if (run.nccl != TinyRun::Nccl::kNo) return OverNccl(name, group);
                         auto communicator = rank.join_group(name, group, {.timeout_s = 120});
                         if (run.device != DeviceType::kCuda) return communicator;
                         return MakePinnedCommunicator(std::move(communicator), *device_);
                       }),
        session_(*device_, *allocator_, *model_, run.options, communicators_) {
    if (run.device == DeviceType::kCuda && run.library != TinyRun::Library::kNone) OpenLibrary();
    for (const ModelSegment& segment : model_->segments()) {
      for (const Parameter* p : segment.parameters) parameters_[p->name()] = p;
    }
  }

  std::string Run() {
    try {
      Steps();
    } catch (const std::exception& error) {  // Streams end only when nothing is in flight.
      for (Communicator* c : communicators_.all()) c->Abort(error.what());
      if (run_.park) cpu().Release();
      throw;
    }
    if (library_ != nullptr) RequireWhatWasTimed();
    if (allocator_->caching() != nullptr) RequireWhatWasPlanned(allocator_->caching()->Used());
    Barrier(*rank_.store, "done", rank_.rank, rank_.size);
    return report_.Take();
  }

 private:
  static std::shared_ptr<Model> ModelOf(const TinyRun& run) {
    std::shared_ptr<Model> model = run.model ? run.model() : MakeModel(run.shape());
    if (run.lora && run.lora->rank > 0) {
      model = std::make_unique<LoraModel>(std::move(model), *run.lora);
    }
    for (const GroupMistake& mistake : FreezeParameters(*model, run.options.optimizer.groups)) {
      throw std::invalid_argument(mistake.message);
    }
    if (!run.lora) return model;
    for (const BaseMistake& mistake : EncodeFrozen(*model, *run.lora)) {
      throw std::invalid_argument(mistake.message);
    }
    return model;
  }

  static std::unique_ptr<PhasedAllocator> MemoryFor(const TinyRun& run, const MemoryPlan& plan,
                                                    Device& device) {
    const ExecutorOptions& options = run.options.executor;
    if (options.buffers == FsdpOptions::Buffers::kCaching) {
      return MakeAllocator(device, options, plan);
    }
    std::unique_ptr<SpillMemory> spill;
    if (const int64_t bytes = plan.bytes(MemoryPlace::kDisk); bytes > 0) {
      spill = std::make_unique<SpillMemory>(options.cpu_offload.spill.value(), "state", bytes);
    }
    return std::make_unique<DirtyAllocator>(device, plan, std::move(spill));
  }

  void OpenLibrary() {
    const FoundGpuLibrary found = FindGpuLibrary(GpuLibrary::kCublasLt, {});
    Require(static_cast<bool>(found.function), found.why_not);
    library_ = OpenCublasLt(found, run_.library == TinyRun::Library::kDeterministic);
    const std::vector<GemmShape> shapes =
        StepGemmShapes(*model_, run_.options, rank_.size, *library_);
    Require(!shapes.empty(), "no products for the library");
    GemmAlgorithms timed;
    TimeAlgorithms(*device_, shapes, *library_, &timed);
    Require(timed.by_shape.size() == shapes.size(), "a shape without an algorithm");
    for (const GemmLibrary::Usage& usage : library_->Usages()) {
      runs_when_timed_[usage.shape.Text()] = usage.calls;
    }
    session_.executor().UseForProducts(*library_);
  }

  void RequireWhatWasTimed() {
    for (const GemmLibrary::Usage& usage : library_->Usages()) {
      Require(usage.chosen, "no algorithm was chosen for " + usage.shape.Text());
      Require(usage.calls > runs_when_timed_[usage.shape.Text()],
              "timed, and never multiplied: " + usage.shape.Text());
    }
  }

  // Bytes that a caching allocator gave out at a time must be as planned; when they are to be had
  // again is a matter of time.
  void RequireWhatWasPlanned(const MemoryPlan& used) const {
    const auto require = [](int64_t bytes, int64_t planned, int place, const char* what) {
      Require(bytes == planned, std::to_string(bytes) + " bytes " + what + " of place " +
                                    std::to_string(place) + ", " + std::to_string(planned) +
                                    " were planned");
    };
    for (int place = 0; place < kNumMemoryPlaces; ++place) {
      const bool pooled = static_cast<MemoryPlace>(place) != MemoryPlace::kDevice;
      if (pooled) require(used.arenas[place], plan_.arenas[place], place, "in use");
      for (int kind = 0; kind < kNumMemoryKinds; ++kind) {
        require(used.kinds[place][kind], plan_.kinds[place][kind], place, "of a kind");
      }
    }
  }

  std::unique_ptr<Communicator> OverNccl(const std::string& name, const RankGroup& group) {
    return CreateNcclCommunicator(
        FindNccl(), *device_, *rank_.store, name, group,
        {.comm = {.timeout_s = 120}, .deterministic = run_.nccl == TinyRun::Nccl::kDeterministic});
  }

  void Steps() {
    Executor& executor = session_.executor();
    const auto initial = [this](const Parameter& p, int64_t begin, std::span<float> values) {
      run_.initial(p, begin, values);
    };
    executor.Initialize(initial, run_.initial_buffers, run_.initial_rows);
    executor.Synchronize();
    const uint64_t coded = executor.InitializeBase(
        initial, RecordsOf(initial), [this](const std::string& name, const auto& work) {
          return Exchange(*rank_.store, name, rank_.rank, rank_.size, work());
        });
    report_.Add("coded", {static_cast<float>(coded & 0xffffff), static_cast<float>(coded >> 40)});
    Collect("initial/", [&](int unit) { return executor.master(unit); });
    CollectTables("initial/");

    std::vector<float> logits;
    for (const auto& [sample, column] : run_.logits) {
      const std::span<const float> row =
          session_.Logits(column, [this, sample = sample](int, const Batch& whole) {
            for (int64_t r = 0; r < rows_; ++r) {
              run_.rows ? FillRow(1, sample, r, whole) : FillRow(1, sample, r, TokenBatch(whole));
            }
            if (run_.rows) run_.rows->Derive(whole);
          });
      logits.insert(logits.end(), row.begin(), row.end());
    }
    report_.Add("logits", logits);

    const int64_t before = executor.steps();
    std::vector<float> losses, norms;
    std::vector<float> scales;
    float gradient_scale = 0;
    const auto collect = [&](int64_t step) {
      const StepScalars scalars = executor.Result(before + step - 1);
      SayTraffic(step, before + step - 1);
      losses.push_back(scalars.loss);
      norms.push_back(scalars.grad_norm);
      if (scalars.loss_scale > 0) scales.push_back(scalars.loss_scale);
      gradient_scale = scalars.mean_scale / (scalars.loss_scale > 0 ? scalars.loss_scale : 1);
    };
    for (int64_t step = 1; step <= run_.steps; ++step) {
      if (step > 2) collect(step - 2);
      if (run_.park && step % 2 == 1) {  // Two steps at a time.
        executor.Synchronize();
        cpu().Park();
      }
      session_.Train(
          step, Targets(step), /*save=*/false,
          [this, step](int m, const Batch& batch) { Fill(step, m, batch); },
          step < run_.steps
              ? Session::Load([this, step](int m, const Batch& batch) { Fill(step + 1, m, batch); })
              : nullptr);
      if (run_.park && (step % 2 == 0 || step == run_.steps)) cpu().Release();
    }
    for (int64_t step = std::max(1, run_.steps - 1); step <= run_.steps; ++step) collect(step);
    report_.Add("loss", losses);
    report_.Add("grad_norm", norms);
    report_.Add("loss_scale", scales);

    double loss = 0, second_sum = 0;
    const int64_t wave = rows_ * rank_.size;
    const auto scale = static_cast<float>(1.0 / static_cast<double>(Targets(run_.eval_step)));
    for (int m = 0; m * wave < run_.options.global_batch_size; ++m) {
      session_.Eval(scale, [this, m](int, const Batch& batch) { Fill(run_.eval_step, m, batch); });
      const StepScalars scalars = executor.Result(executor.steps() - 1);
      loss += scalars.loss;
      second_sum += scalars.second_sum();
      SayTraffic(0, executor.steps() - 1);
    }
    report_.Add("eval", {static_cast<float>(loss), static_cast<float>(second_sum)});

    executor.Synchronize();
    Collect("parameter/", [&](int unit) { return executor.master(unit); });
    Collect(
        "gradient/", [&](int unit) { return executor.gradient(unit); },
        [&](int unit) {
          return run_.mean ? gradient_scale * executor.gradient_divisor(unit) : 1.0f;
        });
    CollectTables("parameter/", "state/rows/");
    for (const ShardState& state : session_.optimizer().state()) {
      if (state.absmax_of) continue;  // Part of the values of the codes.
      Collect("state/" + state.name + "/", [&](int unit) { return state.shards[unit]; });
    }
    const ModelBuffers& buffers = executor.buffers();
    for (size_t i = 0; i < buffers.values().size(); ++i) {
      report_.Add("buffer/" + buffers.buffers()[i]->name(), Floats(buffers.values()[i]));
    }
  }

  void SayTraffic(int64_t step, int64_t index) {
    if (!run_.on_traffic && !run_.on_table_rounds) return;
    const StepAccount account = session_.executor().Account(index);
    if (run_.on_traffic) run_.on_traffic(rank_.rank, step, account.traffic);
    if (run_.on_table_rounds) run_.on_table_rounds(rank_.rank, step, account.table_rounds);
  }

  // This rank's rows of embedding tables, and the sums that Adagrad keeps of them.
  void CollectTables(const std::string& rows_prefix, const std::string& sums_prefix = "") {
    const TableExchange* const tables = session_.executor().tables();
    if (tables == nullptr) return;
    const TableLayout& layout = tables->layout();
    const std::vector<float> rows = Floats(tables->rows()), sums = Floats(tables->sums());
    const int64_t width = layout.width();
    for (int64_t own = 0; own < layout.own_rows(); ++own) {
      const std::span<const float> values(rows.data() + own * width, static_cast<size_t>(width));
      const auto row = layout.At(tables->position(), own);
      if (!row) {
        Require(std::ranges::all_of(values, [](float v) { return v == 0; }), "a row is nobody's");
        continue;
      }
      const EmbeddingTable& table = layout.tables[row->table];
      report_.Add(rows_prefix + table.name, table.rows * width, row->row * width, values);
      if (sums_prefix.empty()) continue;
      report_.Add(sums_prefix + table.name, table.rows, row->row, {&sums[own], 1});
    }
  }

  void FillRow(int64_t step, int64_t sample, int64_t row, const TokenBatch& batch) const {
    std::vector<int32_t> tokens(seq_ + 1, 0);
    std::vector<float> weights(seq_, 0);
    if (sample < run_.options.global_batch_size) run_.sample(step, sample, tokens, weights);
    for (int64_t t = 0; t < seq_; ++t) {
      const int64_t i = row * seq_ + t;
      batch.tokens.As<int32_t>()[i] = tokens[t];
      batch.targets.As<int32_t>()[i] = tokens[t + 1];
      batch.weights.As<float>()[i] = weights[t];
      batch.positions.As<int32_t>()[i] = static_cast<int32_t>(t);
    }
    if (run_.positions && sample < run_.options.global_batch_size) {
      run_.positions(step, sample, {batch.positions.As<int32_t>() + row * seq_, size_t(seq_)});
    }
    const int64_t tokens_there = run_.length ? run_.length(step, sample) : seq_;
    SetLength(batch, row, sample < run_.options.global_batch_size ? tokens_there : 0);
    int32_t* key = batch.sample_keys.As<int32_t>() + 2 * row;
    key[0] = static_cast<int32_t>(step);
    key[1] = static_cast<int32_t>(sample);
  }

  // Sample (micro_batch * world + rank) * rows + row of the step's global batch.
  void Fill(int64_t step, int micro_batch, const Batch& whole) const {
    if (run_.rows) return FillRows(step, micro_batch, whole);
    const TokenBatch batch(whole);
    for (int64_t row = 0; row < rows_; ++row) {
      FillRow(step,
              (micro_batch * rank_.size + communicators_.mesh().data_coordinate()) * rows_ + row,
              row, batch);
    }
    OrderTokens(batch);
  }

  // Fills row `row` of `batch` with sample `place` of the step.
  void FillRow(int64_t step, int64_t place, int64_t row, const Batch& batch) const {
    const int64_t global = run_.options.global_batch_size;
    run_.rows->Fill(place < global ? (step - 1) * global + place : kNoSample, row, batch);
    int32_t* key = batch.sample_keys.As<int32_t>() + 2 * row;
    key[0] = static_cast<int32_t>(step);
    key[1] = static_cast<int32_t>(place);
  }

  void FillRows(int64_t step, int micro_batch, const Batch& batch) const {
    for (int64_t row = 0; row < rows_; ++row) {
      FillRow(step,
              (micro_batch * rank_.size + communicators_.mesh().data_coordinate()) * rows_ + row,
              row, batch);
    }
    run_.rows->Derive(batch);
  }

  int64_t Targets(int64_t step) const {
    const int64_t global = run_.options.global_batch_size;
    if (run_.rows) return run_.rows->Targets((step - 1) * global, step * global);
    std::vector<int32_t> tokens(seq_ + 1);
    std::vector<float> weights(seq_);
    int64_t targets = 0;
    for (int64_t sample = 0; sample < run_.options.global_batch_size; ++sample) {
      run_.sample(step, sample, tokens, weights);
      targets += seq_ - std::count(weights.begin(), weights.end(), 0.0f);
    }
    return targets;
  }

  CpuDevice& cpu() { return dynamic_cast<CpuDevice&>(*device_); }

  std::vector<float> Floats(const View& view) {
    const Buffer pinned = device_->Allocate(view.bytes(), MemoryPlace::kPinned);
    const View host(pinned.data(), view.dtype, view.shape);
    Executor& executor = session_.executor();
    if (executor.spilled().Holds(view)) {
      executor.Synchronize();
      executor.spill()->Read(view, host);
    } else if (view.NumElements() > 0) {
      Copy(executor.compute(), view, host);
      executor.compute().Synchronize();
    }
    std::vector<float> values(host.NumElements());
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = host.dtype == DType::kBFloat16  ? static_cast<float>(host.As<BFloat16>()[i])
                  : host.dtype == DType::kFloat16 ? static_cast<float>(host.As<Float16>()[i])
                  : host.dtype == DType::kInt64   ? static_cast<float>(host.As<int64_t>()[i])
                  : host.dtype == DType::kUInt8   ? static_cast<float>(host.As<uint8_t>()[i])
                                                  : host.As<float>()[i];
    }
    return values;
  }

  // The codes of a shard of the optimizer's become their values.
  void Decode(const View& codes, int unit, std::vector<float>& values) {
    const std::vector<ShardState>& states = session_.optimizer().state();
    for (const ShardState& state : states) {
      if (!state.absmax_of || states[*state.absmax_of].shards[unit].data != codes.data) continue;
      const std::vector<float> absmax = Floats(state.shards[unit]);
      const StateCodeTables& tables = state.name == "v_absmax" ? kUnsignedCodes : kSignedCodes;
      for (size_t i = 0; i < values.size(); ++i) {
        values[i] = tables.values[static_cast<int>(values[i])] * absmax[i / kCodeBlock];
      }
    }
  }

  template <typename ShardOf>
  void Collect(
      const std::string& prefix, const ShardOf& shard_of,
      const std::function<float(int unit)>& scale_of = [](int) { return 1.0f; }) {
    const Executor& executor = session_.executor();
    const std::vector<FlatParameter>& units = executor.layout().flat_parameters;
    for (size_t u = 0; u < units.size(); ++u) {
      if (units[u].HasRecords()) continue;
      const View view = shard_of(static_cast<int>(u));
      const bool may_lack = units[u].frozen || units[u].dtypes.whole;  // No gradient, no state.
      if (may_lack && view.NumElements() == 0) continue;
      std::vector<float> shard = Floats(view);
      if (view.dtype == DType::kUInt8) Decode(view, static_cast<int>(u), shard);
      const float scale = scale_of(static_cast<int>(u));
      int64_t end = 0;  // End of the last piece: padding lies between pieces.
      const auto padding_until = [&](int64_t begin) {
        for (; end < begin; ++end) {
          Require(std::bit_cast<uint32_t>(shard[end]) == 0,
                  prefix + units[u].name + ": padding is not zero");
        }
      };
      for (const Piece& piece : PiecesOfShard(units[u], executor.shard_rank())) {
        padding_until(piece.at);
        std::vector<float> values(shard.begin() + piece.at, shard.begin() + piece.at + piece.count);
        for (float& value : values) value *= scale;
        const Parameter& parameter = *parameters_.at(piece.parameter->name);
        for (const SlicePiece& part : SlicePieces(parameter, piece.begin, piece.count)) {
          report_.Add(prefix + part.slice->name, part.slice->shape.NumElements(), part.begin,
                      std::span<const float>(values).subspan(part.at, part.count));
        }
        end = piece.at + piece.count;
      }
      padding_until(units[u].shard_size);
    }
  }

  const TinyRun& run_;
  Rank& rank_;
  const int64_t rows_, seq_;
  const std::shared_ptr<Model> model_;
  std::map<std::string, const Parameter*> parameters_;
  const std::unique_ptr<Device> device_;
  std::unique_ptr<GemmLibrary> library_;
  std::map<std::string, int64_t> runs_when_timed_;  // By shape.
  const MemoryPlan plan_;
  const std::unique_ptr<PhasedAllocator> allocator_;
  MeshCommunicators communicators_;
  Session session_;
  Report report_;
};

}  // namespace

std::string RunTinyRank(const TinyRun& run, Rank& rank) { return TinyRank(run, rank).Run(); }

void Collected::Read(const std::string& report) {
  for (size_t at = 0; at < report.size();) {
    int64_t head[4];
    std::memcpy(head, report.data() + at, sizeof(head));
    at += sizeof(head);
    const std::string name = report.substr(at, head[0]);
    at += name.size();
    Entry& entry = entries_[name];
    entry.values.resize(head[1]);
    entry.seen.resize(head[1]);
    for (int64_t i = head[2]; i < head[2] + head[3]; ++i, at += sizeof(float)) {
      float value;
      std::memcpy(&value, report.data() + at, sizeof(value));
      const bool same = std::bit_cast<uint32_t>(value) == std::bit_cast<uint32_t>(entry.values[i]);
      Require(!entry.seen[i] || same,
              "ranks disagree about element " + std::to_string(i) + " of " + name);
      entry.values[i] = value;
      entry.seen[i] = true;
    }
  }
}

std::vector<float> Collected::Values(const std::string& name) const {
  const auto entry = entries_.find(name);
  if (entry == entries_.end()) return {};
  for (const bool seen : entry->second.seen) Require(seen, "nobody has all of " + name);
  return entry->second.values;
}

Tensors Collected::WithPrefix(const std::string& prefix) const {
  Tensors tensors;
  for (const auto& [name, entry] : entries_) {
    if (name.starts_with(prefix)) tensors[name.substr(prefix.size())] = Values(name);
  }
  return tensors;
}

}  // namespace fsdp::testing
