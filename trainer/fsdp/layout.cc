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
    if (!segments[i].is_block || policy.policy == AutoWrap::kNone) {
      open = false;
      continue;
    }
    if (!open) {
      ++last;
      gathered = 0;
    }
    unit[i] = last;
    gathered += NumParameters(segments[i]);
    open = policy.policy == AutoWrap::kSize && gathered < policy.min_num_params;
  }
  return unit;
}

}  // namespace

int64_t Layout::NumParameters() const {
  int64_t n = 0;
  for (const UnitLayout& unit : units) {
    for (const Placement& p : unit.parameters) n += p.size();
  }
  return n;
}

int64_t Layout::MaxUnitSize() const {
  int64_t n = 0;
  for (size_t u = 1; u < units.size(); ++u) n = std::max(n, units[u].size);
  return n;
}

Layout MakeLayout(const std::vector<SegmentShape>& segments, const WrapPolicy& policy, int shards) {
  if (shards < 1) {
    throw std::invalid_argument("[MakeLayout] " + std::to_string(shards) + " shards, want >= 1");
  }
  Layout layout;
  layout.shards = shards;
  layout.unit_of_segment = Wrap(segments, policy);
  layout.units.push_back({"root", {}, 0, 0});
  std::set<std::string> names;
  for (size_t i = 0; i < segments.size(); ++i) {
    const size_t u = layout.unit_of_segment[i];
    if (u == layout.units.size()) layout.units.push_back({segments[i].name, {}, 0, 0});
    UnitLayout& unit = layout.units[u];
    for (const ParameterShape& p : segments[i].parameters) {
      if (!names.insert(p.name).second) {
        throw std::invalid_argument("[MakeLayout] parameter " + p.name + " occurs twice");
      }
      const int64_t offset = RoundUp(unit.size, kParameterAlignment);
      unit.parameters.push_back({p.name, p.shape, offset});
      unit.size = offset + p.shape.NumElements();
    }
  }
  for (UnitLayout& unit : layout.units) {
    unit.size = RoundUp(unit.size, kShardAlignment * shards);
    unit.shard_size = unit.size / shards;
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
