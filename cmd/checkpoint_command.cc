#include <algorithm>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "cmd/commands.h"
#include "cmd/shared_flags.h"
#include "trainer/checkpoint/checkpoint_directory.h"
#include "trainer/checkpoint/checkpoint_writer.h"
#include "trainer/checkpoint/verify.h"
#include "trainer/core/dtype.h"
#include "trainer/core/errors.h"
#include "trainer/core/json.h"
#include "trainer/core/terminal.h"
#include "trainer/core/units.h"
#include "trainer/core/utf8.h"
#include "trainer/loop/process.h"
#include "trainer/loop/run_list.h"
#include "trainer/weights/hf_export.h"
#include "trainer/weights/hf_weights.h"

namespace fsdp {
namespace {

// Shows how far a long job is.
struct Progress {
  const char* what;
  ProgressLine line = {};

  void operator()(int64_t done, int64_t total) {
    if (!line.IsDue()) return;
    const double rate = static_cast<double>(done) / line.Seconds();
    std::string text = std::string(what) + " " + HumanBytes(done) + " of " + HumanBytes(total) +
                       ", " + HumanBytes(static_cast<int64_t>(rate)) + "/s";
    if (rate > 0) text += ", " + HumanDuration(static_cast<double>(total - done) / rate) + " left";
    line.Show(text);
  }
};

double SecondsSince1970() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::string RanksOf(int world, int shards) {
  return std::to_string(world) + (shards == world ? "" : ", " + std::to_string(shards) + " a copy");
}

std::string DateOf(double seconds_since_1970) {
  const auto time = static_cast<std::time_t>(seconds_since_1970);
  std::tm local{};
  char text[32] = "";
  if (localtime_r(&time, &local) != nullptr) {
    std::strftime(text, sizeof(text), "%Y-%m-%d %H:%M", &local);
  }
  return text;
}

// Lists runs, for a directory that has no checkpoints of its own.
void ListRunsIn(const std::string& directory, const std::vector<RunEntry>& runs) {
  int width = 4;
  for (const RunEntry& run : runs) {
    width = std::max(width, static_cast<int>(PrintableName(run.name).size()));
  }
  const auto step = [](const std::optional<int64_t>& number) {
    return number ? std::to_string(*number) : "-";
  };
  std::printf("%-*s  %10s  %10s  %10s  %s\n", width, "run", "step", "loss", "checkpoint", "date");
  for (const RunEntry& run : runs) {
    const std::string loss = run.loss ? FixedPoint(*run.loss, 4) : "-";
    std::printf("%-*s  %10s  %10s  %10s  %s\n", width, PrintableName(run.name).c_str(),
                step(run.step ? run.step : run.checkpoint).c_str(), loss.c_str(),
                step(run.checkpoint).c_str(), DateOf(run.modified).c_str());
  }
  std::printf("%s of %s; `checkpoint ls` of one lists its checkpoints\n",
              Counted(std::ssize(runs), "run").c_str(), PrintableName(directory).c_str());
}

std::string RunsToJson(const std::vector<RunEntry>& runs) {
  std::vector<std::string> list;
  for (const RunEntry& run : runs) {
    list.push_back(JsonObject()
                       .Add("name", run.name)
                       .Add("path", run.path)
                       .Add("step", run.step)
                       .Add("loss", run.loss)
                       .Add("checkpoint", run.checkpoint)
                       .Add("age_s", SecondsSince1970() - run.modified)
                       .Text());
  }
  return JsonArray(list);
}

void List(const std::string& directory, bool json) {
  const std::vector<CheckpointEntry> entries = ListCheckpoints(directory);
  std::vector<RunEntry> runs;
  if (entries.empty()) runs = ListRuns(directory);
  const double now = SecondsSince1970();
  if (json) {
    std::vector<std::string> list;
    for (const CheckpointEntry& e : entries) {
      const auto known = [&](int ranks) {
        return e.world > 0 ? std::optional(ranks) : std::nullopt;
      };
      list.push_back(JsonObject()
                         .Add("step", e.step)
                         .Add("path", e.path)
                         .Add("complete", e.complete)
                         .Add("latest", e.latest)
                         .Add("best", e.best)
                         .Add("loss", e.loss)
                         .Add("reason", e.complete ? std::nullopt : std::optional(e.why))
                         .Add("world_size", known(e.world))
                         .Add("shard_size", known(e.shards))
                         .Add("bytes", e.bytes)
                         .Add("age_s", now - e.modified)
                         .Text());
    }
    JsonObject object;
    object.AddRaw("checkpoints", JsonArray(list));
    if (!runs.empty()) object.AddRaw("runs", RunsToJson(runs));
    std::printf("%s\n", object.Text().c_str());
    return;
  }
  if (!runs.empty()) return ListRunsIn(directory, runs);
  if (entries.empty()) {
    std::printf("no checkpoints in %s\n", PrintableName(directory).c_str());
    return;
  }
  std::printf("%12s  %-12s  %10s  %14s  %10s  %10s  %s\n", "step", "", "loss", "ranks", "size",
              "age", "path");
  for (const CheckpointEntry& e : entries) {
    const char* state = e.latest     ? e.best ? "latest, best" : "latest"
                        : e.best     ? "best"
                        : e.complete ? "complete"
                                     : "incomplete";
    std::printf("%12lld  %-12s  %10s  %14s  %10s  %10s  %s\n", static_cast<long long>(e.step),
                state, e.loss ? FixedPoint(*e.loss, 4).c_str() : "-",
                e.world == 0 ? "-" : RanksOf(e.world, e.shards).c_str(),
                HumanBytes(e.bytes).c_str(), HumanDuration(now - e.modified).c_str(),
                PrintableName(e.path).c_str());
    if (!e.complete) std::printf("%12s  %s\n", "", PrintableName(e.why).c_str());
  }
}

// Holds a checkpoint, unless nobody can. Waits for a run that is about to remove or replace it.
CheckpointHold HoldToVerify(const std::string& directory) {
  constexpr int kTries = 1000;
  for (int i = 0; i < kTries; ++i) {
    CheckpointHold hold(directory);
    if (hold.held() || hold.Moved()) return hold;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return CheckpointHold(directory);
}

// Prints what it finds. Returns what is wrong in one line; empty where nothing is.
std::string VerifyOne(const CheckpointHold& hold) {
  const std::string& directory = hold.path();
  VerifyReport report;
  try {
    Progress progress{"verified"};
    report = VerifyCheckpoint(hold, std::ref(progress));
  } catch (const CheckpointError& error) {  // The manifest's own mistakes.
    return error.what();
  }
  for (const Damage& damage : report.damages) {
    std::printf("%s\n", PrintableName(ToString(damage)).c_str());
  }
  if (!report.damages.empty()) {
    return directory + ": is damaged in " + Counted(std::ssize(report.damages), "place");
  }
  if (report.gone) {
    return directory + ": was moved or removed while it was read: verify it where it is now";
  }
  std::printf("%s: whole: %s, %s, %s%s\n", PrintableName(directory).c_str(),
              Counted(report.files, "file").c_str(), Counted(report.chunks, "chunk").c_str(),
              HumanBytes(report.bytes).c_str(),
              report.moved ? "; it was moved while it was read" : "");
  return "";
}

// Verifies a checkpoint, or all published ones of a run or a directory of checkpoints. For these it
// prints the newest, or throws with what is wrong with `latest`.
void Verify(const std::string& path) {
  std::string wrong;
  const auto add = [&](const std::string& line) {
    if (!line.empty()) wrong += (wrong.empty() ? "" : "\n") + line;
  };
  const std::string resolved = NamesOneCheckpoint(path) ? ResolveCheckpoint(path) : "";
  if (!resolved.empty()) {
    add(VerifyOne(HoldToVerify(resolved)));
  } else {
    int published = 0;
    for (const CheckpointEntry& entry : ListCheckpoints(path)) {
      if (!entry.published) continue;
      const CheckpointHold hold = HoldToVerify(entry.path);
      if (hold.Moved()) continue;  // Its run has removed it since, or set it aside.
      ++published;
      add(VerifyOne(hold));
    }
    std::string latest;
    try {
      latest = ResolveCheckpoint(path);
    } catch (const CheckpointError& error) {
      add(error.what());
    }
    if (published > 0 && !latest.empty()) {
      std::printf("latest: %s\n", PrintableName(latest).c_str());
    }
  }
  if (wrong.empty()) return;
  std::fflush(stdout);  // Before the error.
  throw CheckpointError(wrong);
}

struct ReshardFlags {
  std::string source, out;
  int world = 1;
  std::optional<int> shards;
};

void Reshard(const ReshardFlags& flags) {
  const int shards = flags.shards.value_or(flags.world);
  if (flags.world % shards != 0) {
    throw ConfigError("--shard-size: " + std::to_string(shards) + " does not divide --world-size " +
                      std::to_string(flags.world));
  }
  SavedCheckpoint saved;
  {
    Progress progress{"resharded"};
    saved = ReshardCheckpoint(HoldCheckpoint(flags.source), flags.world, shards, flags.out,
                              std::ref(progress));
  }
  std::printf("%s: ranks %s; %s\n", PrintableName(saved.path).c_str(),
              RanksOf(flags.world, shards).c_str(), HumanBytes(saved.bytes).c_str());
}

struct ExportFlags {
  std::string source, out, dtype, max_shard_size = "5GB", tokenizer, base, merge_into;
  bool latest = false, ema = false, adapters = false;
};

void WarnOf(const std::vector<std::string>& warnings) {
  for (const std::string& warning : warnings) {
    std::fprintf(stderr, "warning: %s\n", Printable(warning).c_str());
  }
}

// `base`: the directory of the adapted weights; "": the run's model.init_from.
void ExportAdaptersOf(const std::string& source, const std::string& out, const std::string& base,
                      const HfExportOptions& how) {
  AdaptersExported exported;
  {
    Progress progress{"exported"};
    exported =
        ExportAdapters(HoldCheckpoint(source), out,
                       {.dtype = how.dtype, .state = how.state, .base = base}, std::ref(progress));
  }
  WarnOf(exported.warnings);
  const auto& [weights, bytes] = exported.adapters;
  std::printf("%s: %s in %s, adapters of %s\n", PrintableName(out).c_str(),
              HumanBytes(bytes).c_str(), std::string(Name(how.dtype)).c_str(),
              Counted(weights, "weight").c_str());
}

void Export(const ExportFlags& flags) {
  HfExportOptions options;
  std::optional<DType> dtype;
  if (!flags.dtype.empty()) dtype = FloatNamed(flags.dtype);
  options.dtype = dtype.value_or(DType::kFloat32);
  const std::optional<int64_t> bytes = ParseBytes(flags.max_shard_size);
  if (!bytes) {
    throw ConfigError("--max-shard-size: `" + flags.max_shard_size +
                      "`: want bytes, such as 5GB or 500MB");
  }
  options.max_shard_bytes = *bytes;
  if (flags.ema) options.state = "ema";
  if (flags.adapters && !flags.merge_into.empty()) {
    throw ConfigError("--merge-into: merges adapters, and --adapters leaves them apart");
  }
  options.coded = !flags.base.empty();
  options.merge_into = flags.merge_into;
  const std::string source = CheckpointToRead(flags.source, flags.latest);
  if (flags.adapters) return ExportAdaptersOf(source, flags.out, "", options);
  CheckpointExported exported;
  {
    Progress progress{"exported"};
    exported = ExportCheckpoint(HoldCheckpoint(source), flags.out, flags.tokenizer, dtype, options,
                                std::ref(progress));
  }
  WarnOf(exported.warnings);
  std::printf("%s: %s in %s%s, %s\n", PrintableName(flags.out).c_str(),
              HumanBytes(exported.weights.bytes).c_str(), std::string(Name(exported.dtype)).c_str(),
              exported.as_it_came ? ", as they came" : "",
              Counted(exported.weights.files, "file").c_str());
  if (options.coded && exported.adapts) {
    options.dtype = dtype.value_or(DType::kFloat32);
    ExportAdaptersOf(source, flags.out + "/adapters", flags.out, options);
  }
  if (!flags.merge_into.empty()) CompareHeldOut(source, flags.out);
}

struct ImportFlags {
  std::string source, out;
  bool allow_nonfinite = false;
};

void Import(const ImportFlags& flags) {
  HfImported imported;
  {
    Progress progress{"imported"};
    imported = ImportHf(flags.source, flags.out, std::ref(progress), flags.allow_nonfinite);
  }
  if (!imported.ignored.empty()) {
    std::string list;
    for (const std::string& key : imported.ignored) list += (list.empty() ? "" : ", ") + key;
    std::printf("config.json: not looked at: %s\n", Printable(list).c_str());
  }
  for (const std::string& note : imported.notes) {
    std::printf("%s: %s\n", PrintableName(flags.source).c_str(), Printable(note).c_str());
  }
  std::printf("%s: %s\n", PrintableName(imported.saved.path).c_str(),
              HumanBytes(imported.saved.bytes).c_str());
}

constexpr char kOneCheckpoint[] = "A checkpoint, or a run directory: its latest one";

Command LsCommand() {
  const auto directory = std::make_shared<std::string>();
  const auto json = std::make_shared<bool>(false);
  Command command{
      "ls",
      "List a run's checkpoints, complete or not, with losses, the latest and the best of them; or "
      "the runs of a directory"};
  command.flags = {
      {"--checkpoint,directory", directory.get(),
       "A run directory, or a directory of checkpoints or of runs", kRequiredPath},
      {"--json", json.get(), "One JSON object"},
  };
  command.run = [=] { List(*directory, *json); };
  return command;
}

Command VerifyCommand() {
  const auto directory = std::make_shared<std::string>();
  Command command{"verify", "Read every byte of checkpoints and compare it with its checksum"};
  command.flags = {{"--checkpoint,directory", directory.get(),
                    "A checkpoint, or a run directory: all of its checkpoints", kRequiredPath}};
  command.run = [=] { Verify(*directory); };
  return command;
}

Command ReshardCommand() {
  constexpr FlagRange kWorlds = {1, 1 << 20};
  const auto flags = std::make_shared<ReshardFlags>();
  Command command{"reshard",
                  "Write a checkpoint as a job with another number of ranks would have saved it"};
  command.flags = {
      {"--checkpoint,directory", &flags->source, kOneCheckpoint, kRequiredPath},
      {"--world-size", &flags->world, "Ranks of that job",
       FlagRules{.range = kWorlds, .required = true}},
      {"--shard-size", &flags->shards, "Ranks that share one copy of the model. Default: all",
       FlagRules{.range = kWorlds}},
      {"--out", &flags->out, "The new checkpoint's directory; must not exist", kRequiredPath},
  };
  command.run = [=] { Reshard(*flags); };
  return command;
}

Command ExportCommand() {
  const auto flags = std::make_shared<ExportFlags>();
  Command command{"export", "Write a Hugging Face directory that transformers loads"};
  command.flags = {
      {"--checkpoint,directory", &flags->source,
       "A checkpoint, or a run directory: its latest one, or its best if it stopped early",
       kRequiredPath},
      {"--out", &flags->out, "The new directory; must not exist", kRequiredPath},
      LatestFlag(&flags->latest),
      {"--dtype", &flags->dtype,
       "dtype of the weights. Default: the one in the config.json of model.init_from or of the "
       "import; fp32 without one, and for adapters",
       FlagRules{.choices = kFloats}},
      {"--max-shard-size", &flags->max_shard_size, "Most bytes of a file", kShowsDefault},
      {"--ema", &flags->ema, "Export the averaged weights (train.ema)"},
      {"--adapters", &flags->adapters,
       "Export the adapters of a run with model.lora alone, as a directory that peft loads",
       FlagRules{.excludes = "--max-shard-size"}},
      {"--base", &flags->base,
       "Export the base of a run with model.lora.base: nf4 in bitsandbytes' four bits, with the "
       "adapters in the directory `adapters` beside it",
       FlagRules{.choices = {"nf4"}, .excludes = "--adapters"}},
      {"--merge-into", &flags->merge_into,
       "Merge the adapters of a run with model.lora.base into these weights, such as those that "
       "were encoded, and show the loss of the held-out sets before and after",
       FlagRules{.value = "DIR", .excludes = "--base"}},
      {"--tokenizer", &flags->tokenizer,
       "bytes, a tokenizer.json or a SentencePiece model, in place of the run's own",
       FlagRules{.value = "PATH", .excludes = "--adapters"}},
  };
  command.run = [=] { Export(*flags); };
  return command;
}

Command ImportCommand() {
  const auto flags = std::make_shared<ImportFlags>();
  Command command{"import", "Turn a Hugging Face directory into a checkpoint of step 0"};
  command.flags = {
      {"directory", &flags->source, "A directory with config.json and *.safetensors",
       kRequiredPath},
      {"--out", &flags->out, "The checkpoint's directory; must not exist", kRequiredPath},
      {"--allow-nonfinite", &flags->allow_nonfinite,
       "Take weights that are NaN or infinite, to look at them: no run can train from them"},
  };
  command.run = [=] { Import(*flags); };
  return command;
}

}  // namespace

Command CheckpointCommand() {
  Command command{"checkpoint", "List, verify, reshard, export and import what runs have saved"};
  command.commands = {LsCommand(), VerifyCommand(), ReshardCommand(), ExportCommand(),
                      ImportCommand()};
  return command;
}

}  // namespace fsdp
