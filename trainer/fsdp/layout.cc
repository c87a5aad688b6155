#include "trainer/fsdp/layout.h"

#include <algorithm>
#include <set>
#include <stdexcept>

namespace fsdp {
namespace {

int64_t RoundUp(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

int64_t NumParameters(const SegmentShape& segment) {
  int64_t n = 0;
  for (const ParameterShape& p : segment.parameters) n += p.shape.NumElements();
  return n;
}

// The group of each segment: 0 is the root, the others count up in forward order.
std::vector<int> Wrap(const std::vector<SegmentShape>& segments, const WrapPolicy& policy) {
  std::vector<int> group(segments.size(), 0);
  int last = 0;
  int64_t gathered = 0;  // Parameters of group `last`.
  bool open = false;     // Whether the next block joins group `last`.
  for (size_t i = 0; i < segments.size(); ++i) {
    const bool block = segments[i].is_block, own = segments[i].own_unit;
    if (!(block || own) || policy.policy == AutoWrap::kNone) {
      open = false;
      continue;
    }
    if (!open || own) {
      ++last;
      gathered = 0;
    }
    group[i] = last;
    gathered += NumParameters(segments[i]);
    open = !own && policy.policy == AutoWrap::kSize && gathered < policy.min_num_params;
  }
  return group;
}

}  // namespace

int64_t Layout::NumParameters() const {
  int64_t n = 0;
  for (const UnitLayout& unit : units) {
    for (const Placement& p : unit.parameters) n += p.size();
  }
  return n;
}

int64_t Layout::GroupSize(int group, bool trainable_only) const {
  int64_t n = 0;
  for (const int u : groups[group].units) {
    if (!trainable_only || !units[u].frozen) n += units[u].size;
  }
  return n;
}

int64_t Layout::MaxGroupSize(bool trainable_only) const {
  int64_t n = 0;
  for (int g = 1; g < static_cast<int>(groups.size()); ++g) {
    n = std::max(n, GroupSize(g, trainable_only));
  }
  return n;
}

int Layout::TrainableUnit(int group) const {
  const int first = groups[group].units.front();
  return units[first].frozen ? -1 : first;
}

Layout MakeLayout(const std::vector<SegmentShape>& segments, const WrapPolicy& policy, int shards) {
  if (shards < 1) {
    throw std::invalid_argument("[MakeLayout] " + std::to_string(shards) + " shards, want >= 1");
  }
  Layout layout;
  layout.shards = shards;
  layout.group_of_segment = Wrap(segments, policy);

  struct Parts {
    UnitLayout trainable, frozen;
  };
  std::vector<Parts> parts;
  std::set<std::string> names;
  for (size_t i = 0; i < segments.size(); ++i) {
    const size_t group = layout.group_of_segment[i];
    for (size_t g = parts.size(); g <= group; ++g) {
      const std::string name = g == 0 ? "root" : segments[i].name;
      parts.push_back({{.name = name}, {.name = name + ".frozen", .frozen = true}});
    }
    for (const ParameterShape& p : segments[i].parameters) {
      if (!names.insert(p.name).second) {
        throw std::invalid_argument("[MakeLayout] parameter " + p.name + " occurs twice");
      }
      UnitLayout& unit = p.frozen ? parts[group].frozen : parts[group].trainable;
      const int64_t offset = RoundUp(unit.size, kParameterAlignment);
      unit.parameters.push_back({p.name, p.shape, offset});
      unit.size = offset + p.shape.NumElements();
    }
  }
  for (Parts& group : parts) {
    layout.groups.emplace_back();
    const bool all_frozen = group.trainable.parameters.empty() && !group.frozen.parameters.empty();
    for (UnitLayout* unit : {&group.trainable, &group.frozen}) {
      if (unit->parameters.empty() && (unit->frozen || all_frozen)) continue;
      unit->size = RoundUp(unit->size, kShardAlignment * shards);
      unit->shard_size = unit->size / shards;
      layout.groups.back().units.push_back(static_cast<int>(layout.units.size()));
      layout.units.push_back(std::move(*unit));
    }
  }
  return layout;
}

std::vector<Piece> PiecesOfShard(const UnitLayout& unit, int shard) {
  const int64_t begin = unit.ShardBegin(shard), end = begin + unit.shard_size;
  std::vector<Piece> pieces;
  for (const Placement& p : unit.parameters) {
    const int64_t from = std::max(begin, p.offset), to = std::min(end, p.offset + p.size());
    if (from < to) pieces.push_back({&p, from - p.offset, to - from, from - begin});
  }
  return pieces;
}

}  // namespace fsdp
