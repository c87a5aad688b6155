// The memory that a run will take, planned beforehand: for `plan`, --dry-run, and the check before
// a run allocates.
#ifndef FSDP_TRAIN_TRAINER_ENGINE_PLAN_H_
#define FSDP_TRAIN_TRAINER_ENGINE_PLAN_H_

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "trainer/comm/communicator.h"
#include "trainer/core/process_limits.h"
#include "trainer/engine/host_memory.h"
#include "trainer/engine/plan_memory.h"
#include "trainer/engine/session.h"

namespace fsdp {

// The machine that a run is to compute on.
struct PlanTarget {
  DeviceType device = DeviceType::kCpu;  // Never kSim.
  // For a device with memory of its own: the memory that a rank gets, and the memory taken by
  // others (contexts, libraries, other programs). Empty: unknown.
  std::optional<MemoryRoom> room = std::nullopt;
  std::optional<int64_t> outside = std::nullopt;
  // Over NCCL: the bytes of `room` that a communicator of a group will still take for these calls.
  // Null: none.
  using CommunicatorBytes =
      std::function<int64_t(const std::vector<Communicator::Size>& calls, const GroupOnHost&)>;
  CommunicatorBytes communicator = nullptr;
  // Bytes held back for the code of kernels, by which `room` is less.
  int64_t code = 0;
  // The ranks run on another host; `host` is the memory that a rank gets there.
  bool other_host = false;
  std::optional<MemoryRoom> host = std::nullopt;
};

struct RunPlan {
  DeviceType device = DeviceType::kCpu;
  int world = 1, local_world = 1;  // local_world: ranks of one host.
  int64_t idle_ranks = 0;          // Ranks that no sample of a step is for.
  MemoryPlan memory;               // A rank's.
  StepTraffic traffic;
  // Bytes of the host that a rank takes besides: OutsideMemory.
  int64_t outside = 0;
  std::optional<MemoryRoom> available;  // Host memory for a rank now. Empty: unknown.
  bool other_host = false;              // From PlanTarget.
  // From PlanTarget, for a device with memory of its own.
  std::optional<MemoryRoom> device_available;
  std::optional<int64_t> device_outside;
  int64_t device_code = 0;  // From PlanTarget.
  uint64_t schedule_hash = 0;
  std::optional<int64_t> limit;  // run.memory_limit.
  // Whether a caching allocator's peaks, which depend on time, fit in a simulation of that time.
  // Empty: memory is planned, or allows for the worst timing.
  std::optional<bool> simulated_fits;

  // Bytes of the memory that steps work in.
  int64_t planned() const {
    return on_host() ? memory.bytes() : memory.bytes(MemoryPlace::kDevice);
  }
  // The memory as a caching allocator counts it; for planned memory all three are one number.
  CachingStatistics statistics() const {
    const CachingStatistics::Bytes all{planned(), planned()};
    return memory.caching.value_or(CachingStatistics{all, all, all});
  }
  int64_t bytes(MemoryKind kind) const {
    return on_host() ? memory.bytes(kind) : memory.bytes(kind, MemoryPlace::kDevice);
  }
  // All bytes of the host.
  int64_t total() const {
    return memory.bytes() - (on_host() ? 0 : memory.bytes(MemoryPlace::kDevice)) + outside;
  }
  // Bytes of the host that training allocates: total() without those outside.
  int64_t host_planned() const { return total() - outside; }
  bool on_host() const { return device == DeviceType::kCpu; }
  bool fits() const { return fits_limit() && fits_device() && fits_host(); }
  bool fits_limit() const { return !limit || simulated_fits.value_or(planned() <= *limit); }
  bool fits_device() const {
    return !device_available || simulated_fits.value_or(planned() <= device_available->bytes);
  }
  bool fits_host() const { return !available || total() <= available->bytes; }
  bool host_known() const { return available || !other_host; }
};

// `local_world` ranks share the host's memory.
RunPlan PlanRun(Model& model, const SessionOptions& options, int world, int local_world,
                const PlanTarget& target = {}, const MemoryLimits& limits = MemoryLimits());

// PlanRun() without the schedule's hash. Empty where the run does not fit, which is found out as
// early as possible.
std::optional<RunPlan> PlanThatFits(Model& model, const SessionOptions& options, int world,
                                    int local_world, const PlanTarget& target,
                                    const MemoryLimits& limits = MemoryLimits());

// A step's time on a described machine, from a simulation (simulate/).
struct StepEstimate {
  double step_time_s = 0;
  // The whole job's. counted: BatchSpec::Counted() of its samples.
  double samples_per_s = 0, counted_per_s = 0, targets_per_s = 0;
  // FLOPs that MFU counts; and all computed FLOPs, all pairs of attention and recomputation
  // included.
  double tflops_per_device = 0, hardware_tflops_per_device = 0;
  double exposed_s = 0;  // The device waits for collectives and computes nothing.
  double floor_s = 0;    // No step can be shorter: `bench floor`.
  // tflops_per_device as a share of the data sheet's FLOP/s. Empty: the file has none.
  std::optional<double> mfu = std::nullopt;
  std::optional<double> counted_per_day = std::nullopt;  // Empty: samples themselves are counted.
  // The whole run's: its steps, without evaluations and checkpoints. Empty: the run lasts for
  // train.epochs of data that nobody has opened.
  int64_t steps = 0;
  std::optional<double> run_s = std::nullopt, device_hours = std::nullopt;
  std::vector<std::pair<std::string, double>> breakdown = {};  // Seconds, the step's all in all.
  std::vector<std::string> calibrated_on = {};  // Published numbers by which the machine's were
                                                // set.
};

// Unknown values are null: times, without an estimate.
std::string PlanToJson(const RunPlan& plan, const std::optional<StepEstimate>& step = std::nullopt);
std::string PlanToText(const RunPlan& plan);
// "fits: yes", "fits: no", or what fits and how much of the rest is needed that nobody knows.
std::string FitsInWords(const RunPlan& plan);
std::string PlanTerms();  // Explains the words of these texts, a line each.

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_ENGINE_PLAN_H_
