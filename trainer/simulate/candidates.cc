#include "trainer/simulate/candidates.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <utility>

#include "trainer/core/json.h"

namespace fsdp {
namespace {

using Values = std::vector<std::string>;
using Settings = std::map<std::string, std::string, std::less<>>;  // Values by key.

template <typename T>
std::string OrNull(const std::optional<T>& value) {
  return value ? std::to_string(*value) : "null";
}

std::string Text(bool value) { return value ? "true" : "false"; }

// A setting that a search changes. Axes come in an order in which each looks at those before it.
struct Axis {
  const char* key;
  // Whether it changes what a step computes and moves. The others come last.
  bool work;
  std::string (*own)(const Recipe& recipe);
  // `chosen` has values of the axes before this one, and the recipe's own of all others. The
  // recipe's own value may be among those returned or not.
  Values (*values)(const SearchSpace& space, const Settings& chosen);
};

bool Is(const Settings& chosen, std::string_view key, std::string_view value) {
  return chosen.find(key)->second == value;
}

bool Offloads(const SearchSpace& space) {
  const Hardware& hardware = space.hardware;
  return space.recipe.fsdp.buffers == FsdpOptions::Buffers::kSlots &&
         hardware.device == Hardware::Device::kCuda && hardware.host_link_bytes_per_s &&
         hardware.host_copy_bytes_per_s;
}

constexpr char kStrategy[] = "fsdp.sharding_strategy", kShards[] = "fsdp.shard_size",
               kMicroBatch[] = "train.micro_batch_size",
               kActivations[] = "train.activation_offload",
               kOptimizer[] = "fsdp.cpu_offload.optimizer", kParams[] = "fsdp.cpu_offload.params",
               kGathers[] = "fsdp.limit_all_gathers";

bool IsHybrid(const Settings& chosen) {
  return Is(chosen, kStrategy, "hybrid_shard") || Is(chosen, kStrategy, "hybrid_shard_grad_op");
}

// Whether parameters are freed after forward, and gathered again in backward.
bool Reshards(const Settings& chosen) {
  return Is(chosen, kStrategy, "full_shard") || Is(chosen, kStrategy, "hybrid_shard");
}

bool Gathers(const SearchSpace& space, const Settings& chosen) {
  return Is(chosen, kParams, "true") || (space.world > 1 && !Is(chosen, kStrategy, "no_shard"));
}

std::vector<int64_t> InnerDivisors(int64_t n) {
  std::vector<int64_t> divisors;
  for (int64_t d = 2; d < n; ++d) {
    if (n % d == 0) divisors.push_back(d);
  }
  return divisors;
}

Values Strategies(const SearchSpace& space, const Settings& chosen) {
  if (space.world == 1) return {chosen.at(kStrategy)};
  Values values = {"full_shard", "shard_grad_op", "no_shard"};
  if (!InnerDivisors(space.world).empty()) {
    values.insert(values.end(), {"hybrid_shard", "hybrid_shard_grad_op"});
  }
  return values;
}

Values ShardSizes(const SearchSpace& space, const Settings& chosen) {
  if (!IsHybrid(chosen)) return {"null"};
  Values values;
  for (const int64_t size : InnerDivisors(space.world)) values.push_back(std::to_string(size));
  return values;
}

// Where a copy is of several hosts, backward can gather inside of one.
Values Reshardings(const SearchSpace& space, const Settings& chosen) {
  if (!Reshards(chosen)) return {"null"};
  const std::string& shards = chosen.at(kShards);
  const int64_t size = shards != "null"   ? std::stoll(shards)
                       : IsHybrid(chosen) ? space.local_world
                                          : space.world;
  Values values = {"null"};
  if (space.local_world > 1 && size > space.local_world && size % space.local_world == 0) {
    values.push_back(std::to_string(space.local_world));
  }
  return values;
}

// Those that fill the global batch.
Values MicroBatches(const SearchSpace& space, const Settings& chosen) {
  const int64_t batch = space.recipe.train.global_batch_size;
  if (space.normalizes || batch % space.world != 0) return {chosen.at(kMicroBatch)};
  const int64_t samples = batch / space.world;
  Values small, large;
  for (int64_t size = 1; size * size <= samples; ++size) {
    if (samples % size != 0) continue;
    small.push_back(std::to_string(size));
    if (size * size < samples) large.push_back(std::to_string(samples / size));
  }
  small.insert(small.end(), large.rbegin(), large.rend());
  return small;
}

Values Recomputations(const SearchSpace&, const Settings&) { return {"none", "selective", "full"}; }

Values ActivationPlaces(const SearchSpace& space, const Settings& chosen) {
  if (!Offloads(space)) return {chosen.at(kActivations)};
  return {"none", "host"};
}

Values OptimizerPlaces(const SearchSpace& space, const Settings& chosen) {
  if (!Offloads(space)) return {chosen.at(kOptimizer)};
  return {"false", "true"};
}

Values ParameterPlaces(const SearchSpace& space, const Settings& chosen) {
  if (!Is(chosen, kOptimizer, "true")) return {"false"};
  if (!Offloads(space)) return {chosen.at(kParams)};
  return {"false", "true"};
}

std::string OwnShare(const Recipe& recipe) {
  return JsonNumber(recipe.fsdp.cpu_offload.optimizer_share);
}

Values Shares(const SearchSpace& space, const Settings& chosen) {
  return {Is(chosen, kOptimizer, "true") ? OwnShare(space.recipe) : JsonNumber(0)};
}

std::string OwnSpill(const Recipe& recipe) {
  const std::optional<std::string>& spill = recipe.fsdp.cpu_offload.spill;
  return spill ? JsonString(*spill) : "null";
}

Values Spills(const SearchSpace& space, const Settings& chosen) {
  const bool used = Is(chosen, kOptimizer, "true") || Is(chosen, kActivations, "spill");
  return {used ? OwnSpill(space.recipe) : "null"};
}

Values Accumulations(const SearchSpace& space, const Settings& chosen) {
  const int64_t wave = std::stoll(chosen.at(kMicroBatch)) * space.world;
  if (space.world == 1 || space.recipe.train.global_batch_size <= wave) return {"sharded"};
  return {"sharded", "unsharded"};
}

Values With(int64_t own, Values values) {
  const std::string text = std::to_string(own);
  if (std::find(values.begin(), values.end(), text) == values.end()) values.push_back(text);
  return values;
}

Values GatherSlots(const SearchSpace& space, const Settings& chosen) {
  if (!Gathers(space, chosen)) return {chosen.at(kGathers)};
  return With(space.recipe.fsdp.limit_all_gathers, {"1", "2", "3"});
}

Values GradientSlots(const SearchSpace& space, const Settings&) {
  const int64_t own = space.recipe.fsdp.reduce_buffers;
  if (space.world == 1) return {std::to_string(own)};
  return With(own, {"1", "2"});
}

// One slot is no prefetch, whatever is asked for.
Values BackwardPrefetches(const SearchSpace& space, const Settings& chosen) {
  const bool can = Gathers(space, chosen) && Reshards(chosen) && !Is(chosen, kGathers, "1");
  if (!can) return {std::string(Name(space.recipe.fsdp.backward_prefetch))};
  return {"pre", "none"};
}

Values ForwardPrefetches(const SearchSpace& space, const Settings& chosen) {
  const bool can = Gathers(space, chosen) && !Is(chosen, kGathers, "1");
  if (!can) return {Text(space.recipe.fsdp.forward_prefetch)};
  return {"true", "false"};
}

constexpr Axis kAxes[] = {
    {kStrategy, true, [](const Recipe& r) { return std::string(Name(r.fsdp.sharding_strategy)); },
     Strategies},
    {kShards, true, [](const Recipe& r) { return OrNull(r.fsdp.shard_size); }, ShardSizes},
    {"fsdp.reshard_after_forward", true,
     [](const Recipe& r) { return OrNull(r.fsdp.reshard_after_forward); }, Reshardings},
    {kMicroBatch, true, [](const Recipe& r) { return std::to_string(r.train.micro_batch_size); },
     MicroBatches},
    {"train.activation_checkpointing", true,
     [](const Recipe& r) { return std::string(Name(r.train.activation_checkpointing)); },
     Recomputations},
    {kActivations, true,
     [](const Recipe& r) { return std::string(Name(r.train.activation_offload)); },
     ActivationPlaces},
    {kOptimizer, true, [](const Recipe& r) { return Text(r.fsdp.cpu_offload.optimizer); },
     OptimizerPlaces},
    {kParams, true, [](const Recipe& r) { return Text(r.fsdp.cpu_offload.params); },
     ParameterPlaces},
    {"fsdp.cpu_offload.optimizer_share", true, OwnShare, Shares},
    {"fsdp.cpu_offload.spill", true, OwnSpill, Spills},
    {"fsdp.gradient_accumulation", true,
     [](const Recipe& r) { return std::string(Name(r.fsdp.gradient_accumulation)); },
     Accumulations},
    {kGathers, false, [](const Recipe& r) { return std::to_string(r.fsdp.limit_all_gathers); },
     GatherSlots},
    {"fsdp.reduce_buffers", false,
     [](const Recipe& r) { return std::to_string(r.fsdp.reduce_buffers); }, GradientSlots},
    {"fsdp.backward_prefetch", false,
     [](const Recipe& r) { return std::string(Name(r.fsdp.backward_prefetch)); },
     BackwardPrefetches},
    {"fsdp.forward_prefetch", false, [](const Recipe& r) { return Text(r.fsdp.forward_prefetch); },
     ForwardPrefetches},
};

class Enumeration {
 public:
  explicit Enumeration(const SearchSpace& space) : space_(space) {
    for (const Axis& axis : kAxes) own_[axis.key] = axis.own(space.recipe);
    // A unit that is gathered in fewer bits is made anew by each gather.
    one_each_ = space.recipe.fsdp.quantize.gather != FsdpOptions::Quantize::Gather::kNone;
  }

  std::vector<Candidate> All() {
    chosen_ = own_;
    Descend(std::begin(kAxes));
    // The recipe itself goes first, and its group with it.
    const auto itself = std::find_if(found_.begin(), found_.end(), [](const Candidate& candidate) {
      return candidate.overrides.empty();
    });
    if (itself == found_.end()) {
      for (Candidate& candidate : found_) ++candidate.group;
      found_.insert(found_.begin(), Candidate{});
    } else {
      std::rotate(found_.begin(), itself, itself + 1);
      Number();
    }
    return std::move(found_);
  }

 private:
  // The recipe's own value first.
  Values ValuesOf(const Axis& axis) const {
    Values values = axis.values(space_, chosen_);
    const auto own = std::find(values.begin(), values.end(), own_.find(axis.key)->second);
    if (own != values.end()) std::rotate(values.begin(), own, own + 1);
    return values;
  }

  void Descend(const Axis* axis) {
    if (axis == std::end(kAxes)) return Add();
    const bool begins = !axis->work && (axis == std::begin(kAxes) || (axis - 1)->work);
    if (begins) ++groups_;
    for (const std::string& value : ValuesOf(*axis)) {
      chosen_[axis->key] = value;
      Descend(axis + 1);
    }
    chosen_[axis->key] = own_[axis->key];
  }

  void Add() {
    Candidate candidate;
    for (const Axis& axis : kAxes) {
      const std::string& value = chosen_[axis.key];
      if (value != own_[axis.key]) candidate.overrides.push_back(axis.key + ("=" + value));
    }
    candidate.group = one_each_ ? found_.size() : groups_ - 1;
    found_.push_back(std::move(candidate));
  }

  // Groups by the order in which candidates come to them.
  void Number() {
    std::map<size_t, size_t> numbers;
    for (Candidate& candidate : found_) {
      candidate.group = numbers.try_emplace(candidate.group, numbers.size()).first->second;
    }
  }

  const SearchSpace& space_;
  Settings own_, chosen_;
  bool one_each_ = false;
  size_t groups_ = 0;
  std::vector<Candidate> found_;
};

}  // namespace

std::vector<Candidate> CandidatesOf(const SearchSpace& space) { return Enumeration(space).All(); }

}  // namespace fsdp
