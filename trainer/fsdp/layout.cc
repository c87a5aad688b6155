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

// The unit of each segment: 0 is the root, the others count up in forward order.
std::vector<int> Wrap(const std::vector<SegmentShape>& segments, const WrapPolicy& policy) {
  std::vector<int> unit(segments.size(), 0);
  int last = 0;
  int64_t gathered = 0;  // Parameters of unit `last`.
  bool open = false;     // Whether the next block joins unit `last`.
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
    unit[i] = last;
    gathered += NumParameters(segments[i]);
    open = !own && policy.policy == AutoWrap::kSize && gathered < policy.min_num_params;
  }
  return unit;
}

}  // namespace

int64_t Layout::NumParameters() const {
  int64_t n = 0;
  for (const FlatParameter& flat : flat_parameters) {
    for (const Placement& p : flat.parameters) n += p.size();
  }
  return n;
}

int64_t Layout::UnitSize(int unit, bool trainable_only) const {
  int64_t n = 0;
  for (const int f : units[unit].flat_parameters) {
    if (!trainable_only || !flat_parameters[f].frozen) n += flat_parameters[f].size;
  }
  return n;
}

int64_t Layout::MaxUnitSize(bool trainable_only) const {
  int64_t n = 0;
  for (int u = 1; u < static_cast<int>(units.size()); ++u) {
    n = std::max(n, UnitSize(u, trainable_only));
  }
  return n;
}

int Layout::TrainableFlatParameter(int unit) const {
  const int first = units[unit].flat_parameters.front();
  return flat_parameters[first].frozen ? -1 : first;
}

Layout MakeLayout(const std::vector<SegmentShape>& segments, const WrapPolicy& policy, int shards) {
  if (shards < 1) {
    throw std::invalid_argument("[MakeLayout] " + std::to_string(shards) + " shards, want >= 1");
  }
  Layout layout;
  layout.shards = shards;
  layout.unit_of_segment = Wrap(segments, policy);

  struct Parts {
    FlatParameter trainable, frozen;
  };
  std::vector<Parts> parts;
  std::set<std::string> names;
  for (size_t i = 0; i < segments.size(); ++i) {
    const size_t unit = layout.unit_of_segment[i];
    for (size_t u = parts.size(); u <= unit; ++u) {
      const std::string name = u == 0 ? "root" : segments[i].name;
      parts.push_back({{.name = name}, {.name = name + ".frozen", .frozen = true}});
    }
    for (const ParameterShape& p : segments[i].parameters) {
      if (!names.insert(p.name).second) {
        throw std::invalid_argument("[MakeLayout] parameter " + p.name + " occurs twice");
      }
      FlatParameter& flat = p.frozen ? parts[unit].frozen : parts[unit].trainable;
      const int64_t offset = RoundUp(flat.size, kParameterAlignment);
      flat.parameters.push_back({p.name, p.shape, offset});
      flat.size = offset + p.shape.NumElements();
    }
  }
  for (Parts& unit : parts) {
    layout.units.emplace_back();
    const bool all_frozen = unit.trainable.parameters.empty() && !unit.frozen.parameters.empty();
    for (FlatParameter* flat : {&unit.trainable, &unit.frozen}) {
      if (flat->parameters.empty() && (flat->frozen || all_frozen)) continue;
      flat->size = RoundUp(flat->size, kShardAlignment * shards);
      flat->shard_size = flat->size / shards;
      layout.units.back().flat_parameters.push_back(
          static_cast<int>(layout.flat_parameters.size()));
      layout.flat_parameters.push_back(std::move(*flat));
    }
  }
  return layout;
}

std::vector<Piece> PiecesOfShard(const FlatParameter& flat, int shard) {
  const int64_t begin = flat.ShardBegin(shard), end = begin + flat.shard_size;
  std::vector<Piece> pieces;
  for (const Placement& p : flat.parameters) {
    const int64_t from = std::max(begin, p.offset), to = std::min(end, p.offset + p.size());
    if (from < to) pieces.push_back({&p, from - p.offset, to - from, from - begin});
  }
  return pieces;
}

}  // namespace fsdp
