#include "trainer/observe/metrics.h"

#include <unistd.h>

#include <functional>
#include <string_view>
#include <utility>

#include "trainer/core/atomic_file.h"
#include "trainer/core/errors.h"
#include "trainer/core/json.h"
#include "trainer/core/json_reader.h"
#include "trainer/core/read_file.h"
#include "trainer/observe/record_lines.h"

namespace fsdp {
namespace {

JsonObject Object(const RunRecord& r) {
  JsonObject object = JsonObject()
                          .Add("kind", "run")
                          .Add("name", r.name)
                          .Add("version", r.version)
                          .Add("git", r.git)
                          .Add("started", r.started)
                          .Add("device", r.device)
                          .Add("world_size", r.world_size)
                          .Add("threads", r.threads)
                          .Add("seed", r.seed)
                          .Add("parameters", r.parameters)
                          .Add("steps", r.steps);
  if (r.optimizer_share) object.Add("optimizer_share", *r.optimizer_share);
  if (r.fake.empty()) return object;
  std::vector<std::string> fake;
  for (const std::string& name : r.fake) fake.push_back(JsonString(name));
  object.AddRaw("fake", JsonArray(fake));
  return object;
}

JsonObject Object(const ResumeRecord& r) {
  JsonObject object;
  object.Add("kind", "resume").Add("step", r.step).Add("from", r.from);
  const auto add = [&](const char* key, const std::vector<std::string>& changes) {
    if (changes.empty()) return;
    std::vector<std::string> texts;
    for (const std::string& change : changes) texts.push_back(JsonString(change));
    object.AddRaw(key, JsonArray(texts));
  };
  add("data_changed", r.data_changed);
  add("recipe_changed", r.recipe_changed);
  if (!r.records_changed.empty()) object.Add("records_changed", r.records_changed);
  return object;
}

JsonObject Object(const StepRecord& r) {
  const JsonObject memory = JsonObject()
                                .Add("allocated_peak", r.memory.allocated)
                                .Add("active_peak", r.memory.active)
                                .Add("reserved_peak", r.memory.reserved)
                                .Add("host", r.memory.host)
                                .Add("disk", r.memory.disk)
                                .Add("alloc_retries", r.memory.retries);
  JsonObject time;
  for (const auto& [name, seconds] : kTimeParts) time.Add(name, r.time.*seconds);
  const JsonObject communication = JsonObject()
                                       .Add("all_gather_bytes", r.communication.all_gather)
                                       .Add("reduce_scatter_bytes", r.communication.reduce_scatter)
                                       .Add("all_reduce_bytes", r.communication.all_reduce)
                                       .Add("all_to_all_bytes", r.communication.all_to_all)
                                       .Add("network_bytes", r.communication.network);
  JsonObject object = JsonObject()
                          .Add("kind", "step")
                          .Add("step", r.step)
                          .Add("loss", r.loss)
                          .Add("loss_mean", r.loss_mean)
                          .Add("grad_norm", r.grad_norm)
                          .Add("lr", r.lr)
                          .Add("tokens", r.tokens)
                          .Add("samples", r.samples)
                          .Add("step_time_s", r.step_time_s)
                          .Add("tokens_per_s", r.tokens_per_s)
                          .Add("targets_per_s", r.targets_per_s)
                          .Add("samples_per_s", r.samples_per_s)
                          .Add("tflops_per_device", r.tflops_per_device)
                          .Add("mfu", r.mfu)
                          .Add("memory", memory)
                          .Add("time", time)
                          .Add("communication", communication);
  if (r.table_rounds) object.Add("table_rounds", *r.table_rounds);
  if (r.loss_scale) object.Add("loss_scale", r.loss_scale);
  if (r.experts) {
    object.Add("experts", JsonObject()
                              .Add("rows", r.experts->rows)
                              .Add("max_load", r.experts->max_load)
                              .Add("unused", r.experts->unused)
                              .Add("entropy", r.experts->entropy)
                              .Add("aux_loss", r.experts->aux_loss)
                              .Add("z_loss", r.experts->z_loss));
  }
  return object;
}

JsonObject Object(const ExpertsRecord& r) {
  std::vector<std::string> layers;
  for (const std::vector<int64_t>& loads : r.loads) {
    std::vector<std::string> numbers;
    for (const int64_t load : loads) numbers.push_back(std::to_string(load));
    layers.push_back(JsonArray(numbers));
  }
  JsonObject object;
  object.Add("kind", "experts").Add("step", r.step).AddRaw("loads", JsonArray(layers));
  return object;
}

JsonObject Object(const EvalRecord& r) {
  JsonObject object = JsonObject().Add("kind", "eval").Add("step", r.step);
  if (!r.name.empty()) object.Add("name", r.name);
  object.Add("loss", r.loss);
  if (r.metric != nullptr) object.Add(r.metric->name, r.Value());
  return object;
}

JsonObject Object(const SampleRecord& r) {
  return JsonObject()
      .Add("kind", "sample")
      .Add("step", r.step)
      .Add("prompt", r.prompt)
      .Add("text", r.text);
}

JsonObject Object(const CheckpointRecord& r) {
  return JsonObject()
      .Add("kind", "checkpoint")
      .Add("step", r.step)
      .Add("path", r.path)
      .Add("seconds", r.seconds)
      .Add("bytes", r.bytes);
}

JsonObject Object(const PauseRecord& r) {
  return JsonObject()
      .Add("kind", "time")
      .Add("step", r.step)
      .Add("evaluation", r.evaluation)
      .Add("sampling", r.sampling)
      .Add("checkpoint", r.checkpoint);
}

JsonObject Object(const SkippedRecord& r) {
  JsonObject object =
      JsonObject().Add("kind", "skipped").Add("step", r.step).Add("reason", r.reason);
  if (r.loss_scale) object.Add("loss_scale", r.loss_scale);
  return object;
}

JsonObject Object(const SpikeRecord& r) {
  return JsonObject()
      .Add("kind", "spike")
      .Add("step", r.step)
      .Add("what", r.what)
      .Add("value", r.value)
      .Add("z", r.z);
}

JsonObject Object(const EndRecord& r) {
  JsonObject object = JsonObject().Add("kind", "end").Add("reason", r.reason);
  if (!r.early_stopping.empty()) object.Add("early_stopping", r.early_stopping);
  return object;
}

// Calls `keep` with the lines that a run going on after `step` keeps. But for checkpoints, which
// are recorded when they count, steps never fall from one line to the next: the first line past
// `step` ends them, with all starts recorded behind it.
//
// A power cut may leave a block of zeros where lines were: what is whole before and behind it is
// kept.
MetricsKept Keep(const std::string& path, int64_t step,
                 const std::function<void(std::string_view line)>& keep) {
  MetricsKept count;
  bool past = false;
  ReadRecordLines(path, [&](const RecordLine& line) {
    const auto damage = [&](int64_t& what, int64_t amount) {
      if (count.where.empty()) count.where = "line " + std::to_string(line.number);
      what += amount;
    };
    if (line.zeros > 0) return damage(count.zeros, line.zeros);
    const bool may_be = line.ended && std::ssize(line.text) <= kLongestRecord;
    const auto record = may_be ? TryParseJson(line.text) : std::nullopt;
    const auto kind = record ? record->Find("kind") : std::nullopt;
    const bool whole = kind && kind->IsText();
    const auto at = whole ? record->Find("step") : std::nullopt;
    const bool has_step = at && at->IsInteger();
    const bool is_past = has_step && at->Integer() > step;
    const bool late = has_step && !is_past && kind->IsText("checkpoint");
    past |= is_past;
    if (!whole) {
      damage(count.damaged, 1);
    } else if ((past && !late) || kind->IsText("end")) {
      ++count.dropped;
    } else {
      ++count.kept;
      keep(line.text);
    }
  });
  return count;
}

}  // namespace

std::optional<double> EvalRecord::Value() const {
  return metric != nullptr ? metric->value(loss, mean) : std::nullopt;
}

TimeParts& TimeParts::operator+=(const TimeParts& more) {
  for (const auto& [name, seconds] : kTimeParts) this->*seconds += more.*seconds;
  return *this;
}

TimeParts TimeParts::operator/(double steps) const {
  TimeParts mean;
  for (const auto& [name, seconds] : kTimeParts) mean.*seconds = this->*seconds / steps;
  return mean;
}

std::string ToJson(const MetricsRecord& record) {
  return std::visit([](const auto& r) { return Object(r).Text(); }, record);
}

std::string DescribeDamage(const MetricsKept& kept) {
  if (kept.damaged + kept.zeros == 0) return "";
  std::string text;
  if (kept.damaged > 0) {
    text = std::to_string(kept.damaged) + (kept.damaged == 1 ? " damaged line" : " damaged lines");
  }
  if (kept.zeros > 0) {
    text += (text.empty() ? "" : " and ") + std::to_string(kept.zeros) + " bytes of zeros";
  }
  return text + ", the first at " + kept.where;
}

MetricsWriter MetricsWriter::Create(const std::string& path) {
  auto file = AppendFile::Create(path);
  if (!file) {
    throw CheckpointError(path +
                          ": exists: this directory holds a run; resume it (checkpoint.resume), or "
                          "give run.name or run.dir another value");
  }
  return MetricsWriter(std::move(*file), PrefixHash());
}

MetricsWriter MetricsWriter::Resume(const std::string& path, int64_t step, MetricsKept* kept) {
  MetricsKept count;
  if (::access(path.c_str(), F_OK) == 0) {
    count = Keep(path, step, [](std::string_view) {});
    if (count.dropped + count.damaged + count.zeros > 0) {
      AtomicFile file(path);
      std::string lines;
      Keep(path, step, [&](std::string_view line) {
        lines.append(line).append("\n");
        if (lines.size() > size_t{1} << 20) file.Append(std::exchange(lines, ""));
      });
      file.Append(lines);
      file.Commit();
    }
  }
  AppendFile file = AppendFile::Open(path);
  if (kept != nullptr) *kept = count;
  PrefixHash hash = HashOfFirst(path, kAnySize);
  return MetricsWriter(std::move(file), std::move(hash));
}

// Where the disk has kept half a line after all, Resume() drops it.
void MetricsWriter::Write(const MetricsRecord& record) {
  const std::string line = ToJson(record) + "\n";
  file_.Write(line);
  hash_.Update(line);
}

FilePrefix MetricsWriter::Sync() {
  file_.Sync();
  return hash_.Taken();
}

}  // namespace fsdp
