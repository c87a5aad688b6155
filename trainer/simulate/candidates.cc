#include "trainer/simulate/candidates.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>

#include "trainer/core/json.h"

namespace fsdp {
namespace {

using Values = std::vector<std::string>;
using Settings = Candidates::Settings;

template <typename T>
std::string OrNull(const std::optional<T>& value) {
  return value ? std::to_string(*value) : "null";
}

std::string Text(bool value) { return value ? "true" : "false"; }

// Into kAxes.
enum : size_t {
  kStrategy,
  kShards,
  kReshard,
  kMicroBatch,
  kRecomputation,
  kActivations,
  kOptimizer,
  kParams,
  kShare,
  kSpill,
  kAccumulation,
  kWork,  // These change what a step computes and moves. Those behind change when, and slots.
  kGathers = kWork,
  kReductions,
  kBackward,
  kForward,
};

// A setting that a search changes. Axes come in an order in which each looks at those before it.
struct Axis {
  const char* key;
  std::string (*own)(const Recipe& recipe);
  // `chosen` has values of the axes before this one, and the recipe's own of all others. The
  // recipe's own value may be among those returned or not.
  Values (*values)(const SearchSpace& space, const Settings& chosen);
};

bool Is(const Settings& chosen, size_t axis, std::string_view value) {
  return chosen[axis] == value;
}

bool Offloads(const SearchSpace& space) {
  const Hardware& hardware = space.hardware;
  return space.recipe.fsdp.buffers == FsdpOptions::Buffers::kSlots &&
         hardware.device == Hardware::Device::kCuda && hardware.host_link_bytes_per_s &&
         hardware.host_copy_bytes_per_s;
}

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
  if (space.world == 1) return {chosen[kStrategy]};
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
  const std::string& shards = chosen[kShards];
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
  if (space.normalizes || batch % space.world != 0) return {chosen[kMicroBatch]};
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
  if (!Offloads(space)) return {chosen[kActivations]};
  return {"none", "host"};
}

Values OptimizerPlaces(const SearchSpace& space, const Settings& chosen) {
  if (!Offloads(space)) return {chosen[kOptimizer]};
  return {"false", "true"};
}

Values ParameterPlaces(const SearchSpace& space, const Settings& chosen) {
  if (!Is(chosen, kOptimizer, "true")) return {"false"};
  if (!Offloads(space)) return {chosen[kParams]};
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
  const int64_t wave = std::stoll(chosen[kMicroBatch]) * space.world;
  if (space.world == 1 || space.recipe.train.global_batch_size <= wave) return {"sharded"};
  return {"sharded", "unsharded"};
}

Values With(int64_t own, Values values) {
  const std::string text = std::to_string(own);
  if (std::find(values.begin(), values.end(), text) == values.end()) values.push_back(text);
  return values;
}

Values GatherSlots(const SearchSpace& space, const Settings& chosen) {
  if (!Gathers(space, chosen)) return {chosen[kGathers]};
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

constexpr std::array<Axis, Candidates::kNumAxes> kAxes = {{
    {"fsdp.sharding_strategy",
     [](const Recipe& r) { return std::string(Name(r.fsdp.sharding_strategy)); }, Strategies},
    {"fsdp.shard_size", [](const Recipe& r) { return OrNull(r.fsdp.shard_size); }, ShardSizes},
    {"fsdp.reshard_after_forward",
     [](const Recipe& r) { return OrNull(r.fsdp.reshard_after_forward); }, Reshardings},
    {"train.micro_batch_size",
     [](const Recipe& r) { return std::to_string(r.train.micro_batch_size); }, MicroBatches},
    {"train.activation_checkpointing",
     [](const Recipe& r) { return std::string(Name(r.train.activation_checkpointing)); },
     Recomputations},
    {"train.activation_offload",
     [](const Recipe& r) { return std::string(Name(r.train.activation_offload)); },
     ActivationPlaces},
    {"fsdp.cpu_offload.optimizer",
     [](const Recipe& r) { return Text(r.fsdp.cpu_offload.optimizer); }, OptimizerPlaces},
    {"fsdp.cpu_offload.params", [](const Recipe& r) { return Text(r.fsdp.cpu_offload.params); },
     ParameterPlaces},
    {"fsdp.cpu_offload.optimizer_share", OwnShare, Shares},
    {"fsdp.cpu_offload.spill", OwnSpill, Spills},
    {"fsdp.gradient_accumulation",
     [](const Recipe& r) { return std::string(Name(r.fsdp.gradient_accumulation)); },
     Accumulations},
    {"fsdp.limit_all_gathers",
     [](const Recipe& r) { return std::to_string(r.fsdp.limit_all_gathers); }, GatherSlots},
    {"fsdp.reduce_buffers", [](const Recipe& r) { return std::to_string(r.fsdp.reduce_buffers); },
     GradientSlots},
    {"fsdp.backward_prefetch",
     [](const Recipe& r) { return std::string(Name(r.fsdp.backward_prefetch)); },
     BackwardPrefetches},
    {"fsdp.forward_prefetch", [](const Recipe& r) { return Text(r.fsdp.forward_prefetch); },
     ForwardPrefetches},
}};

size_t AxisNamed(std::string_view key) {
  const auto* const found =
      std::find_if(kAxes.begin(), kAxes.end(), [&](const Axis& axis) { return axis.key == key; });
  return static_cast<size_t>(found - kAxes.begin());
}

}  // namespace

Candidates::Candidates(SearchSpace space) : space_(std::move(space)) {
  for (size_t axis = 0; axis < kNumAxes; ++axis) own_[axis] = kAxes[axis].own(space_.recipe);
  // A unit that is gathered in fewer bits is made anew by each gather.
  const bool one_each = space_.recipe.fsdp.quantize.gather != FsdpOptions::Quantize::Gather::kNone;
  order_ = one_each ? kNumAxes : size_t{kWork};
  std::vector<Settings> works;
  Settings chosen = own_;
  Descend(0, order_, chosen, works);
  // The recipe itself goes first, and its group with it.
  const auto same = [&](const Settings& work) { return SameWork(work, own_); };
  const auto itself = std::find_if(works.begin(), works.end(), same);
  if (itself == works.end()) {
    works.insert(works.begin(), own_);
    alone_ = true;
  } else {
    std::rotate(works.begin(), itself, itself + 1);
  }
  for (Settings& work : works) {
    groups_.push_back({.first = size_, .work = std::move(work)});
    size_ += MembersOf(groups_.size() - 1).size();
  }
}

// Values of the axes from `axis` to `end`, in each combination; the recipe's own values first.
void Candidates::Descend(size_t axis, size_t end, Settings& chosen,
                         std::vector<Settings>& found) const {
  if (axis == end) {
    found.push_back(chosen);
    return;
  }
  Values values = kAxes[axis].values(space_, chosen);
  const auto own = std::find(values.begin(), values.end(), own_[axis]);
  if (own != values.end()) std::rotate(values.begin(), own, own + 1);
  for (const std::string& value : values) {
    chosen[axis] = value;
    Descend(axis + 1, end, chosen, found);
  }
  chosen[axis] = own_[axis];
}

bool Candidates::SameWork(const Settings& a, const Settings& b) const {
  return std::equal(a.begin(), a.begin() + static_cast<std::ptrdiff_t>(order_), b.begin());
}

std::vector<Settings> Candidates::MembersOf(size_t group) const {
  std::vector<Settings> members;
  if (group == 0 && alone_) return {own_};
  Settings chosen = groups_[group].work;
  Descend(order_, kNumAxes, chosen, members);
  if (group > 0) return members;
  const auto itself = std::find(members.begin(), members.end(), own_);
  if (itself == members.end()) {
    members.insert(members.begin(), own_);
  } else {
    std::rotate(members.begin(), itself, itself + 1);
  }
  return members;
}

size_t Candidates::GroupOf(size_t candidate) const {
  const auto behind =
      std::upper_bound(groups_.begin(), groups_.end(), candidate,
                       [](size_t index, const Group& group) { return index < group.first; });
  return static_cast<size_t>(behind - groups_.begin()) - 1;
}

size_t Candidates::EndOf(size_t group) const {
  return group + 1 < groups_.size() ? groups_[group + 1].first : size_;
}

size_t Candidates::LeastOf(size_t group) const {
  const std::vector<Settings> members = MembersOf(group);
  const auto slots = [](const Settings& one) {
    return std::stoll(one[kGathers]) + std::stoll(one[kReductions]);
  };
  const auto least =
      std::min_element(members.begin(), members.end(),
                       [&](const Settings& a, const Settings& b) { return slots(a) < slots(b); });
  return FirstOf(group) + static_cast<size_t>(least - members.begin());
}

int Candidates::ChangesOf(size_t group) const {
  const Settings& work = groups_[group].work;
  const auto differs = [&](size_t axis) { return work[axis] != own_[axis]; };
  return differs(kRecomputation) + differs(kActivations) +
         (differs(kOptimizer) || differs(kParams));
}

std::vector<std::string> Candidates::Overrides(size_t candidate) const {
  const size_t group = GroupOf(candidate);
  const Settings chosen = MembersOf(group)[candidate - FirstOf(group)];
  std::vector<std::string> overrides;
  for (size_t axis = 0; axis < kNumAxes; ++axis) {
    if (chosen[axis] != own_[axis]) overrides.push_back(kAxes[axis].key + ("=" + chosen[axis]));
  }
  return overrides;
}

std::optional<size_t> Candidates::Find(const std::vector<std::string>& overrides) const {
  Settings wanted = own_;
  for (const std::string& one : overrides) {
    const size_t equals = one.find('='), axis = AxisNamed(one.substr(0, equals));
    if (axis == kNumAxes) return std::nullopt;
    wanted[axis] = one.substr(equals + 1);
  }
  for (size_t group = 0; group < groups_.size(); ++group) {
    if (!SameWork(groups_[group].work, wanted)) continue;
    const std::vector<Settings> members = MembersOf(group);
    const auto found = std::find(members.begin(), members.end(), wanted);
    if (found == members.end()) continue;
    return FirstOf(group) + static_cast<size_t>(found - members.begin());
  }
  return std::nullopt;
}

}  // namespace fsdp
