#include "trainer/engine/plan_cures.h"

#include <sstream>
#include <string>
#include <utility>

#include "trainer/core/errors.h"
#include "trainer/core/units.h"

namespace fsdp {
namespace {

struct Change {
  const char* setting;                     // `%` in it: the micro_batch_size that fits.
  bool (*apply)(SessionOptions& options);  // False: it is set already.
  const char* beside = "";                 // The recipe's rules ask for this, too, as --set has it.
};

// Micro-batches of half as many samples, and of half of those, for as long as there is half of
// one. As many of them as it takes: more than two need no more memory.
std::vector<int64_t> HalvedMicroBatches(const SessionOptions& options) {
  std::vector<int64_t> sizes;
  for (int64_t size = options.executor.micro_batch_size / 2; size > 0; size /= 2) {
    sizes.push_back(size);
  }
  return sizes;
}

// Cheapest in speed first.
const Change kChanges[] = {
    {"checkpoint.async: false", [](SessionOptions& o) { return std::exchange(o.snapshot, false); }},
    {"fsdp.limit_all_gathers: 1 and fsdp.reduce_buffers: 1",
     [](SessionOptions& o) {
       if (o.executor.limit_all_gathers == 1 && o.executor.reduce_buffers == 1) return false;
       o.executor.limit_all_gathers = o.executor.reduce_buffers = 1;
       return true;
     }},
    {"fsdp.concat_gradients: false",
     [](SessionOptions& o) { return std::exchange(o.executor.concat_gradients, false); }},
    {"fsdp.auto_wrap.outside: units",
     [](SessionOptions& o) {
       return std::exchange(o.executor.auto_wrap.outside, WrapPolicy::Outside::kUnits) !=
              WrapPolicy::Outside::kUnits;
     }},
    {"fsdp.buffers: slots and fsdp.limiter: device",
     [](SessionOptions& o) {
       o.executor.limiter = FsdpOptions::Limiter::kDevice;
       o.executor.concat_gradients = false;
       return std::exchange(o.executor.buffers, FsdpOptions::Buffers::kSlots) !=
              FsdpOptions::Buffers::kSlots;
     },
     "fsdp.concat_gradients=false"},
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
     },
     "fsdp.shard_size=null"},
    {"fsdp.gradient_accumulation: sharded",
     [](SessionOptions& o) {
       return std::exchange(o.executor.gradient_accumulation, Accumulation::kSharded) !=
              Accumulation::kSharded;
     }},
    {"train.attention: flash",
     [](SessionOptions& o) {
       if (o.executor.attention != AttentionBackend::kMath) return false;
       o.executor.attention = AttentionBackend::kOwn;
       return true;
     }},
    {"train.activation_checkpointing: selective",
     [](SessionOptions& o) {
       if (o.executor.recompute != Recompute::kNone) return false;
       o.executor.recompute = Recompute::kSelective;
       return true;
     }},
    {"train.micro_batch_size: %", [](SessionOptions&) { return true; }},
    {"train.activation_checkpointing: full",
     [](SessionOptions& o) {
       return std::exchange(o.executor.recompute, Recompute::kFull) != Recompute::kFull;
     }},
    {"train.activation_offload: host",
     [](SessionOptions& o) {
       return std::exchange(o.executor.activation_offload, ActivationOffload::kHost) !=
              ActivationOffload::kHost;
     }},
    {"optimizer.state_dtype: 8bit",
     [](SessionOptions& o) {
       const OptimizerKind kind = o.optimizer.kind;
       if (kind != OptimizerKind::kAdamW && kind != OptimizerKind::kMuon) return false;
       return std::exchange(o.executor.state_dtype, DType::kUInt8) != DType::kUInt8;
     }},
    {"fsdp.cpu_offload.optimizer_share: 0",
     [](SessionOptions& o) {
       auto& offload = o.executor.cpu_offload;
       return offload.optimizer && std::exchange(offload.optimizer_share, 0) > 0;
     }},
    {"fsdp.cpu_offload.optimizer: true",
     [](SessionOptions& o) { return !std::exchange(o.executor.cpu_offload.optimizer, true); }},
    {"train.micro_batch_size: % and train.activation_checkpointing: full",
     [](SessionOptions& o) {
       return std::exchange(o.executor.recompute, Recompute::kFull) != Recompute::kFull;
     }},
    {"fsdp.cpu_offload: {optimizer: true, params: true}",
     [](SessionOptions& o) {
       o.executor.cpu_offload.optimizer = true;
       return !std::exchange(o.executor.cpu_offload.params, true);
     }},
    {"fsdp.cpu_offload: {optimizer: true, spill: a directory}",
     [](SessionOptions& o) {
       if (o.executor.factored) return false;
       o.executor.cpu_offload.optimizer = true;
       return !std::exchange(o.executor.cpu_offload.spill, ".");
     }},
    {"fsdp.cpu_offload: {optimizer: true, params: true} and train.activation_checkpointing: full",
     [](SessionOptions& o) {
       o.executor.cpu_offload.optimizer = o.executor.cpu_offload.params = true;
       return std::exchange(o.executor.recompute, Recompute::kFull) != Recompute::kFull;
     }},
    {"fsdp.cpu_offload: {optimizer: true, params: true}, train.micro_batch_size: % and "
     "train.activation_checkpointing: full",
     [](SessionOptions& o) {
       o.executor.cpu_offload.optimizer = o.executor.cpu_offload.params = true;
       o.executor.recompute = Recompute::kFull;
       return true;
     }},
};

// "a.b: {c: 1, d: 2} and e: 3" as --set has it: "a.b.c=1", "a.b.d=2", "e=3". Empty where a value is
// the user's to name.
std::vector<std::string> OverridesOf(const std::string& setting, const std::string& beside) {
  std::vector<std::string> overrides;
  if (setting.find("a directory") != std::string::npos) return overrides;
  std::string map, key, word;
  std::istringstream words(setting);
  while (words >> word) {
    if (word == "and") continue;
    const bool opens = word.front() == '{';
    if (opens) map = std::exchange(key, "") + ".", word.erase(0, 1);
    if (word.back() == ':') {
      key = word.substr(0, word.size() - 1);
      continue;
    }
    const std::string value = word.substr(0, word.find_first_of(",}"));
    overrides.push_back(map + std::exchange(key, "") + "=" + value);
    if (word.find('}') != std::string::npos) map.clear();
  }
  if (!beside.empty()) overrides.push_back(beside);
  return overrides;
}

}  // namespace

std::optional<Misfit> MisfitOf(const RunPlan& plan) {
  const bool host = plan.on_host();
  if (!plan.fits_limit())
    return Misfit{plan.planned(), *plan.limit, host ? "memory" : "device memory"};
  if (!plan.fits_device())
    return Misfit{plan.planned(), plan.device_available->bytes, "device memory"};
  if (!plan.fits_host()) return Misfit{plan.total(), plan.available->bytes, "host memory"};
  return std::nullopt;
}

namespace {

// The limit that the plan exceeds, and by how much.
std::string WordsOf(const RunPlan& plan) {
  if (!plan.fits_limit()) {
    return "a rank needs " + HumanBytes(plan.planned()) + " of " +
           (plan.on_host() ? "" : "device ") + "memory, and run.memory_limit is " +
           HumanBytes(*plan.limit);
  }
  if (!plan.fits_device()) {
    std::string text = "a rank needs " + HumanBytes(plan.planned()) + " of device memory, and " +
                       HumanBytes(plan.device_available->bytes) + " are free (" +
                       plan.device_available->limit;
    if (plan.device_outside) {
      text += "; contexts, libraries and other programs have " + HumanBytes(*plan.device_outside);
    }
    return text + ")";
  }
  return "a rank needs " + HumanBytes(plan.total()) +
         (plan.on_host() ? "" : " of host memory beside its GPU's") + " (" +
         HumanBytes(plan.total() - plan.outside) + " planned, " + HumanBytes(plan.outside) +
         " outside), and " + HumanBytes(plan.available->bytes) + " are available (" +
         plan.available->limit + ")";
}

}  // namespace

std::vector<Cure> FittingCures(Model& model, const SessionOptions& options, const RunPlan& plan,
                               const PlanTarget& target, const MemoryLimits& limits,
                               const std::function<bool()>& stop) {
  std::vector<Cure> cures;
  if (plan.fits()) return cures;
  const bool of_host = plan.fits_device() && plan.fits_limit();
  // Whether it fits with `changed`.
  const auto offer = [&](const SessionOptions& changed, const std::string& setting,
                         const char* beside) {
    if (stop && stop()) return false;
    const std::optional<RunPlan> other =
        PlanThatFits(model, changed, plan.world, plan.local_world, target, limits);
    if (!other) return false;
    cures.push_back({.setting = setting,
                     .overrides = OverridesOf(setting, beside),
                     .bytes = of_host ? other->total() : other->planned()});
    return true;
  };
  for (const Change& change : kChanges) {
    SessionOptions changed = options;
    if (!change.apply(changed) || changed.executor.OffloadsFromCache()) continue;
    std::string setting = change.setting;
    const size_t size_at = setting.find('%');
    if (size_at == std::string::npos) {
      offer(changed, setting, change.beside);
      continue;
    }
    for (const int64_t size : HalvedMicroBatches(options)) {
      changed.executor.micro_batch_size = size;
      changed.executor.micro_batches = 2;
      std::string with = setting;
      if (offer(changed, with.replace(size_at, 1, std::to_string(size)), change.beside)) break;
    }
  }
  return cures;
}

void RequireFit(Model& model, const SessionOptions& options, const RunPlan& plan,
                const PlanTarget& target, const MemoryLimits& limits) {
  if (plan.fits()) return;
  std::string message = "does not fit: " + WordsOf(plan);
  const std::vector<Cure> cures = FittingCures(model, options, plan, target, limits);
  for (size_t i = 0; i < cures.size(); ++i) {
    message += std::string(i > 0 ? "\n  or " : "\nit fits with ") + cures[i].setting + ": " +
               HumanBytes(cures[i].bytes);
  }
  if (cures.empty()) {
    message +=
        "\nno setting of memory alone makes it fit: use more ranks on more hosts, or a smaller "
        "model";
  }
  throw MemoryError(message);
}

}  // namespace fsdp
