#include "trainer/loop/checkpointer.h"

#include <filesystem>
#include <utility>

#include "trainer/checkpoint/checkpoint_directory.h"
#include "trainer/checkpoint/finite.h"
#include "trainer/core/errors.h"
#include "trainer/core/utf8.h"
#include "trainer/fsdp/executor.h"
#include "trainer/loop/failure_protocol.h"
#include "trainer/recipe/recipe.h"
#include "trainer/runtime/spill/spill_file.h"
#include "trainer/runtime/spill/spill_memory.h"

namespace fsdp {
namespace {

// This rank's rows, and what is kept of them, table by table.
void AddRows(const TableExchange& tables, const std::vector<BufferState>& rows,
             std::vector<CheckpointState>& states) {
  const TableLayout& layout = tables.layout();
  for (const auto& [name, value] :
       {std::pair(kRowsState, rows[0].value), std::pair(kRowSumsState, rows[1].value)}) {
    CheckpointState& state = states.emplace_back();
    state.name = name;
    state.grid = Grid::kRows;
    const int64_t row = value.NumElements() / layout.own_rows();
    const View all = value.Reshape(Shape{value.NumElements()});
    for (int t = 0; t < std::ssize(layout.tables); ++t) {
      const auto [begin, count] = layout.RowsOf(t, tables.position());
      const View part = all.Slice(begin * row, count * row);
      const EmbeddingTable& table = layout.tables[t];
      state.tensors.push_back({table.name, "",
                               value.shape.rank() == 1 ? part : part.Reshape(Shape{count, row}),
                               table.rows});
    }
  }
}

// The second moments of matrices' outputs, each with one rank.
void AddRowMoments(const Muon& muon, const View& values, std::vector<CheckpointState>& states) {
  CheckpointState& state = states.emplace_back();
  state.name = kRowMomentsState;
  state.grid = Grid::kTensor;
  for (const RowMoments& of : muon.RowMomentsOf()) {
    const View value = of.begin ? values.Slice(*of.begin, of.outputs)
                                : View(nullptr, values.dtype, Shape{of.outputs});
    state.tensors.push_back({of.name, of.parameter, value, 0, of.owner});
  }
}

// Tensors of their own, the same on all ranks.
void AddTensors(const char* name, const std::vector<BufferState>& values,
                std::vector<CheckpointState>& states) {
  if (values.empty()) return;
  CheckpointState& own = states.emplace_back();
  own.name = name;
  own.grid = Grid::kTensor;
  for (const BufferState& of : values) own.tensors.push_back({of.name, of.owner, of.value});
}

std::vector<CheckpointState> ForCheckpoint(const Session& session, const Session::Kept& kept) {
  const Executor& executor = session.executor();
  SpillMemory* const spill = executor.spill();
  std::vector<CheckpointState> states;
  for (const ShardState& s : kept.state) {
    states.push_back({.name = s.name,
                      .shards = s.shards,
                      .grid = s.absmax_of ? Grid::kBlock : Grid::kElement,
                      .spill = spill});
  }
  if (executor.tables()) AddRows(*executor.tables(), kept.rows, states);
  if (!kept.row_moments.empty()) {
    AddRowMoments(*session.optimizer().muon(), kept.row_moments[0].value, states);
  }
  AddTensors(kFactorState, kept.factors, states);
  AddTensors(kBuffersState, kept.buffers, states);
  return states;
}

std::vector<Range> RangesOf(const Session::Kept& kept) {
  std::vector<Range> ranges;
  for (const ShardState& s : kept.state) {
    for (const View& shard : s.shards) {
      if (shard.NumElements() > 0) ranges.emplace_back(shard);
    }
  }
  for (const auto* const values : {&kept.buffers, &kept.rows, &kept.row_moments, &kept.factors}) {
    for (const BufferState& of : *values) ranges.emplace_back(of.value);
  }
  return ranges;
}

}  // namespace

Checkpointer::Checkpointer(const Recipe& recipe, const Job& job, const RunDirectory& directory,
                           Session& session, Recorder& recorder)
    : recipe_(recipe), job_(job), directory_(directory), session_(session), recorder_(recorder) {
  if (session_.options().snapshot) saver_.emplace(job_.checker);
}

CheckpointMeta Checkpointer::Load(const std::string& from) {
  try {
    DeclareHostUse("load", {}, RangesOf(session_.kept()));
    LoadedCheckpoint loaded = LoadCheckpoint(from, executor().layout(), PlaceOn(executor().mesh()),
                                             ForCheckpoint(session_, session_.kept()));
    if (const std::string wrong = NotFinite(); !wrong.empty()) {
      throw CheckpointError(from + ": " + wrong + ": not finite, so no run can go on from it");
    }
    session_.ToDevice();
    if (!loaded.converted.empty()) {
      recorder_.Line(Printable(from + " is of another precision: " + loaded.converted));
    }
    return std::move(loaded.meta);
  } catch (const SpillError&) {  // An older checkpoint would not help.
    throw;
  } catch (const CheckpointError& error) {
    const bool own = std::filesystem::path(from).parent_path() == directory_.checkpoints();
    throw CheckpointError(error.what() + (own ? HowToGoOn(from) : ""));
  }
}

bool Checkpointer::IsDue(int64_t step) const {
  const std::optional<int64_t> every = recipe_.checkpoint.every;
  if (!every) return false;
  return step == recipe_.train.steps || (*every > 0 && step % *every == 0);
}

bool Checkpointer::WantsByTime() {
  const std::optional<double> minutes = recipe_.checkpoint.every_minutes;
  const auto now = std::chrono::steady_clock::now();
  if (!minutes || now - last_wish_ < std::chrono::duration<double>(60 * *minutes)) return false;
  last_wish_ = now;
  return true;
}

void Checkpointer::Save(const CheckpointMeta& meta, bool last) {
  executor().Synchronize();
  const double begin = recorder_.Pause();
  Finish();
  CheckpointMeta all = meta;
  all.records = recorder_.Sync();
  const auto save = [this, all, attempt = saves_++](const Session::Kept& kept) {
    return SaveCheckpoint(directory_.checkpoints(), executor().layout(), PlaceOn(executor().mesh()),
                          ForCheckpoint(session_, kept), all, *job_.store, attempt,
                          {recipe_.checkpoint.keep_last, recipe_.checkpoint.keep_best});
  };
  saved_step_ = meta.step;
  last_wish_ = std::chrono::steady_clock::now();
  if (saver_ && !last) {
    const Session::Snapshot taken = session_.TakeSnapshot();
    const Session::Kept& kept = taken.values;
    saver_->Start([save, &kept] { return save(kept); }, RangesOf(kept), taken.taken);
  } else {
    FetchState("save");
    RecordSaved(save(session_.kept()));
    save_seconds_ = recorder_.Now() - begin;
  }
  recorder_.Continue({.step = meta.step, .checkpoint = recorder_.Now() - begin});
}

void Checkpointer::Poll() {
  if (saver_ && saver_->ended() && !saver_->failed()) Finish();
}

void Checkpointer::Finish() {
  if (saver_ && saver_->in_flight()) RecordSaved(saver_->Finish());
}

std::exception_ptr Checkpointer::GiveUp(const std::exception& error) {
  if (!saver_ || !saver_->in_flight()) return nullptr;
  if (!saver_->ended() && job_.store->FailureReason().empty()) {
    job_.store->Fail("rank " + std::to_string(job_.rank) + ": " + error.what());
  }
  try {
    saver_->Finish();
  } catch (const CommError&) {  // It went down with the run.
  } catch (const Error&) {
    if (dynamic_cast<const CommError*>(&error)) return std::current_exception();
  } catch (const std::exception&) {
  }
  return nullptr;
}

void Checkpointer::RequireFinite(int64_t step) {
  FetchState("look");
  EveryRank(job_, "last update", [&] {
    const std::string wrong = NotFinite();
    if (wrong.empty()) return;
    throw Error(ExitCode::kNotFinite, "after step " + std::to_string(step) + ": " + wrong +
                                          ": not finite, so its update has overflowed; a lower "
                                          "optimizer.lr or more schedule.warmup_steps usually "
                                          "helps");
  });
}

// In words, the first element of this rank's shards and of the buffers that is NaN or infinite;
// empty: there is none.
std::string Checkpointer::NotFinite() {
  const Layout& layout = executor().layout();
  for (const ShardState& s : session_.state()) {
    for (size_t u = 0; u < s.shards.size(); ++u) {
      const FlatParameter& flat = layout.flat_parameters[u];
      std::string wrong = DescribeNotFinite(s.name, flat, flat.ShardBegin(executor().shard_rank()),
                                            s.shards[u], executor().spill());
      if (!wrong.empty()) return wrong;
    }
  }
  const Session::Kept& kept = session_.kept();
  for (const auto* const values : {&kept.buffers, &kept.rows, &kept.row_moments, &kept.factors}) {
    for (const BufferState& of : *values) {
      std::string wrong = DescribeNotFinite(of.name, 0, of.value);
      if (!wrong.empty()) return wrong;
    }
  }
  return "";
}

// Waits for all steps, and moves their results to where the host may read them.
void Checkpointer::FetchState(const char* name) {
  session_.ToHost();
  executor().Synchronize();
  DeclareHostUse(name, RangesOf(session_.kept()), {});
}

// Tells the stream checker which memory of the device the host itself reads and writes.
void Checkpointer::DeclareHostUse(const char* name, const std::vector<Range>& reads,
                                  const std::vector<Range>& writes) {
  if (job_.checker) job_.checker->OnHostAccess(name, reads, writes);
}

void Checkpointer::RecordSaved(const SavedCheckpoint& saved) {
  save_seconds_ = saved.seconds;
  recorder_.Write(CheckpointRecord{saved_step_, saved.path, saved.seconds, saved.bytes});
}

}  // namespace fsdp
