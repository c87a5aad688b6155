#include "trainer/loop/run_directory.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <functional>
#include <optional>
#include <system_error>
#include <thread>
#include <vector>

#include "models/shape.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/checkpoint/checkpoint_directory.h"
#include "trainer/comm/store/together.h"
#include "trainer/core/atomic_file.h"
#include "trainer/core/errors.h"
#include "trainer/core/file_prefix.h"
#include "trainer/core/philox.h"
#include "trainer/core/read_file.h"
#include "trainer/core/utf8.h"
#include "trainer/data/data_files.h"
#include "trainer/observe/provenance.h"
#include "trainer/observe/record_lines.h"
#include "trainer/observe/tensorboard.h"
#include "trainer/recipe/load.h"
#include "trainer/recipe/model_fields.h"
#include "trainer/recipe/recipe.h"
#include "trainer/recipe/resume.h"

namespace fsdp {
namespace {

namespace fs = std::filesystem;

constexpr const char* kMark = "/.shared";
constexpr int64_t kMostMarkBytes = 64;

std::string FindResume(const Recipe& recipe, const RunDirectory& directory) {
  const ResumeRecipe& resume = recipe.checkpoint.resume;
  switch (resume.kind) {
    case ResumeRecipe::Kind::kNone:
      return "";
    case ResumeRecipe::Kind::kAuto:
      return FindLatestCheckpoint(directory.checkpoints()).value_or("");
    case ResumeRecipe::Kind::kStep:
      return FindCheckpoint(directory.checkpoints(), resume.step);
    case ResumeRecipe::Kind::kDirectory: {
      const std::string& named = resume.directory;
      std::error_code ignored;
      const std::optional<int64_t> step = StepOf(named);
      if (step && !fs::exists(named, ignored)) {  // `step_400`, as the directories are called.
        return FindCheckpoint(directory.checkpoints(), *step);
      }
      return ResolveCheckpoint(named);  // A run directory stands for its newest.
    }
  }
  return "";
}

// Empty, too, where something is wrong: the next start says what.
std::string FoundToResume(const Recipe& recipe) {
  try {
    return FindResume(recipe, {recipe.run.Directory()});
  } catch (const Error&) {
    return "";
  }
}

bool HasSteps(const std::string& metrics) {
  bool steps = false;
  std::error_code error;
  if (!fs::exists(metrics, error)) return steps;
  ReadRecordLines(metrics, [&](const RecordLine& line) {
    if (line.text.starts_with(R"({"kind": "step")")) steps = true;
  });
  return steps;
}

// Copies a block for each hole, too, which reads as zeros.
void CopyRecords(const std::string& from, const std::string& to) {
  FileBlocks blocks(from);
  AtomicFile file(to);
  for (std::string_view block = blocks.Next(); !block.empty(); block = blocks.Next()) {
    file.Append(block);
  }
  file.Commit();
}

// Begins the names of records that are set aside: DIR/metrics.1 and so on.
std::string Aside(const RunDirectory& directory, int number) {
  return directory.path + "/metrics." + std::to_string(number);
}

// The first such name that is free: it has no .jsonl.
std::string FreeAside(const RunDirectory& directory) {
  for (int i = 1;; ++i) {
    std::string aside = Aside(directory, i);
    if (!PathExists(aside + ".jsonl")) return aside;
  }
}

// See run_directory.h.
bool HoldsARun(const RunDirectory& directory) {
  return !StepsIn(directory.checkpoints()).empty() ||
         PathExists(directory.checkpoints() + "/latest");
}

// Something in a directory that is no run's; or empty. Launchers may have put logs there.
std::string FindOthers(const RunDirectory& directory) {
  for (const std::string& own : {directory.metrics(), directory.recipe(), directory.provenance(),
                                 directory.checkpoints(), directory.path + "/logs"}) {
    if (PathExists(own)) return "";
  }
  std::error_code error;
  std::string first;
  for (const auto& entry : fs::directory_iterator(directory.path, error)) {
    const std::string name = entry.path().filename(), ending = entry.path().extension();
    const bool log = ending == ".out" || ending == ".err" || ending == ".log";
    if (!name.starts_with(".") && !log && (first.empty() || name < first)) first = name;
  }
  return first;
}

void CompareData(const Recipe& recipe, const CheckpointMeta& meta, const DataFiles& data,
                 RunStart& start) {
  start.data_unknown = !meta.data;
  if (!meta.data) return;
  start.data_changed = DataChanges(meta.data->train, data.train);
  start.valid_changed = DataChanges(meta.data->valid, data.valid);
  if (start.data_changed.empty() || recipe.data.allow_changed) return;
  std::string text = "data: not that of the run to resume, " + start.resume_from + ":";
  for (const std::string& change : start.data_changed) text += "\n  " + change;
  throw DataError(text +
                  "\n  Put it back as it was, or go on with what is there now by "
                  "data.allow_changed: true");
}

// The one of metrics.1.jsonl, metrics.2.jsonl, ... that begins with `records`; or empty.
std::string FindAside(const RunDirectory& directory, const FilePrefix& records) {
  for (int i = 1;; ++i) {
    std::string aside = Aside(directory, i) + ".jsonl";
    if (!PathExists(aside)) return "";
    if (HowItDiffers(aside, records).empty()) return aside;
  }
}

void CompareRecords(const Recipe& recipe, const CheckpointMeta& meta, bool own, RunStart& start) {
  const std::string& from = start.resume_from;
  if (!own) {
    start.records_unknown = from + " is of another run directory";
  } else if (!meta.records) {
    start.records_unknown = from +
                            " does not say what metrics.jsonl held (an import or a reshard "
                            "wrote it)";
  }
  if (!start.records_unknown.empty()) return;
  const std::string path = start.directory.metrics(), how = HowItDiffers(path, *meta.records);
  if (how.empty()) return;
  if (recipe.checkpoint.Allows("records")) {
    start.records_changed = how;
    return;
  }
  const std::string aside = FindAside(start.directory, *meta.records);
  throw CheckpointError(path + ": " + how + ": not the records that the run had when " + from +
                        " was saved" + (aside.empty() ? "" : "; " + aside + " has them") +
                        ". Put it back as it was, or go on with what is there by "
                        "checkpoint.allow_changed: [records]");
}

// Only looks: creates and changes nothing.
RunStart Look(const Recipe& recipe, const DataFiles& data) {
  RunStart start;
  start.directory.path = recipe.run.Directory();
  const RunDirectory& directory = start.directory;
  std::error_code error;
  if (HoldsARun(directory) && recipe.checkpoint.resume.kind == ResumeRecipe::Kind::kNone) {
    throw CheckpointError(directory.path +
                          " holds a run already: give this one another run.name or run.dir, or go "
                          "on with that one by checkpoint.resume: auto");
  }
  if (const std::string others = FindOthers(directory); !others.empty()) {
    throw CheckpointError(directory.path + ": is no run's directory, and not empty: it holds " +
                          PrintableName(others) +
                          ". Give run.dir another, new or empty, or take away what is in it");
  }
  start.resume_from = FindResume(recipe, directory);
  if (!start.resume_from.empty()) {
    start.hold = CheckpointHold(start.resume_from);
    const bool own =
        fs::equivalent(fs::path(start.resume_from) / "..", directory.checkpoints(), error);
    start.goes_back = own && recipe.checkpoint.resume.kind != ResumeRecipe::Kind::kAuto;
    const CheckpointMeta meta = ReadCheckpointMeta(start.resume_from);
    if (meta.recipe.empty()) {
      throw CheckpointError(start.resume_from +
                            " was imported: it holds weights alone, and no run to resume. Start "
                            "from it by model.init_from");
    }
    const Recipe before =
        ParseRecipe({{start.resume_from + "/manifest.json, recipe", meta.recipe}});
    try {
      start.recipe_changed = CheckResume(before, recipe, start.resume_from);
    } catch (const ConfigError& error) {
      if (meta.step < recipe.train.steps) throw;
      throw ConfigError(error.what() + ("\n" + directory.path) +
                        ": the run there is complete, at step " + std::to_string(meta.step) +
                        "; another one needs another run.name");
    }
    start.micro_batch_changed = before.train.micro_batch_size != recipe.train.micro_batch_size;
    CompareData(recipe, meta, data, start);
    CompareRecords(recipe, meta, own, start);
  }
  return start;
}

// Rank 0's part. `interrupted` ends the wait for another job.
RunStart Decide(const Recipe& recipe, const DataFiles& data, std::chrono::milliseconds patience,
                const std::function<bool()>& interrupted) {
  const std::string path = recipe.run.Directory();
  std::error_code error;
  if (!fs::exists(path, error)) Look(recipe, data);  // A start that is refused leaves nothing.
  CreateDirectories(path);
  auto lock = std::make_shared<RunLock>(path, patience, interrupted);
  RunStart start = Look(recipe, data);
  start.lock = std::move(lock);
  for (const char* name : {"/checkpoints", "/logs"}) CreateDirectories(path + name);
  // Removes unfinished files of a run that was killed. Every start writes all others anew.
  RemoveUnfinished(start.directory.checkpoints() + "/latest");
  RemoveUnfinished(start.directory.checkpoints() + "/best");
  RemoveUnfinished(FreeAside(start.directory) + ".jsonl");
  return start;
}

// Everybody's start, as rank 0 has decided it; or its error, which it alone tells.
RunStart DecideTogether(const Recipe& recipe, const DataFiles& data, Store& store, int rank,
                        int world, std::chrono::milliseconds patience) {
  const std::string keys = "run_directory/";
  if (rank == 0) {
    try {
      RunStart start =
          Decide(recipe, data, patience, [&] { return !store.FailureReason().empty(); });
      store.Set(keys + "resume", start.resume_from);
      store.Set(keys + "refused", "");
      return start;
    } catch (const Error& error) {
      store.Set(keys + "code", std::to_string(static_cast<int>(error.code())));
      store.Set(keys + "refused", error.what());
      BeforeAllThrow(store, "run_directory/start", rank, world);
      throw;
    }
  }
  if (const std::string refused = store.Get(keys + "refused"); !refused.empty()) {
    const auto code = static_cast<ExitCode>(std::stoi(store.Get(keys + "code")));
    BeforeAllThrow(store, "run_directory/start", rank, world);
    throw ReportedElsewhere(Error(code, refused));
  }
  RunStart start;
  start.directory.path = recipe.run.Directory();
  start.resume_from = store.Get(keys + "resume");
  return start;
}

// Whether rank 0's mark has come here. A network's file system may be some seconds late; opening
// the directory makes it look again.
bool SeesMark(const std::string& directory, const std::string& mark) {
  constexpr int kTries = 30;
  for (int i = 0; i < kTries; ++i) {
    if (i > 0) std::this_thread::sleep_for(std::chrono::milliseconds(100));
    std::error_code ignored;
    fs::directory_iterator look(directory, ignored);
    try {
      if (ReadWholeFile(directory + kMark, kMostMarkBytes) == mark) return true;
    } catch (const CheckpointError&) {  // Not there.
    }
  }
  return false;
}

}  // namespace

std::string SetMetricsAside(const RunDirectory& directory) {
  if (!HasSteps(directory.metrics())) return "";
  const std::string aside = FreeAside(directory);
  std::error_code error;
  const auto rename = [&](const std::string& from, const std::string& to) {
    fs::rename(from, to, error);
    if (error) throw CheckpointError(from + ": cannot be renamed: " + error.message());
  };
  // In a directory of their own they are another run to TensorBoard. Before the metrics, so that a
  // crash in between is gone over again.
  for (const std::string& path : TensorBoardFiles(directory.path)) {
    fs::create_directories(aside + ".tensorboard", error);
    rename(path, aside + ".tensorboard/" + fs::path(path).filename().string());
  }
  if (fs::exists(directory.recipe(), error)) rename(directory.recipe(), aside + ".recipe.yaml");
  rename(directory.metrics(), aside + ".jsonl");
  return aside + ".jsonl";
}

SetAside GoBack(const RunDirectory& directory, int64_t step) {
  SetAside aside;
  const std::vector<int64_t> steps = StepsIn(directory.checkpoints());
  const bool later = !steps.empty() && steps.back() > step;
  std::error_code error;
  const std::string metrics = directory.metrics();
  if (later && fs::is_regular_file(metrics, error) && fs::file_size(metrics, error) > 0) {
    aside.metrics = FreeAside(directory) + ".jsonl";
    CopyRecords(metrics, aside.metrics);
  }
  aside.checkpoints = GoBackTo(directory.checkpoints(), step);
  return aside;
}

void CheckRunDirectory(const Recipe& recipe, const DataFiles& data) { Look(recipe, data); }

std::optional<RunToResume> FindRunToResume(const Recipe& recipe) {
  try {
    const std::string from = FindResume(recipe, {recipe.run.Directory()});
    if (from.empty()) return std::nullopt;
    const CheckpointMeta meta = ReadCheckpointMeta(from);
    if (meta.recipe.empty()) return std::nullopt;  // It was imported.
    return RunToResume{from, std::make_shared<Recipe>(ParseRecipe({{from, meta.recipe}})),
                       ShapeFromJson(meta.config, from)};
  } catch (const Error&) {
    return std::nullopt;
  }
}

Recipe WithDropoutsOfRun(const Recipe& recipe) {
  Recipe with = recipe;
  if (!recipe.model.init_from) return with;
  const std::optional<RunToResume> run = FindRunToResume(recipe);
  if (!run) return with;
  Recipe recorded = *run->recipe;
  recipe::FillDropouts(recorded.model.fields);  // Builds that did not know one trained without.
  for (const recipe::ModelField& of : recipe::ModelFields()) {
    const std::string& name = of.field.name;
    if (of.field.is_dropout) with.model.fields.insert({name, recorded.model.fields.at(name)});
  }
  return with;
}

bool GoesOn(const Recipe& recipe) { return !FoundToResume(recipe).empty(); }

std::string GoesOnFrom(const Recipe& recipe) {
  const std::string path = FoundToResume(recipe);
  return path.empty() ? "there is no checkpoint to go on from" : "the run can go on from " + path;
}

RunStart OpenRunDirectory(const Recipe& recipe, const DataFiles& data, Store& store, int rank,
                          int world, std::chrono::milliseconds patience) {
  RunStart start = DecideTogether(recipe, data, store, rank, world, patience);
  if (rank == 0) {
    const auto now = std::chrono::system_clock::now().time_since_epoch().count();
    const std::string mark =
        std::to_string(HashBytes(std::to_string(now) + " " + std::to_string(getpid())));
    WriteAtomicFile(start.directory.path + kMark, mark);
    store.Set("run_directory/mark", mark);
  }
  const std::string mark = store.Get("run_directory/mark");
  const std::string here = SeesMark(start.directory.path, mark) ? "" : DescribeHost().name;
  const std::vector<std::string> missing = Exchange(store, "run_directory", rank, world, here);
  std::string who;
  for (int r = 0; r < world; ++r) {
    if (missing[r].empty()) continue;
    who += (who.empty() ? "rank " : ", rank ") + std::to_string(r) + " on " + missing[r];
  }
  if (!who.empty()) {
    BeforeAllThrow(store, "run_directory", rank, world);
    throw CheckpointError(start.directory.path +
                          ": not a shared directory: rank 0's files do not appear in that of " +
                          who + ". Put run.dir where all hosts see it");
  }
  if (rank == 0) {
    std::error_code ignored;
    fs::remove(start.directory.path + kMark, ignored);
  }
  return start;
}

}  // namespace fsdp
