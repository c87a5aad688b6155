#include "trainer/engine/plan.h"

#include <algorithm>
#include <cstdio>
#include <iterator>
#include <sstream>
#include <utility>
#include <vector>

#include "trainer/comm/mesh_communicators.h"
#include "trainer/core/errors.h"
#include "trainer/core/json.h"
#include "trainer/core/units.h"
#include "trainer/fsdp/memory_plan.h"
#include "trainer/fsdp/model_layout.h"
#include "trainer/fsdp/try_collectives.h"
#include "trainer/nn/model.h"
#include "trainer/optim/update_rule.h"
#include "trainer/runtime/spill/spill_memory.h"

namespace fsdp {
namespace {

bool HasExperts(const Model& model) {
  return std::ranges::any_of(model.segments(), [](const ModelSegment& segment) {
    return std::ranges::any_of(segment.parameters, &Parameter::is_of_experts);
  });
}

// Bytes of a device that the communicator of a group will still take.
int64_t BytesToConnect(const PlanTarget& target, const Collectives& of_step, const Mesh& mesh,
                       int64_t queues, Group group, const GroupOnHost& ranks) {
  if (!target.communicator) return 0;
  std::vector<Communicator::Size> calls;
  for (const auto& [other, of_group] : of_step) {
    if (!MeshCommunicators::Share(mesh, static_cast<int>(queues), group, other)) continue;
    calls.insert(calls.end(), of_group.begin(), of_group.end());
  }
  return target.communicator(calls, ranks);
}

// PlanRun(), which with a ceiling throws MemoryError instead of a plan above it.
RunPlan PlanBelow(const std::optional<MemoryCeiling>& ceiling, Model& model,
                  const SessionOptions& options, int world, int local_world,
                  const PlanTarget& target, const MemoryLimits& limits) {
  RunPlan plan;
  plan.device = target.device;
  plan.device_available = target.room;
  plan.device_outside = target.outside;
  plan.device_code = target.code;
  plan.other_host = target.other_host;
  plan.world = world;
  plan.local_world = local_world;
  const int64_t micro = options.executor.micro_batch_size;
  plan.idle_ranks = std::max<int64_t>(0, world - (options.global_batch_size + micro - 1) / micro);
  const Mesh mesh = MeshFor(options.executor, /*rank=*/0, world);
  plan.limit = options.executor.memory_limit;
  try {
    plan.memory = PlanMemory(model, options, world, &plan.traffic, target.device,
                             ceiling.value_or(MemoryCeiling()));
  } catch (const MemoryError&) {  // Plans without the limit.
    if (!plan.limit || ceiling) throw;
    SessionOptions unlimited = options;
    unlimited.executor.memory_limit.reset();
    plan.traffic = {};
    plan.memory = PlanMemory(model, unlimited, world, &plan.traffic, target.device);
  }
  if (!ceiling) {  // A plan with a ceiling is not run.
    plan.schedule_hash = ScheduleFor(options.executor, model, mesh, Mode::kTrain).Hash();
  }
  std::vector<GroupOnHost> groups;
  int64_t connected = 0;
  Collectives of_step;
  if (target.communicator) of_step = CollectivesOf(model, options.executor, mesh);
  for (const Group group : MeshCommunicators::Connected(mesh, options.executor.communicators)) {
    const RankGroup all = mesh.RanksOf(group);
    const std::vector<int>& ranks = all.ranks();
    const auto here = [&](int rank) { return rank < local_world; };
    groups.push_back({static_cast<int>(ranks.size()),
                      static_cast<int>(std::count_if(ranks.begin(), ranks.end(), here))});
    connected +=
        BytesToConnect(target, of_step, mesh, options.executor.communicators, group, groups.back());
  }
  if (plan.device_available && connected > 0) {
    MemoryRoom& room = *plan.device_available;
    room.bytes = std::max<int64_t>(0, room.bytes - connected);
    room.limit += ", less " + HumanBytes(connected) + " for NCCL";
  }
  if (plan.device_outside) *plan.device_outside += connected;
  int threads = plan.memory.threads + options.data_threads - 1;  // One is the data stream's.
  if (plan.memory.bytes(MemoryPlace::kDisk) > 0) threads += SpillMemory::kThreads;
  const OutsideMemory outside =
      OutsideOf(plan.memory.multiplying, HasExperts(model), threads, groups, limits);
  plan.outside = outside.bytes + SpillMemory::HostBytes(plan.memory.bytes(MemoryPlace::kDisk));
  plan.available =
      target.other_host ? target.host : AvailableMemory(limits, local_world, outside.addresses);
  return plan;
}

// Bytes that a rank has of masters and optimizer state, at the least.
int64_t LeastState(const Model& model, const SessionOptions& options, int world) {
  const int shards = MeshFor(options.executor, /*rank=*/0, world).shard_size();
  const Layout layout = LayoutFor(options.executor, model, shards);
  const std::vector<KeptState> states = KeptStates(options.optimizer, layout);
  int64_t bytes = 0;
  for (const FlatParameter& flat : layout.flat_parameters) {
    if (flat.frozen) continue;
    bytes += flat.shard_size * SizeOf(flat.dtypes.master);
    for (const KeptState& state : states) bytes += state.ShardBytes(flat);
  }
  return bytes;
}

}  // namespace

std::optional<RunPlan> PlanThatFits(Model& model, const SessionOptions& options, int world,
                                    int local_world, const PlanTarget& target,
                                    const MemoryLimits& limits) {
  const bool on_host = target.device == DeviceType::kCpu;
  const std::optional<MemoryRoom> host =
      target.other_host ? target.host : AvailableMemory(limits, local_world, /*addresses=*/0);
  MemoryCeiling ceiling;
  int64_t& device = on_host ? ceiling.all : ceiling.device;
  device = std::min(device, options.executor.memory_limit.value_or(MemoryCeiling::kNone));
  if (target.room) device = std::min(device, target.room->bytes);
  int64_t& beside = on_host ? ceiling.all : ceiling.host;
  if (host) beside = std::min(beside, host->bytes);
  const bool leaves = options.executor.cpu_offload.optimizer;
  const bool spills = leaves && options.executor.cpu_offload.spill.has_value();
  try {
    if (on_host ? !spills : !leaves) ceiling.Check(LeastState(model, options, world), 0);
    RunPlan plan = PlanBelow(ceiling, model, options, world, local_world, target, limits);
    if (plan.fits()) return plan;
  } catch (const MemoryError&) {
  }
  return std::nullopt;
}

RunPlan PlanRun(Model& model, const SessionOptions& options, int world, int local_world,
                const PlanTarget& target, const MemoryLimits& limits) {
  return PlanBelow(std::nullopt, model, options, world, local_world, target, limits);
}

namespace {

// Bytes taken outside of the memory that steps work in; null where unmeasured.
std::string OutsideToJson(const RunPlan& plan) {
  if (plan.on_host()) return std::to_string(plan.outside);
  return plan.device_outside ? std::to_string(*plan.device_outside) : "null";
}

template <typename T>
std::optional<double> Of(const std::optional<StepEstimate>& step, T StepEstimate::*number) {
  return step ? std::optional<double>((*step).*number) : std::nullopt;
}

std::string BreakdownToJson(const std::optional<StepEstimate>& step) {
  if (!step) return "null";
  JsonObject parts;
  for (const auto& [name, seconds] : step->breakdown) parts.Add(name, seconds);
  return parts.Text();
}

std::string CalibrationToJson(const std::optional<StepEstimate>& step) {
  if (!step) return "null";
  std::vector<std::string> points;
  for (const std::string& point : step->calibrated_on) points.push_back(JsonString(point));
  return JsonArray(points);
}

}  // namespace

std::string PlanToJson(const RunPlan& plan, const std::optional<StepEstimate>& step) {
  const MemoryPlan& m = plan.memory;
  const auto memory = JsonObject()
                          .Add("allocated_peak", plan.statistics().allocated.peak)
                          .Add("active_peak", plan.statistics().active.peak)
                          .Add("reserved_peak", plan.statistics().reserved.peak)
                          .Add("parameters", plan.bytes(MemoryKind::kParameters))
                          .Add("gradients", plan.bytes(MemoryKind::kGradients))
                          .Add("optimizer", plan.bytes(MemoryKind::kOptimizer))
                          .Add("activations", plan.bytes(MemoryKind::kActivations))
                          .Add("unsharded", plan.bytes(MemoryKind::kUnsharded))
                          .Add("secondary", plan.bytes(MemoryKind::kSecondary))
                          .Add("snapshot", m.bytes(MemoryKind::kSnapshot))
                          .Add("host", m.bytes() - m.bytes(MemoryPlace::kDevice))
                          .Add("disk", m.bytes(MemoryPlace::kDisk))
                          .AddRaw("outside", OutsideToJson(plan));
  const auto communication = JsonObject()
                                 .Add("all_gather_bytes", plan.traffic.all_gather_bytes)
                                 .Add("reduce_scatter_bytes", plan.traffic.reduce_scatter_bytes)
                                 .Add("all_reduce_bytes", plan.traffic.all_reduce_bytes)
                                 .Add("all_to_all_bytes", plan.traffic.all_to_all_bytes)
                                 .Add("exposed_s", Of(step, &StepEstimate::exposed_s));
  const auto offload =
      JsonObject()
          .Add("to_host_bytes", static_cast<int64_t>(plan.traffic.to_host_bytes))
          .Add("to_device_bytes", static_cast<int64_t>(plan.traffic.to_device_bytes))
          .Add("update_bytes", static_cast<int64_t>(plan.traffic.update_bytes))
          .Add("disk_read_bytes", static_cast<int64_t>(plan.traffic.spill_read_bytes))
          .Add("disk_write_bytes", static_cast<int64_t>(plan.traffic.spill_write_bytes));
  return JsonObject()
      .Add("device", Name(plan.device))
      .Add("world_size", plan.world)
      .Add("local_world_size", plan.local_world)
      .Add("idle_ranks", plan.idle_ranks)
      .Add("step_time_s", Of(step, &StepEstimate::step_time_s))
      .Add("samples_per_s", Of(step, &StepEstimate::samples_per_s))
      .Add("tokens_per_s", Of(step, &StepEstimate::counted_per_s))
      .Add("targets_per_s", Of(step, &StepEstimate::targets_per_s))
      .Add("tflops_per_device", Of(step, &StepEstimate::tflops_per_device))
      .Add("hardware_tflops_per_device", Of(step, &StepEstimate::hardware_tflops_per_device))
      .Add("mfu", Of(step, &StepEstimate::mfu))
      .Add("tokens_per_day", Of(step, &StepEstimate::counted_per_day))
      .Add("run_seconds", Of(step, &StepEstimate::run_s))
      .Add("device_hours", Of(step, &StepEstimate::device_hours))
      .Add("floor_s", Of(step, &StepEstimate::floor_s))
      .AddRaw("breakdown", BreakdownToJson(step))
      .AddRaw("calibrated_on", CalibrationToJson(step))
      .Add("memory", memory)
      .Add("fits", plan.fits())
      .Add("fits_host", plan.host_known() ? std::optional(plan.fits_host()) : std::nullopt)
      .Add("alloc_retries", plan.statistics().retries)
      .Add("communication", communication)
      .Add("flops", plan.traffic.flops)
      .Add("offload", offload)
      .Text();
}

namespace {

std::string Line(const char* name, int64_t bytes) {
  return "  " + (name + std::string(16 - std::string_view(name).size(), ' ')) + HumanBytes(bytes) +
         "\n";
}

std::string OffloadToText(const StepTraffic& traffic) {
  char flops[32];
  std::snprintf(flops, sizeof(flops), "%.4g TFLOP", traffic.flops / 1e12);
  std::string text = std::string("computed and offloaded by each rank in a step\n") +
                     "  kernels         " + flops + "\n";
  const auto line = [&](const char* name, double bytes) {
    if (bytes > 0) text += Line(name, static_cast<int64_t>(bytes));
  };
  line("to the host", traffic.to_host_bytes);
  text += Line("to the device", static_cast<int64_t>(traffic.to_device_bytes));
  line("updates move", traffic.update_bytes);
  if (traffic.spill_read_bytes > 0) {
    line("from the disk", traffic.spill_read_bytes);
    text += Line("to the disk", static_cast<int64_t>(traffic.spill_write_bytes));
  }
  return text;
}

}  // namespace

std::string FitsInWords(const RunPlan& plan) {
  const bool device = plan.on_host() || plan.device_available, host = plan.host_known();
  if (!plan.fits()) return "fits: no";
  if (!plan.other_host || (device && host)) return "fits: yes";
  std::string text = device ? "fits on the device; needs "
                     : host ? "fits on the host; needs "
                            : "needs ";
  if (!device) text += HumanBytes(plan.planned()) + " a device" + (host ? "" : " and ");
  if (!host) text += HumanBytes(plan.total() * plan.local_world) + " a host";
  return text + ", which the hardware file does not know";
}

std::string PlanToText(const RunPlan& plan) {
  const MemoryPlan& m = plan.memory;
  std::ostringstream out;
  const auto line = [&](const char* name, int64_t bytes) { out << Line(name, bytes); };
  out << "memory of ";
  if (plan.world == 1) out << "the rank";
  if (plan.world > 1) out << "each of " << plan.world << " ranks";
  if (!plan.on_host()) out << " on " << Name(plan.device);
  if (plan.local_world < plan.world) out << ", " << plan.local_world << " to a host";
  out << "\n";
  line("parameters", plan.bytes(MemoryKind::kParameters));
  line("gradients", plan.bytes(MemoryKind::kGradients));
  line("optimizer", plan.bytes(MemoryKind::kOptimizer));
  line("unsharded", plan.bytes(MemoryKind::kUnsharded));
  if (plan.bytes(MemoryKind::kSecondary) > 0) line("secondary", plan.bytes(MemoryKind::kSecondary));
  line("activations", plan.bytes(MemoryKind::kActivations));
  if (plan.on_host()) line("snapshot", m.bytes(MemoryKind::kSnapshot));
  if (m.caching) {
    line("allocated", m.caching->allocated.peak);
    line("active", m.caching->active.peak);
    line("reserved", m.caching->reserved.peak);
    if (m.caching->retries > 0) out << "  retries         " << m.caching->retries << "\n";
  }
  line("planned", plan.planned());
  if (plan.limit) line("limit", *plan.limit);
  if (!plan.on_host()) {
    if (plan.device_outside) line("outside", *plan.device_outside);
    if (plan.device_code > 0) line("code", plan.device_code);
    if (plan.device_available) line("free", plan.device_available->bytes);
    out << "of its host's\n";
    line("snapshot", m.bytes(MemoryKind::kSnapshot));
    line("planned", plan.total() - plan.outside);
  }
  line("outside", plan.outside);
  if (plan.available) line("available", plan.available->bytes);
  if (const int64_t disk = m.bytes(MemoryPlace::kDisk); disk > 0) line("on the disk", disk);
  out << "  " << FitsInWords(plan) << "\n";
  out << "sent by each rank in a step\n";
  line("all-gather", plan.traffic.all_gather_bytes);
  line("reduce-scatter", plan.traffic.reduce_scatter_bytes);
  line("all-reduce", plan.traffic.all_reduce_bytes);
  if (plan.traffic.all_to_all_bytes > 0) {
    line("all-to-all", plan.traffic.all_to_all_bytes);
  }
  if (plan.traffic.to_host_bytes > 0) out << OffloadToText(plan.traffic);
  return out.str();
}

std::string PlanTerms() {
  return R"(memory of a rank (1 KiB is 1024 B):
  parameters      parameter shards: masters, and a copy in param_dtype where dtypes differ
  gradients       gradient shards
  optimizer       optimizer state shards: moments, moving average
  unsharded       units in use, gathered whole (fsdp.auto_wrap), and their gradients
  secondary       parts of units kept after forward (fsdp.reshard_after_forward)
  activations     what a micro-batch keeps for backward, and workspaces of its kernels
  snapshot        the copy that checkpoint.async writes while training goes on
  allocated       with fsdp.buffers: caching, bytes in use at the peak
  active          allocated, and freed memory that a stream may still use
  reserved        active, and memory that the allocator keeps for later
  retries         how often a full device makes the allocator give kept memory back
  planned         the sum: training allocates nothing else
  limit           run.memory_limit
  outside         not planned: the program, its threads, libraries, connections
  code            held back for code of kernels, which is loaded later
  free            memory of the GPU that a rank gets
  available       memory of the host that a rank gets
  on the disk     state that fsdp.cpu_offload.spill keeps in files
  fits            whether planned and outside are at most what there is, where that is known
sent by a rank in a step:
  all-gather      parameter shards, to make units whole
  reduce-scatter  gradients, summed over the ranks that share a copy
  all-reduce      gradient shards, summed over the copies, and a few scalars; sums by row and column, with adafactor
  all-to-all      ids, rows and gradients of embedding tables, in one round of each exchange; matrices, with muon
with fsdp.cpu_offload, in a step of a rank:
  kernels         FLOPs, recomputation included
  to the host     gradients and activations that leave the device
  to the device   parameters and activations that return
  updates move    host memory that the optimizer reads and writes
  from the disk   spilled state, read ahead of its update
  to the disk     spilled state, written behind its update
)";
}

}  // namespace fsdp
