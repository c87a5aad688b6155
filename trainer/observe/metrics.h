// metrics.jsonl: one JSON object a line, append-only, reads as one run however often it was
// resumed. docs/metrics.md lists every key; a test holds the two together. Rank 0 writes it.
#ifndef FSDP_TRAIN_TRAINER_OBSERVE_METRICS_H_
#define FSDP_TRAIN_TRAINER_OBSERVE_METRICS_H_

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "trainer/core/append_file.h"
#include "trainer/core/file_prefix.h"
#include "trainer/nn/eval_metric.h"
#include "trainer/observe/expert_loads.h"

namespace fsdp {

// Bytes, the largest over ranks since the last record.
struct MemoryPeaks {
  int64_t allocated = 0, active = 0, reserved = 0;
  int64_t host = 0;     // In host memory: on the CPU a part of those, else beside them.
  int64_t disk = 0;     // Spilled.
  int64_t retries = 0;  // Retries of a caching allocator since the start.
};

struct RunRecord {  // First, once per start.
  std::string name{};
  std::string version{}, git{};  // build_info.h.
  std::string started{};         // UTC, ISO 8601.
  std::string device{};
  int64_t world_size = 1;
  int64_t threads = 1;  // CPU compute threads of a rank.
  uint64_t seed = 0;
  int64_t parameters = 0;  // Elements of the whole model.
  int64_t steps = 0;       // train.steps.
  // The share of units that the device updates; left out of the file without cpu_offload.optimizer.
  std::optional<double> optimizer_share{};
  // Collectives that send nothing: "all_gather", "reduce". Left out of the file where there are
  // none.
  std::vector<std::string> fake{};
};
struct ResumeRecord {
  int64_t step = 0;
  std::string from{};  // Directory of the checkpoint.
  // Changes of the data since the checkpoint, a sentence each; left out of the file where empty.
  std::vector<std::string> data_changed{};
  // Keys whose values are not the checkpoint's, "key: before -> now"; left out where empty.
  std::vector<std::string> recipe_changed{};
  // How the records before this one are not those of the checkpoint; left out where empty.
  std::string records_changed{};
};
// Seconds of step_time_s, rank 0's, from events that its compute stream passes: what overlaps with
// compute takes none. Evaluations and checkpoints lie between steps: PauseRecord.
struct TimeParts {
  double data = 0;  // Compute waiting for a micro-batch.
  double forward = 0, recompute = 0, backward = 0;
  double optimizer = 0;      // Norm, clipping and update.
  double communication = 0;  // Compute waiting for a gather or a reduction.
  double offload = 0;        // Compute waiting for what goes to host memory and comes from there.
  double other = 0;          // Between steps: compute waiting for the host.

  TimeParts& operator+=(const TimeParts& more);
  TimeParts operator/(double steps) const;
};
struct TimePart {
  std::string_view name;  // In the file: "time.data".
  double TimeParts::*seconds;
};
inline constexpr std::array<TimePart, 8> kTimeParts = {{
    {"data", &TimeParts::data},
    {"forward", &TimeParts::forward},
    {"recompute", &TimeParts::recompute},
    {"backward", &TimeParts::backward},
    {"optimizer", &TimeParts::optimizer},
    {"communication", &TimeParts::communication},
    {"offload", &TimeParts::offload},
    {"other", &TimeParts::other},
}};
static_assert(sizeof(TimeParts) == kTimeParts.size() * sizeof(double));
// Bytes of rank 0 that other ranks take; `network`: that it puts into sockets.
struct CommunicationBytes {
  int64_t all_gather = 0, reduce_scatter = 0, all_reduce = 0, all_to_all = 0, network = 0;
};
struct StepRecord {
  int64_t step = 0;      // From 1.
  double loss = 0;       // That step's alone: mean over its targets, nats.
  double loss_mean = 0;  // Mean over the targets of all steps since the last record.
  double grad_norm = 0;  // Before clipping.
  double lr = 0;
  int64_t tokens = 0;   // Targets since step 1.
  int64_t samples = 0;  // Samples since step 1.
  double step_time_s = 0;
  double tokens_per_s = 0;   // That the model read, padding excepted; without a text, targets.
  double targets_per_s = 0;  // The loss's.
  double samples_per_s = 0;
  double tflops_per_device = 0;
  std::optional<double> mfu{};  // 0 to 1; absent where the device's peak is unknown.
  MemoryPeaks memory{};
  TimeParts time{};                    // Mean of the steps since the last record, as step_time_s.
  CommunicationBytes communication{};  // That step's alone.
  std::optional<int64_t> table_rounds{};  // Rounds of exchanges of rows; left out without tables.
  std::optional<double> loss_scale{};     // That step's; left out where none is in use, as this:
  std::optional<ExpertLoads> experts{};
};
// People hear of samples where a sample has one target: then that is no token.
inline bool IsOfSamples(const StepRecord& record) {
  return record.samples > 0 && record.samples == record.tokens;
}
struct EvalRecord {
  int64_t step = 0;
  double loss = 0;
  std::string name{};  // The set's, where there are several; else empty and not written.
  const EvalMetric* metric = &kPerplexity;  // The number beside the loss. Null: nothing.
  double mean = 0;                          // The metric's second sum, over targets.

  // Empty without a metric, or where it has none. Null in the file where it is not finite.
  std::optional<double> Value() const;
};
struct SampleRecord {
  int64_t step = 0;
  std::string prompt{};
  std::string text{};  // The model's continuation; any bytes. In the file U+FFFD for no UTF-8.
};
struct CheckpointRecord {
  int64_t step = 0;
  std::string path{};
  double seconds = 0;
  int64_t bytes = 0;
};
// Kind "time": seconds that training stood still, for an evaluation or for a checkpoint; one that
// is written in the background takes more, which its own record says.
struct PauseRecord {
  int64_t step = 0;
  double evaluation = 0, sampling = 0, checkpoint = 0;
};
struct SkippedRecord {  // The optimizer left the parameters alone.
  int64_t step = 0;
  std::string reason{};
  std::optional<double> loss_scale{};  // That step's; left out where none is in use.
};
struct SpikeRecord {
  int64_t step = 0;
  std::string what{};       // "loss" or "grad_norm".
  double value = 0, z = 0;  // z: standard deviations above the steps before it.
};
struct EndRecord {
  std::string reason{};
  std::string early_stopping{};  // Why no further step was worth it. Empty: left out.
};

using MetricsRecord =
    std::variant<RunRecord, ResumeRecord, StepRecord, EvalRecord, SampleRecord, CheckpointRecord,
                 PauseRecord, SkippedRecord, SpikeRecord, ExpertsRecord, EndRecord>;

std::string ToJson(const MetricsRecord& record);  // Without the line's end.

// Lines that a resume found in the old file.
struct MetricsKept {
  int64_t kept = 0;
  int64_t dropped = 0;  // Past the resumed step, or the end of the run that is now going on.
  int64_t damaged = 0;  // No record: a half-written last line, or what a crash left. Dropped.
  int64_t zeros = 0;    // Bytes of 0, which a power cut leaves in place of records. Dropped.
  std::string where{};  // Place of the first of these two: "line 7".
};
// "3 damaged lines and 4096 bytes of zeros, the first at line 7"; empty where nothing was damaged.
std::string DescribeDamage(const MetricsKept& kept);

// Throws CheckpointError (exit 5) with path and reason for all that the disk refuses.
class MetricsWriter {
 public:
  // A new file. Throws CheckpointError if there is one.
  static MetricsWriter Create(const std::string& path);

  // Drops what is past `step` and goes on behind it; the file is replaced by rename, so a crash
  // meanwhile loses nothing. Without a file it makes one (a run resumed from another's checkpoint).
  static MetricsWriter Resume(const std::string& path, int64_t step, MetricsKept* kept = nullptr);

  // Handed to the kernel whole, or not at all: a line cut off by a full disk is taken back.
  void Write(const MetricsRecord& record);

  // Blocks until all lines are on the disk: before a checkpoint that follows them counts. Returns
  // length and hash of the file up to here, of the lines that a resume has kept and all lines
  // since. Later writes do not change this prefix. Lines that others add meanwhile are not in it.
  FilePrefix Sync();

 private:
  MetricsWriter(AppendFile file, PrefixHash hash)
      : file_(std::move(file)), hash_(std::move(hash)) {}

  AppendFile file_;
  PrefixHash hash_;  // Hash of all that is in it.
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OBSERVE_METRICS_H_
