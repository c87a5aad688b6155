// The files and lines that a run leaves to read: rank 0's metrics, TensorBoard, provenance and
// console, and the log of every rank.
// Tests: tests/trainer/loop/train_test.cc
#ifndef FSDP_TRAIN_TRAINER_LOOP_RECORDER_H_
#define FSDP_TRAIN_TRAINER_LOOP_RECORDER_H_

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "trainer/core/file_prefix.h"
#include "trainer/fsdp/executor_memory.h"
#include "trainer/fsdp/executor_step.h"
#include "trainer/loop/job.h"
#include "trainer/loop/run_directory.h"
#include "trainer/loop/run_messages.h"
#include "trainer/observe/chrome_trace.h"
#include "trainer/observe/console.h"
#include "trainer/observe/log.h"
#include "trainer/observe/metrics.h"
#include "trainer/observe/provenance.h"
#include "trainer/observe/spikes.h"
#include "trainer/observe/tensorboard.h"
#include "trainer/observe/throughput.h"
#include "trainer/runtime/caching_allocator.h"

namespace fsdp {

struct AgreedStop;
struct Recipe;
struct RunData;
struct ValidRecipe;

// Facts that are said of a run when it begins, beside its recipe.
struct RunFacts {
  int threads = 1;
  uint64_t seed = 0;  // The seed that the run began with; `held_out` is from its begin, too.
  const ValidRecipe* held_out = nullptr;
  int64_t parameters = 0;     // Elements of the whole model.
  int64_t trained = 0;        // Elements that are not frozen, adapters included.
  int64_t planned_bytes = 0;  // Bytes of device memory of a rank.
  int64_t host_bytes = 0;     // Bytes of host memory of a rank.
  int64_t disk_bytes = 0;     // Bytes that a rank spills.
  const RunData* data = nullptr;
  std::string attention = {};            // Whose kernels, where there is a choice.
  std::vector<std::string> chosen = {};  // How choices came about. Empty lines are not said.
  std::optional<Provenance::GpuMemory> gpu_memory = std::nullopt;
};

// Every rank has one. Ranks but the first keep a log; whatever else they write or say goes nowhere.
// Throws CheckpointError for all that the disk refuses.
class Recorder {
 public:
  Recorder(const Recipe& recipe, const Job& job);  // References are kept.

  void OpenLog(const RunDirectory& directory);  // A reference is kept.
  // Rank 0 opens the run's files at `step`, and says what begins. `aside`: the files that it has
  // set aside to go back to that step.
  void Begin(const RunStart& start, const SetAside& aside, int64_t step, const RunFacts& facts);
  // Time counts from this call, steps and targets from the numbers given.
  void StartClock(const ThroughputOptions& options, int64_t step, int64_t targets);

  // Tells people that the run was complete at that step, and how to train on.
  void NothingToDo(int64_t step);

  // After the first step: says so, and adds it to provenance.json.
  void ProductsRefused(const std::vector<std::string>& products);

  // Adds a record to the files; the console shows one that is for people. Throws also where rank
  // 0's log is gone by now.
  void Write(const MetricsRecord& record);
  // A training step has ended, with its learning rate and this rank's account. Writes a record at
  // every log.every and moves the console's bar.
  struct StepWork {
    int64_t targets = 0;  // Since step 1, over all ranks.
    int64_t tokens = 0;   // RowSource::InputTokens() of this step.
  };
  void Step(int64_t step, const StepScalars& result, const StepAccount& account,
            const StepWork& work, double lr);
  void WriteTrace(int64_t step, RankTrace trace);  // Writes this rank's trace of a step.
  // Writes everything to the disk. Rank 0 returns what metrics.jsonl then holds, the others
  // nothing.
  std::optional<FilePrefix> Sync();

  // Between these two no time of training passes. Both count seconds of the device's clock; Pause()
  // returns its time. `record` says where the seconds between them went.
  double Pause();
  void Continue(const PauseRecord& record);
  double Now() const { return clock_(); }

  void Line(std::string_view text) { console_.Line(text); }  // Any thread.
  // Says that the run stops, and behind which step. Any thread.
  void Stopping(const AgreedStop& stop);
  void Report(const std::string& where);  // Into the log, and on any rank's stderr.
  // Whether the console's reader has gone (`| head -1`), which is how one stops a program that
  // prints. Where the console cannot be written for another reason, such as a full disk, the run
  // goes on without it.
  bool LostItsReader();

  // The run's last record and line. Failed() throws nothing: where the disk is what failed, that is
  // reported already.
  // `early`: why early stopping ends the run; empty: it does not.
  void Finish(const char* reason, int64_t step, const std::string& early = "");
  void Stopped();  // Before the first step.
  void Failed(const std::string& reason);

 private:
  bool first() const { return job_.rank == 0; }
  void OpenFiles(int64_t step);
  void RecordResume(const RunStart& start, int64_t step, const RunFacts& facts);
  void SayWhatIsNotRead();
  void SayDataUse(const RunData& data);
  std::string RateOfAll(int64_t step) const;
  void SayWhatIsHeldOut(const RunFacts& facts);
  RunRecord RecordOf(const std::string& started, const RunFacts& facts) const;
  Provenance DescribeRun(const std::string& started, const RunFacts& facts) const;
  void Add(const StepAccount& account);
  // Notes a spike; says it on the console where it is above `worth_saying` medians of the last
  // steps.
  void NoteSpike(int64_t step, const char* what, SpikeWindow& before, double value,
                 double worth_saying);
  void RecordEnd(const std::string& reason);
  void WriteLoads() {  // The last step's, once: the end of a run asks, too.
    if (loads_) Write(*std::exchange(loads_, std::nullopt));
  }
  MemoryPeaks TakeMemory();  // Since the last time.
  void SayDone(int64_t step, bool early);

  const Recipe& recipe_;
  const Job& job_;
  const RunDirectory* directory_ = nullptr;
  std::optional<Provenance> provenance_;  // Rank 0's.
  Console console_;
  std::optional<Log> log_;
  std::optional<MetricsWriter> metrics_;  // Rank 0's, as the next.
  std::optional<TensorBoardWriter> tensorboard_;

  std::function<double()> clock_;
  std::optional<ThroughputMeter> meter_;
  int64_t planned_bytes_ = 0, host_bytes_ = 0, disk_bytes_ = 0;
  std::optional<CachingStatistics> peaks_;  // Since the last record; empty where memory is planned.
  int64_t logged_step_ = 0, logged_targets_ = 0;
  int64_t input_tokens_ = 0;  // Since the last record.
  double all_tokens_ = 0;     // Since began_.
  // Since the last record, of steps with a finite loss: loss x targets, and targets.
  double loss_sum_ = 0;
  int64_t loss_targets_ = 0;
  int64_t last_targets_ = 0;                    // Since step 1, when the last step ended.
  int64_t first_step_ = 0, first_targets_ = 0;  // Where this start began; began_ is when.
  double began_ = 0;
  Speech speech_ = Speech::kNone;
  std::map<std::string, double> evaluations_;  // The last loss of each set.
  std::string saved_;                          // The last checkpoint of this start.
  TimeParts times_;                            // Sums since the last record.
  std::optional<ExpertsRecord> loads_;         // The last step's, where they are not recorded yet.
  SpikeWindow losses_, norms_;                 // This start's: no checkpoint has them.
  std::optional<double> last_end_;             // End of a training step, on the device's clock.
  double elsewhere_ = 0;                       // Seconds since then that went to no training step.
  bool console_failed_ = false, lost_reader_ = false;
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_LOOP_RECORDER_H_
