#include "trainer/observe/report/run_history.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <stdexcept>
#include <system_error>

#include "trainer/core/atomic_file.h"
#include "trainer/core/errors.h"
#include "trainer/core/json_reader.h"
#include "trainer/core/json_tree.h"
#include "trainer/core/line_buffer.h"
#include "trainer/core/read_file.h"

namespace fsdp {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxLine = 1 << 20;
constexpr size_t kMaxText = 8 << 10;
constexpr size_t kStarts = 100, kIncidents = 100, kSamples = 8, kEvals = 32;
constexpr int kMaxDepth = 32;

// A record that is not what it says it is.
struct Broken {};

// A step, or another count: what a double holds exactly.
int64_t Count(const JsonValue& record, const char* key) {
  const auto at = record.Find(key);
  if (!at || !at->IsInteger(0, int64_t{1} << 53)) throw Broken();
  return at->Integer();
}

// NaN where it is null or absent.
double Number(const JsonValue& record, const char* key) {
  const auto at = record.Find(key);
  if (!at) return std::numeric_limits<double>::quiet_NaN();
  if (!at->IsNumber()) throw Broken();
  return at->Number();
}

std::string Text(const JsonValue& record, const char* key) {
  if (!record.Has(key)) return "";
  const JsonValue at = record.At(key);
  if (!at.IsText()) throw Broken();
  return at.Text();
}

std::vector<std::string> Texts(const JsonValue& record, const char* key) {
  std::vector<std::string> texts;
  if (!record.Has(key)) return texts;
  const JsonValue at = record.At(key);
  if (!at.IsList()) throw Broken();
  for (const JsonValue& text : at.Elements()) {
    if (!text.IsText()) throw Broken();
    texts.push_back(text.Text());
  }
  return texts;
}

// A member that is an object where it is there.
std::optional<JsonValue> Part(const JsonValue& record, const char* key) {
  auto part = record.Find(key);
  if (part && !part->IsObject()) throw Broken();
  return part;
}

void Add(Series& series, double step, double value) {
  if (std::abs(value) < 1e300) series.Add(step, value);  // And no NaN.
}

void AddIncident(RunHistory& run, int64_t step, std::string what) {
  if (++run.num_incidents <= static_cast<int64_t>(kIncidents)) {
    run.incidents.push_back({step, std::move(what)});
  }
}

// Seconds that a part of a run may have taken.
bool IsTime(double seconds) { return seconds >= 0 && seconds < 1e12; }

void AddSeconds(RunHistory& run, std::string_view part, double seconds) {
  const auto at = std::find(kRunParts.begin(), kRunParts.end(), part) - kRunParts.begin();
  if (IsTime(seconds)) run.seconds[static_cast<size_t>(at)] += seconds;
}

void AddStart(RunHistory& run, const JsonValue& record) {
  const int64_t steps = Count(record, "steps"), parameters = Count(record, "parameters");
  RunHistory::Start start{Text(record, "started"),     Text(record, "version"),
                          Text(record, "git"),         Text(record, "device"),
                          Count(record, "world_size"), Count(record, "threads")};
  run.name = Text(record, "name");
  run.steps = steps;
  run.parameters = parameters;
  run.end.reset();
  ++run.num_starts;
  if (run.starts.size() == kStarts) run.starts.erase(run.starts.begin());
  run.starts.push_back(std::move(start));
}

double LastY(const Series& series) { return series.empty() ? 0 : series.last().y; }

void AddStep(RunHistory& run, const JsonValue& record) {
  const int64_t step = Count(record, "step");
  const auto x = static_cast<double>(step);
  const double loss = Number(record, "loss"), norm = Number(record, "grad_norm");
  const double rates[] = {Number(record, "lr"),           Number(record, "step_time_s"),
                          Number(record, "tokens_per_s"), Number(record, "tflops_per_device"),
                          Number(record, "mfu"),          Number(record, "tokens")};
  const auto memory = Part(record, "memory"), time = Part(record, "time");
  const auto peak = [&](const char* key) {
    return memory ? Number(*memory, key) : std::numeric_limits<double>::quiet_NaN();
  };
  const double peaks[] = {peak("allocated_peak"), peak("active_peak"), peak("reserved_peak")};
  double parts[kStepParts] = {};
  for (size_t i = 0; i < kStepParts && time; ++i) {
    parts[i] = Number(*time, std::string(kRunParts[i]).c_str());
  }
  const auto samples = record.Find("samples");

  // The record stands for all steps since the one before it.
  const auto steps = static_cast<double>(std::max<int64_t>(1, step - run.last_step));
  run.last_step = step;
  // Records of earlier builds have their last step's loss alone.
  Add(run.loss, x, record.Find("loss_mean") ? Number(record, "loss_mean") : loss);
  Add(run.grad_norm, x, norm);
  Add(run.lr, x, rates[0]);
  Add(run.step_time, x, rates[1]);
  Add(run.tokens_per_s, x, rates[2]);
  Add(run.tflops, x, rates[3]);
  Add(run.mfu, x, rates[4]);
  if (std::isfinite(rates[5])) run.tokens = rates[5];
  run.of_samples = samples && samples->IsNumber() && samples->Number() == rates[5];
  Add(run.tokens_so_far, x, std::max(run.tokens, LastY(run.tokens_so_far)));
  Add(run.allocated, x, peaks[0]);
  Add(run.active, x, peaks[1]);
  Add(run.reserved, x, peaks[2]);
  if (IsTime(rates[1] * steps) && rates[2] >= 0 && rates[2] < 1e15) {
    run.step_seconds += rates[1] * steps;
    run.step_tokens += rates[1] * steps * rates[2];
  }
  if (const auto experts = Part(record, "experts")) {
    Add(run.max_load, x, Number(*experts, "max_load"));
    Add(run.expert_entropy, x, Number(*experts, "entropy"));
  }
  Add(run.seconds_so_far, x, run.WholeTime());
  run.has_parts |= time.has_value();
  for (size_t i = 0; i < kStepParts; ++i) AddSeconds(run, kRunParts[i], parts[i] * steps);
  if (!std::isfinite(loss)) AddIncident(run, step, "loss not finite");
  if (!std::isfinite(norm)) AddIncident(run, step, "gradient norm not finite");
}

void AddEval(RunHistory& run, const JsonValue& record, size_t buckets) {
  const int64_t step = Count(record, "step");
  const std::string name = Text(record, "name");
  const double loss = Number(record, "loss");
  auto at = run.evals.find(name);
  if (at == run.evals.end() && run.evals.size() < kEvals) {
    at = run.evals.emplace(name, Series(buckets)).first;
  }
  if (at != run.evals.end()) Add(at->second, static_cast<double>(step), loss);
}

void AddLoads(RunHistory& run, const JsonValue& record) {
  ExpertsRecord loads{.step = Count(record, "step")};
  const auto layers = record.Find("loads");
  if (!layers || !layers->IsList()) throw Broken();
  for (const JsonValue& layer : layers->Elements()) {
    if (!layer.IsList()) throw Broken();
    std::vector<int64_t>& experts = loads.loads.emplace_back();
    for (const JsonValue& load : layer.Elements()) {
      if (!load.IsInteger()) throw Broken();
      experts.push_back(load.Integer());
    }
  }
  run.loads = std::move(loads);
}

void AddSpike(RunHistory& run, const JsonValue& record) {
  char how[80];
  std::snprintf(how, sizeof(how), " %.4g is %.3g deviations above its last steps",
                Number(record, "value"), Number(record, "z"));
  AddIncident(run, Count(record, "step"), Text(record, "what").substr(0, kMaxText) + how);
}

void AddSample(RunHistory& run, const JsonValue& record) {
  RunHistory::Sample sample{Count(record, "step"), Text(record, "prompt").substr(0, kMaxText),
                            Text(record, "text").substr(0, kMaxText)};
  ++run.num_samples;
  if (run.samples.size() == kSamples) run.samples.erase(run.samples.begin() + 1);
  run.samples.push_back(std::move(sample));
}

void AddRecord(RunHistory& run, std::string_view line, size_t buckets) {
  const std::optional<JsonValue> parsed = TryParseJson(line);
  if (!parsed || !parsed->IsObject()) throw Broken();
  const JsonValue& record = *parsed;
  const std::string kind = Text(record, "kind");
  if (kind == "run") {
    AddStart(run, record);
  } else if (kind == "step") {
    AddStep(run, record);
  } else if (kind == "eval") {
    AddEval(run, record, buckets);
  } else if (kind == "sample") {
    AddSample(run, record);
  } else if (kind == "resume") {
    const int64_t step = Count(record, "step");
    run.resumes.Add(static_cast<double>(step), 0);
    if (!run.starts.empty()) {
      run.starts.back().resumed_from = Text(record, "from");
      run.starts.back().resumed_step = step;
      run.starts.back().recipe_changed = Texts(record, "recipe_changed");
    }
  } else if (kind == "checkpoint") {
    const int64_t step = Count(record, "step");
    run.checkpoints.Add(static_cast<double>(step), 0);
  } else if (kind == "time") {
    const double evaluation = Number(record, "evaluation"), sampling = Number(record, "sampling"),
                 checkpoint = Number(record, "checkpoint");
    AddSeconds(run, "evaluation", evaluation);
    AddSeconds(run, "sampling", sampling);
    AddSeconds(run, "checkpoint", checkpoint);
  } else if (kind == "skipped") {
    AddIncident(run, Count(record, "step"), "skipped: " + Text(record, "reason"));
  } else if (kind == "experts") {
    AddLoads(run, record);
  } else if (kind == "spike") {
    AddSpike(run, record);
  } else if (kind == "end") {
    run.end = Text(record, "reason");
  } else if (kind.empty()) {
    throw Broken();
  }  // Else of a later version.
  ++run.records;
}

void ReadMetrics(const std::string& path, RunHistory& run, size_t buckets) {
  FileBlocks file(path);
  LineBuffer lines(kMaxLine);
  bool in_pieces = false, at_end = false;  // in_pieces: a line too long to be a record.
  const auto emit = [&](std::string_view line, bool ended) {
    if (!ended) {
      run.unfinished = at_end;
      in_pieces = true;
      return;
    }
    try {
      if (std::exchange(in_pieces, false)) throw Broken();
      AddRecord(run, line, buckets);
    } catch (const Broken&) {
      ++run.broken;
    }
  };
  for (std::string_view block = file.Next(); !block.empty(); block = file.Next()) {
    lines.Append(block, emit);
  }
  at_end = true;
  lines.Flush(emit);
}

std::string Below(const std::string& prefix, const std::string& key) {
  return prefix.empty() ? key : prefix + "." + key;
}

void Flatten(const YAML::Node& node, const std::string& key, int depth, FlatText& out) {
  if (depth > kMaxDepth) throw std::runtime_error(key + " is nested too deeply");
  const auto is_scalar = [](const YAML::Node& n) { return n.IsScalar() || n.IsNull(); };
  const auto scalar = [](const YAML::Node& n) { return n.IsNull() ? "null" : n.Scalar(); };
  if (node.IsMap() && node.size() > 0) {
    for (const auto& member : node) {
      Flatten(member.second, Below(key, member.first.Scalar()), depth + 1, out);
    }
  } else if (node.IsSequence() && !std::all_of(node.begin(), node.end(), is_scalar)) {
    for (size_t i = 0; i < node.size(); ++i) {
      Flatten(node[i], key + "[" + std::to_string(i) + "]", depth + 1, out);
    }
  } else if (node.IsSequence()) {
    std::string list;
    for (const auto& item : node) list += (list.empty() ? "" : ", ") + scalar(item);
    out.emplace_back(key, "[" + list + "]");
  } else {
    out.emplace_back(key, node.IsMap() ? "{}" : scalar(node));
  }
}

void Flatten(const JsonTree& node, const std::string& key, int depth, FlatText& out) {
  if (depth > kMaxDepth) throw std::runtime_error(key + " is nested too deeply");
  if (node.IsObject()) {
    for (const auto& [name, value] : node.Members()) {
      Flatten(value, Below(key, name), depth + 1, out);
    }
  } else if (node.IsList() && key != "command_line") {
    for (size_t i = 0; i < node.size(); ++i) {
      Flatten(node[i], key + "[" + std::to_string(i) + "]", depth + 1, out);
    }
  } else if (node.IsList()) {
    std::string words;
    for (const JsonTree& word : node.Elements()) {
      words += (words.empty() ? "" : " ") + (word.IsText() ? word.Text() : "?");
    }
    out.emplace_back(key, words);
  } else {
    out.emplace_back(key, node.IsText() ? node.Text() : node.DumpScalar());
  }
}

// The file flattened, or a note.
template <typename Parse>
void ReadOptional(const RunHistory& run, const std::string& name, FlatText& out,
                  std::vector<std::string>& notes, Parse parse) {
  try {
    out = parse(ReadWholeFile(run.directory + "/" + name));
  } catch (const std::exception& error) {
    notes.push_back(name + " could not be read: " + error.what());
  }
}

// The directories that the user may have meant: run directories right below.
std::string RunsBelow(const std::string& directory) {
  std::vector<std::string> found;
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(directory, none)) {
    if (fs::exists(entry.path() / "metrics.jsonl", none)) found.push_back(entry.path());
  }
  std::sort(found.begin(), found.end());
  if (found.empty()) return "";
  std::string text = "; it holds " + std::to_string(found.size()) +
                     (found.size() == 1 ? " run directory: " : " run directories: ");
  for (size_t i = 0; i < std::min<size_t>(3, found.size()); ++i) {
    text += (i == 0 ? "" : ", ") + found[i];
  }
  return text + (found.size() > 3 ? ", ..." : "");
}

}  // namespace

RunHistory::RunHistory(size_t buckets)
    : loss(buckets),
      grad_norm(buckets),
      lr(buckets),
      step_time(buckets),
      tokens_per_s(buckets),
      tflops(buckets),
      mfu(buckets),
      allocated(buckets),
      active(buckets),
      reserved(buckets),
      max_load(buckets),
      expert_entropy(buckets),
      tokens_so_far(buckets),
      seconds_so_far(buckets),
      checkpoints(64),
      resumes(64) {}

double RunHistory::WholeTime() const {
  double whole = step_seconds;
  for (size_t i = kStepParts; i < kRunParts.size(); ++i) whole += seconds[i];
  return whole;
}

FlatText FlattenYaml(const std::string& yaml) {
  FlatText out;
  Flatten(YAML::Load(yaml), "", 0, out);
  return out;
}

FlatText FlattenJson(const std::string& text) {
  std::string why;
  const std::optional<JsonTree> tree = JsonTree::Parse(text, 100, &why);
  if (!tree) throw std::runtime_error(why);
  FlatText out;
  Flatten(*tree, "", 0, out);
  return out;
}

RunHistory ReadRun(const std::string& directory, size_t buckets) {
  std::error_code error;
  if (!fs::is_directory(directory, error)) {
    throw CheckpointError(directory + ": " + (fs::exists(directory, error) ? "not a" : "no such") +
                          " directory; give a run directory, such as runs/<run.name>");
  }
  RunHistory run(buckets);
  run.directory = directory;
  const std::string metrics = directory + "/metrics.jsonl";
  if (!fs::exists(metrics, error)) {
    throw CheckpointError(directory +
                          ": holds no metrics.jsonl, so no run has begun here; give a "
                          "run directory, such as runs/<run.name>" +
                          RunsBelow(directory));
  }
  ReadMetrics(metrics, run, buckets);
  if (run.name.empty()) run.name = fs::path(directory + "/").parent_path().filename();
  ReadOptional(run, "recipe.yaml", run.recipe, run.notes, FlattenYaml);
  ReadOptional(run, "provenance.json", run.provenance, run.notes, FlattenJson);
  run.traced = ReadTraces(directory + "/traces");
  if (run.traced) {
    run.notes.insert(run.notes.end(), run.traced->notes.begin(), run.traced->notes.end());
    if (run.traced->files.empty()) run.traced.reset();
  }
  return run;
}

}  // namespace fsdp
