// What a run will take, before it takes it: `plan`, --dry-run, and the check before a run
// allocates.
#ifndef FSDP_TRAIN_TRAINER_ENGINE_PLAN_H_
#define FSDP_TRAIN_TRAINER_ENGINE_PLAN_H_

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "trainer/core/memory_limits.h"
#include "trainer/engine/host_memory.h"
#include "trainer/engine/plan_memory.h"
#include "trainer/engine/session.h"

namespace fsdp {

// What a run is to compute on.
struct PlanTarget {
  DeviceType device = DeviceType::kCpu;  // Never kSim.
  // Of a device with memory of its own: what a rank gets of it, and what is taken of it besides
  // (contexts, libraries, other programs). Empty: unknown.
  std::optional<MemoryRoom> room = std::nullopt;
  std::optional<int64_t> outside = std::nullopt;
  // What each communicator of a group of ranks will take of that room yet: over NCCL.
  int64_t communicator = 0;
  // What is held back for code of kernels, by which that room is less.
  int64_t code = 0;
  // Where the ranks' host is another than this one: what a rank gets of its memory.
  bool other_host = false;
  std::optional<MemoryRoom> host = std::nullopt;
};

struct RunPlan {
  DeviceType device = DeviceType::kCpu;
  int world = 1, local_world = 1;  // local_world: of one host.
  MemoryPlan memory;               // Of a rank.
  StepTraffic traffic;
  // Bytes a rank takes of the host besides: OutsideMemory.
  int64_t outside = 0;
  std::optional<MemoryRoom> available;  // Of the host, to a rank, now. Empty: unknown.
  // Where the device has memory of its own: of PlanTarget.
  std::optional<MemoryRoom> device_available;
  std::optional<int64_t> device_outside;
  int64_t device_code = 0;  // Likewise.
  uint64_t schedule_hash = 0;
  std::optional<int64_t> limit;  // run.memory_limit.
  // Of a caching allocator, whose peaks depend on time: whether they fit, as a simulation of that
  // time says. Empty: memory is planned, or held to what any timing may come to.
  std::optional<bool> simulated_fits;

  // Of the memory that steps work in.
  int64_t planned() const {
    return on_host() ? memory.bytes() : memory.bytes(MemoryPlace::kDevice);
  }
  // What a caching allocator would count of it; of a plan all three are one number.
  CachingStatistics statistics() const {
    const CachingStatistics::Bytes all{planned(), planned()};
    return memory.caching.value_or(CachingStatistics{all, all, all});
  }
  int64_t bytes(MemoryKind kind) const {
    return on_host() ? memory.bytes(kind) : memory.bytes(kind, MemoryPlace::kDevice);
  }
  // Of the host's, all in all.
  int64_t total() const {
    return memory.bytes() - (on_host() ? 0 : memory.bytes(MemoryPlace::kDevice)) + outside;
  }
  bool on_host() const { return device == DeviceType::kCpu; }
  bool fits() const { return fits_limit() && fits_device() && fits_host(); }
  bool fits_limit() const { return !limit || simulated_fits.value_or(planned() <= *limit); }
  bool fits_device() const {
    return !device_available || simulated_fits.value_or(planned() <= device_available->bytes);
  }
  bool fits_host() const { return !available || total() <= available->bytes; }
};

// `local_world` ranks share the host's memory.
RunPlan PlanRun(Model& model, const SessionOptions& options, int world, int local_world,
                const PlanTarget& target = {}, const MemoryLimits& limits = MemoryLimits());

// What a step takes on a described machine, which who simulates it knows (simulate/).
struct StepEstimate {
  double step_time_s = 0;
  double samples_per_s = 0, targets_per_s = 0;  // Of the job.
  // What MFU counts; and what is computed, all pairs of attention and what is computed again.
  double tflops_per_device = 0, hardware_tflops_per_device = 0;
  double exposed_s = 0;  // The device waits for collectives, and computes nothing.
  double floor_s = 0;    // As `bench floor` has it: no step can be shorter.
  std::vector<std::pair<std::string, double>> breakdown = {};  // Seconds, the step's all in all.
  std::vector<std::string> calibrated_on = {};  // Published numbers that the machine was set from.
};

// What is not known is null: times, without an estimate.
std::string PlanToJson(const RunPlan& plan, const std::optional<StepEstimate>& step = std::nullopt);
std::string PlanToText(const RunPlan& plan);
std::string PlanTerms();  // The words of that text and of an estimate's, a line each.

// Throws MemoryError that says by how much it does not fit, with the cheapest cures first: each is
// the same recipe with one setting changed, planned again.
// `plan` was made for `target`.
void RequireFit(Model& model, const SessionOptions& options, const RunPlan& plan,
                const PlanTarget& target = {}, const MemoryLimits& limits = MemoryLimits());

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_ENGINE_PLAN_H_
