#include "trainer/fsdp/layout.h"

#include <algorithm>
#include <set>
#include <stdexcept>

#include "trainer/core/round_up.h"
#include "trainer/ops/weight_codes.h"

namespace fsdp {
namespace {

int64_t NumParameters(const SegmentShape& segment) {
  int64_t n = 0;
  for (const ParameterShape& p : segment.parameters) n += p.shared ? 0 : p.shape.NumElements();
  return n;
}

// The unit of each segment: 0 is the root, the others count up in forward order. Parameters that
// segments in the middle share are needed from the first segment to the last, and back: they belong
// to the root.
std::vector<int> Wrap(const std::vector<SegmentShape>& segments, const WrapPolicy& policy) {
  std::vector<int> unit(segments.size(), 0);
  int last = 0;
  int64_t gathered = 0;  // Parameters of unit `last`.
  bool open = false;     // Whether the next block joins unit `last`.
  const bool shares = std::ranges::any_of(segments, [](const SegmentShape& segment) {
    return std::ranges::any_of(segment.parameters, &ParameterShape::shared);
  });
  for (size_t i = 0; i < segments.size(); ++i) {
    const bool block = segments[i].is_block;
    const bool own = segments[i].own_unit && policy.outside == WrapPolicy::Outside::kUnits;
    const bool holds = shares && (i == 0 || i + 1 == segments.size());
    if (!(block || own) || holds || policy.policy == AutoWrap::kNone) {
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

int64_t Bytes(const Layout& layout, std::span<const int> flats, DType DTypes::*dtype) {
  int64_t bytes = 0;
  for (const int f : flats) {
    const FlatParameter& flat = layout.flat_parameters[f];
    bytes += flat.size * SizeOf(flat.dtypes.*dtype);
  }
  return bytes;
}

// Where a parameter begins behind so many elements. No shard cuts a matrix's blocks: they end at
// multiples of a shard's alignment.
int64_t OffsetOf(const ParameterShape& p, int64_t behind) {
  if (p.dtypes.code != WeightCode::kNone) return behind;  // Whole records precede it.
  const bool coded = p.dtypes.state == DType::kUInt8;
  const bool in_blocks = coded || (p.dtypes.quantized && p.shape.rank() > 1);
  return RoundUp(behind, in_blocks ? kShardAlignment : kParameterAlignment);
}

// The one for `dtypes` of a kind; made where there is none yet.
FlatParameter& FlatFor(std::vector<FlatParameter>& kind, const std::string& name, bool frozen,
                       const DTypes& dtypes) {
  const auto of = std::find_if(kind.begin(), kind.end(),
                               [&](const FlatParameter& flat) { return flat.dtypes == dtypes; });
  if (of != kind.end()) return *of;
  const std::string number = kind.empty() ? "" : "." + std::to_string(kind.size() + 1);
  kind.push_back(
      {.name = name + (frozen ? ".frozen" : "") + number, .frozen = frozen, .dtypes = dtypes});
  return kind.back();
}

}  // namespace

int64_t ShardAlignment(const DTypes& dtypes) {
  return dtypes.code == WeightCode::kNone ? kShardAlignment : RecordBytes(dtypes.code);
}

int64_t Layout::NumParameters() const {
  int64_t n = 0;
  for (const FlatParameter& flat : flat_parameters) {
    for (const Placement& p : flat.parameters) n += p.parameters();
  }
  return n;
}

int64_t Layout::NumTrained() const {
  int64_t n = 0;
  for (const FlatParameter& flat : flat_parameters) {
    if (flat.frozen) continue;
    for (const Placement& p : flat.parameters) n += p.size();
  }
  return n;
}

std::span<const int> Layout::TrainableFlatParameters(int unit) const {
  return {units[unit].flat_parameters.data(), static_cast<size_t>(units[unit].trainable)};
}

int64_t Layout::GatheredBytes(int unit) const {
  return Bytes(*this, units[unit].flat_parameters, &DTypes::compute);
}

int64_t Layout::GradientBytes(int unit) const {
  return Bytes(*this, TrainableFlatParameters(unit), &DTypes::grad);
}

Layout MakeLayout(const std::vector<SegmentShape>& segments, const WrapPolicy& policy, int shards) {
  if (shards < 1) {
    throw std::invalid_argument("[MakeLayout] " + std::to_string(shards) + " shards, want >= 1");
  }
  Layout layout;
  layout.shards = shards;
  layout.unit_of_segment = Wrap(segments, policy);
  for (const SegmentShape& segment : segments) layout.reads_root.push_back(segment.reads_shared);

  struct Parts {
    std::string name;
    std::vector<FlatParameter> trainable, frozen;
  };
  std::vector<Parts> parts;
  std::set<std::string> names;
  for (size_t i = 0; i < segments.size(); ++i) {
    const size_t unit = layout.unit_of_segment[i];
    for (size_t u = parts.size(); u <= unit; ++u) {
      parts.push_back({u == 0 ? "root" : segments[i].name, {}, {}});
    }
    for (const ParameterShape& p : segments[i].parameters) {
      if (!names.insert(p.name).second) {
        throw std::invalid_argument("[MakeLayout] parameter " + p.name + " occurs twice");
      }
      Parts& of = parts[p.shared ? 0 : unit];
      FlatParameter& flat =
          FlatFor(p.frozen ? of.frozen : of.trainable, of.name, p.frozen, p.dtypes);
      const int64_t offset = OffsetOf(p, flat.size);
      flat.parameters.push_back({p.name, p.shape, offset, p.coded_bytes});
      flat.size = offset + flat.parameters.back().size();
    }
  }
  for (Parts& part : parts) {
    // A unit without parameters has an empty flat parameter.
    if (part.trainable.empty() && part.frozen.empty()) {
      FlatFor(part.trainable, part.name, /*frozen=*/false, {});
    }
    Unit& unit = layout.units.emplace_back();
    unit.trainable = static_cast<int>(part.trainable.size());
    for (std::vector<FlatParameter>* kind : {&part.trainable, &part.frozen}) {
      for (FlatParameter& flat : *kind) {
        flat.size = RoundUp(flat.size, ShardAlignment(flat.dtypes) * shards);
        flat.shard_size = flat.size / shards;
        unit.flat_parameters.push_back(static_cast<int>(layout.flat_parameters.size()));
        layout.flat_parameters.push_back(std::move(flat));
      }
    }
  }
  if (std::ranges::any_of(layout.flat_parameters, &FlatParameter::HasRecords)) {
    for (FlatParameter& flat : layout.flat_parameters) flat.of_base = flat.frozen;
  }
  return layout;
}

std::vector<Piece> PiecesOfShard(const FlatParameter& flat, int shard) {
  const int64_t begin = flat.ShardBegin(shard);
  return PiecesBetween(flat, begin, begin + flat.shard_size);
}

std::vector<Piece> PiecesBetween(const FlatParameter& flat, int64_t begin, int64_t end) {
  std::vector<Piece> pieces;
  for (const Placement& p : flat.parameters) {
    const int64_t from = std::max(begin, p.offset), to = std::min(end, p.offset + p.size());
    if (from < to) pieces.push_back({&p, from - p.offset, to - from, from - begin});
  }
  return pieces;
}

std::vector<ShardPart> Parts(int flat, int64_t shard_size, int64_t elements) {
  std::vector<ShardPart> parts;
  for (int64_t begin = 0; begin < shard_size; begin += elements) {
    parts.push_back({flat, begin, std::min(elements, shard_size - begin)});
  }
  return parts;
}

std::vector<ShardPart> PartsOfUnit(const Layout& layout, int unit, int64_t elements) {
  std::vector<ShardPart> parts;
  for (const bool momentum : {false, true}) {
    for (const int f : layout.TrainableFlatParameters(unit)) {
      const FlatParameter& flat = layout.flat_parameters[f];
      if (momentum && !flat.dtypes.whole) continue;
      for (ShardPart& part : Parts(f, flat.shard_size, elements)) {
        part.momentum = momentum;
        parts.push_back(part);
      }
    }
  }
  return parts;
}

}  // namespace fsdp
