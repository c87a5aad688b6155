#include "trainer/engine/plan.h"

#include <algorithm>
#include <functional>
#include <sstream>
#include <utility>
#include <vector>

#include "trainer/core/errors.h"
#include "trainer/core/json.h"
#include "trainer/core/units.h"

namespace fsdp {
namespace {

struct Cure {
  const char* setting;
  std::function<bool(SessionOptions&)> apply;  // False: it is set already.
};

// Cheapest in speed first.
const std::vector<Cure>& Cures() {
  static const std::vector<Cure> cures = {
      {"checkpoint.async: false",
       [](SessionOptions& o) { return std::exchange(o.snapshot, false); }},
      {"fsdp.limit_all_gathers: 1 and fsdp.reduce_buffers: 1",
       [](SessionOptions& o) {
         if (o.executor.limit_all_gathers == 1 && o.executor.reduce_buffers == 1) return false;
         o.executor.limit_all_gathers = o.executor.reduce_buffers = 1;
         return true;
       }},
      {"fsdp.reshard_after_forward: null",
       [](SessionOptions& o) {
         return std::exchange(o.executor.reshard_after_forward, std::nullopt).has_value();
       }},
      {"fsdp.sharding_strategy: hybrid_shard",
       [](SessionOptions& o) {
         if (o.executor.sharding_strategy != Strategy::kHybridShardGradOp) return false;
         o.executor.sharding_strategy = Strategy::kHybridShard;
         return true;
       }},
      {"fsdp.sharding_strategy: full_shard",
       [](SessionOptions& o) {
         return std::exchange(o.executor.sharding_strategy, Strategy::kFullShard) !=
                Strategy::kFullShard;
       }},
      {"fsdp.gradient_accumulation: sharded",
       [](SessionOptions& o) {
         return std::exchange(o.executor.gradient_accumulation, Accumulation::kSharded) !=
                Accumulation::kSharded;
       }},
      {"train.activation_checkpointing: selective",
       [](SessionOptions& o) {
         if (o.executor.recompute != Recompute::kNone) return false;
         o.executor.recompute = Recompute::kSelective;
         return true;
       }},
      {"train.activation_checkpointing: full",
       [](SessionOptions& o) {
         return std::exchange(o.executor.recompute, Recompute::kFull) != Recompute::kFull;
       }},
      {"train.micro_batch_size: 1",
       [](SessionOptions& o) {
         o.executor.micro_batches = 2;  // As many as it takes; more than two need no more memory.
         return std::exchange(o.executor.micro_batch_size, 1) != 1;
       }},
      {"train.micro_batch_size: 1 and train.activation_checkpointing: full",
       [](SessionOptions& o) {
         o.executor.micro_batches = 2;
         o.executor.micro_batch_size = 1;
         o.executor.recompute = Recompute::kFull;
         return true;
       }},
  };
  return cures;
}

}  // namespace

RunPlan PlanRun(Model& model, const SessionOptions& options, int world, int local_world,
                const MemoryLimits& limits) {
  RunPlan plan;
  plan.world = world;
  plan.local_world = local_world;
  const Mesh mesh = MeshFor(options.executor, /*rank=*/0, world);
  plan.memory = PlanMemory(model, options, world, &plan.traffic);
  plan.schedule_hash = ScheduleFor(options.executor, model, mesh, Mode::kTrain).Hash();
  std::vector<GroupOnHost> groups;
  for (const Group group : MeshCommunicators::Connected(mesh, options.executor.communicators)) {
    const RankGroup all = mesh.RanksOf(group);
    const std::vector<int>& ranks = all.ranks();
    const auto here = [&](int rank) { return rank < local_world; };
    groups.push_back({static_cast<int>(ranks.size()),
                      static_cast<int>(std::count_if(ranks.begin(), ranks.end(), here))});
  }
  const int streams = mesh.hybrid() ? kNumStreams : kNumStreams - 1;
  const OutsideMemory outside = OutsideOf(options.executor.threads, streams, groups, limits);
  plan.outside = outside.bytes;
  plan.available = AvailableMemory(limits, local_world, outside.addresses);
  return plan;
}

std::string PlanToJson(const RunPlan& plan) {
  const MemoryPlan& m = plan.memory;
  const auto memory = JsonObject()
                          .Add("allocated_peak", m.bytes())
                          .Add("active_peak", m.bytes())
                          .Add("reserved_peak", m.bytes())
                          .Add("parameters", m.bytes(MemoryKind::kParameters))
                          .Add("gradients", m.bytes(MemoryKind::kGradients))
                          .Add("optimizer", m.bytes(MemoryKind::kOptimizer))
                          .Add("activations", m.bytes(MemoryKind::kActivations))
                          .Add("unsharded", m.bytes(MemoryKind::kUnsharded))
                          .Add("secondary", m.bytes(MemoryKind::kSecondary))
                          .Add("snapshot", m.bytes(MemoryKind::kSnapshot))
                          .Add("host", m.bytes() - m.bytes(MemoryPlace::kDevice))
                          .Add("outside", plan.outside);
  const auto communication =
      JsonObject()
          .Add("all_gather_bytes", static_cast<int64_t>(plan.traffic.all_gather_bytes))
          .Add("reduce_scatter_bytes", static_cast<int64_t>(plan.traffic.reduce_scatter_bytes))
          .Add("all_reduce_bytes", static_cast<int64_t>(plan.traffic.all_reduce_bytes))
          .AddRaw("exposed_s", "null");
  return JsonObject()
      .Add("world_size", plan.world)
      .Add("local_world_size", plan.local_world)
      .AddRaw("step_time_s", "null")
      .AddRaw("tokens_per_s", "null")
      .AddRaw("tflops_per_device", "null")
      .Add("memory", memory)
      .Add("fits", plan.fits())
      .Add("alloc_retries", 0)
      .Add("communication", communication)
      .Text();
}

std::string PlanToText(const RunPlan& plan) {
  const MemoryPlan& m = plan.memory;
  std::ostringstream out;
  const auto line = [&](const char* name, int64_t bytes) {
    out << "  " << name << std::string(16 - std::string_view(name).size(), ' ') << HumanBytes(bytes)
        << "\n";
  };
  out << "memory of each of " << plan.world << " ranks";
  if (plan.local_world < plan.world) out << ", " << plan.local_world << " to a host";
  out << "\n";
  line("parameters", m.bytes(MemoryKind::kParameters));
  line("gradients", m.bytes(MemoryKind::kGradients));
  line("optimizer", m.bytes(MemoryKind::kOptimizer));
  line("unsharded", m.bytes(MemoryKind::kUnsharded));
  if (m.bytes(MemoryKind::kSecondary) > 0) line("secondary", m.bytes(MemoryKind::kSecondary));
  line("activations", m.bytes(MemoryKind::kActivations));
  line("snapshot", m.bytes(MemoryKind::kSnapshot));
  line("planned", m.bytes());
  line("outside", plan.outside);
  if (plan.available) line("available", plan.available->bytes);
  out << "  fits: " << (plan.fits() ? "yes" : "no") << "\n";
  out << "sent by each rank in a step\n";
  line("all-gather", static_cast<int64_t>(plan.traffic.all_gather_bytes));
  line("reduce-scatter", static_cast<int64_t>(plan.traffic.reduce_scatter_bytes));
  line("all-reduce", static_cast<int64_t>(plan.traffic.all_reduce_bytes));
  return out.str();
}

void RequireFit(Model& model, const SessionOptions& options, const RunPlan& plan, int local_world,
                const MemoryLimits& limits) {
  if (plan.fits()) return;
  std::string message = "does not fit: a rank needs " + HumanBytes(plan.total()) + " (" +
                        HumanBytes(plan.memory.bytes()) + " planned, " + HumanBytes(plan.outside) +
                        " outside), and " + HumanBytes(plan.available->bytes) + " are available (" +
                        plan.available->limit + ")";
  bool any = false;
  for (const Cure& cure : Cures()) {
    SessionOptions changed = options;
    if (!cure.apply(changed)) continue;
    const RunPlan other = PlanRun(model, changed, plan.world, local_world, limits);
    if (!other.fits()) continue;
    message += std::string(any ? "\n  or " : "\nit fits with ") + cure.setting + ": " +
               HumanBytes(other.total());
    any = true;
  }
  if (!any) {
    message +=
        "\nno setting of memory alone makes it fit: use more ranks on more hosts, or a smaller "
        "model";
  }
  throw MemoryError(message);
}

}  // namespace fsdp
