#include "trainer/fsdp/layout.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "trainer/ops/weight_codes.h"

namespace fsdp {
namespace {

std::vector<SegmentShape> ThreeBlocks() {
  return {{"embed", false, {{"wte", Shape{101, 7}}, {"wpe", Shape{13, 7}}}},
          {"h.0", true, {{"h.0.w", Shape{7, 21}}, {"h.0.b", Shape{21}}}},
          {"h.1", true, {{"h.1.w", Shape{7, 21}}, {"h.1.b", Shape{21}}}},
          {"h.2", true, {{"h.2.w", Shape{7, 21}}, {"h.2.b", Shape{21}}}},
          {"head", false, {{"ln_f", Shape{7}}}}};
}

std::vector<int> Trainable(const Layout& layout, int unit) {
  const std::span<const int> flats = layout.TrainableFlatParameters(unit);
  return {flats.begin(), flats.end()};
}

TEST(Layout, BlocksAreUnitsAndTheRestIsTheRoot) {
  const Layout layout = MakeLayout(ThreeBlocks(), {}, 2);
  EXPECT_EQ(layout.unit_of_segment, (std::vector<int>{0, 1, 2, 3, 0}));
  ASSERT_EQ(layout.flat_parameters.size(), 4u);
  EXPECT_EQ(layout.flat_parameters[0].name, "root");
  EXPECT_EQ(layout.flat_parameters[2].name, "h.1");
  EXPECT_EQ(layout.flat_parameters[0].parameters.size(), 3u);
  EXPECT_EQ(layout.NumParameters(), 101 * 7 + 13 * 7 + 3 * (7 * 21 + 21) + 7);
}

TEST(Layout, SizePolicyJoinsConsecutiveBlocks) {
  const Layout layout = MakeLayout(ThreeBlocks(), {AutoWrap::kSize, 7 * 21 + 21 + 1}, 1);
  EXPECT_EQ(layout.unit_of_segment, (std::vector<int>{0, 1, 1, 2, 0}));
  // As many as are wanted are enough.
  EXPECT_EQ(MakeLayout(ThreeBlocks(), {AutoWrap::kSize, 7 * 21 + 21}, 1).unit_of_segment,
            (std::vector<int>{0, 1, 2, 3, 0}));
  // Branches are blocks of a model that is split into them.
  EXPECT_EQ(MakeLayout(ThreeBlocks(), {AutoWrap::kBranch, 1 << 20}, 1).unit_of_segment,
            (std::vector<int>{0, 1, 2, 3, 0}));
  const Layout none = MakeLayout(ThreeBlocks(), {AutoWrap::kNone}, 1);
  EXPECT_EQ(none.unit_of_segment, (std::vector<int>{0, 0, 0, 0, 0}));
}

TEST(Layout, OffsetsAndShardsAreAligned) {
  for (const int shards : {1, 2, 3, 4, 7, 64}) {
    const Layout layout = MakeLayout(ThreeBlocks(), {}, shards);
    for (const FlatParameter& flat : layout.flat_parameters) {
      EXPECT_EQ(flat.size, flat.shard_size * shards);
      EXPECT_EQ(flat.shard_size % kShardAlignment, 0);
      int64_t end = 0;
      for (const Placement& p : flat.parameters) {
        EXPECT_EQ(p.offset % kParameterAlignment, 0);
        EXPECT_GE(p.offset, end);
        EXPECT_LT(p.offset, end + kParameterAlignment);
        end = p.offset + p.size();
      }
      EXPECT_LE(end, flat.size);
    }
  }
}

TEST(Layout, OffsetsDoNotDependOnTheNumberOfShards) {
  const Layout one = MakeLayout(ThreeBlocks(), {}, 1), five = MakeLayout(ThreeBlocks(), {}, 5);
  for (size_t u = 0; u < one.flat_parameters.size(); ++u) {
    for (size_t i = 0; i < one.flat_parameters[u].parameters.size(); ++i) {
      EXPECT_EQ(one.flat_parameters[u].parameters[i].offset,
                five.flat_parameters[u].parameters[i].offset);
    }
  }
}

TEST(Layout, ShardsHoldEveryElementOnce) {
  for (const int shards : {1, 2, 3, 4, 64}) {
    const Layout layout = MakeLayout(ThreeBlocks(), {}, shards);
    for (const FlatParameter& flat : layout.flat_parameters) {
      std::vector<std::vector<int>> seen;
      for (const Placement& p : flat.parameters) seen.emplace_back(p.size(), 0);
      for (int r = 0; r < shards; ++r) {
        for (const Piece& piece : PiecesOfShard(flat, r)) {
          const size_t i = piece.parameter - &flat.parameters[0];
          EXPECT_EQ(flat.ShardBegin(r) + piece.at, piece.parameter->offset + piece.begin);
          EXPECT_LE(piece.at + piece.count, flat.shard_size);
          for (int64_t e = 0; e < piece.count; ++e) ++seen[i].at(piece.begin + e);
        }
      }
      for (const std::vector<int>& parameter : seen) {
        for (const int n : parameter) ASSERT_EQ(n, 1);
      }
    }
  }
}

// Each part is sharded by itself: what trains is sharded evenly, whatever else its block holds.
TEST(Layout, FrozenParametersAreFlatParametersOfTheirOwn) {
  std::vector<SegmentShape> segments = ThreeBlocks();
  segments[0].parameters[0].frozen = true;                           // One of the root.
  segments[1].parameters[1].frozen = true;                           // One of h.0.
  for (ParameterShape& p : segments[2].parameters) p.frozen = true;  // All of h.1.
  const Layout layout = MakeLayout(segments, {}, 3);
  EXPECT_EQ(layout.unit_of_segment, (std::vector<int>{0, 1, 2, 3, 0}));
  std::vector<std::string> names;
  for (const FlatParameter& flat : layout.flat_parameters) {
    names.push_back(flat.name);
    EXPECT_EQ(flat.frozen, flat.name.find(".frozen") != std::string::npos);
    EXPECT_EQ(flat.size, 3 * flat.shard_size);
    EXPECT_FALSE(flat.parameters.empty());
  }
  EXPECT_EQ(names, (std::vector<std::string>{"root", "root.frozen", "h.0", "h.0.frozen",
                                             "h.1.frozen", "h.2"}));
  EXPECT_EQ(layout.units[1].flat_parameters, (std::vector<int>{2, 3}));
  EXPECT_EQ(layout.units[2].flat_parameters, (std::vector<int>{4}));
  EXPECT_EQ(Trainable(layout, 1), (std::vector<int>{2}));
  EXPECT_EQ(Trainable(layout, 2), (std::vector<int>{}));
  const int64_t trains = layout.flat_parameters[2].size, frozen = layout.flat_parameters[3].size;
  EXPECT_EQ(layout.GatheredBytes(1), 4 * (trains + frozen));
  EXPECT_EQ(layout.GradientBytes(1), 4 * trains);
  EXPECT_EQ(layout.GradientBytes(2), 0);
  EXPECT_EQ(layout.NumParameters(), MakeLayout(ThreeBlocks(), {}, 3).NumParameters());
}

// A unit's parameters of other dtypes are a buffer of their own; bytes count each in its own
// dtypes.
// Without coded weights there is no base.
TEST(Layout, FrozenParametersBesideCodedOnesAreOfTheBase) {
  for (const bool coded : {false, true}) {
    std::vector<SegmentShape> segments = {
        {"embed", false, {{"table", Shape{8, 4}, /*frozen=*/true}}},
        {"h.0", true, {{"norm", Shape{4}, /*frozen=*/true}, {"adapter", Shape{4, 2}}}},
        {"h.1", true, {{"w", Shape{64, 64}, /*frozen=*/true}}},
    };
    if (coded) {
      ParameterShape& w = segments[2].parameters[0];
      w.dtypes = {.master = DType::kUInt8, .compute = DType::kUInt8, .code = WeightCode::kInt8};
      w.coded_bytes = CodedBytes(WeightCode::kInt8, 64 * 64);
    }
    for (const FlatParameter& flat : MakeLayout(segments, {}, 2).flat_parameters) {
      EXPECT_EQ(flat.of_base, coded && flat.frozen) << flat.name;
    }
  }
}

TEST(Layout, EachChoiceOfDTypesIsAFlatParameter) {
  const DTypes half{.compute = DType::kBFloat16, .grad = DType::kFloat16}, full;
  std::vector<SegmentShape> segments = ThreeBlocks();
  segments[1].parameters[0].dtypes = half;  // h.0.w
  segments[2].parameters[1].dtypes = half;  // h.1.b
  for (ParameterShape& p : segments[3].parameters) p.dtypes = half, p.frozen = true;
  segments[3].parameters[1].dtypes = full;
  const Layout layout = MakeLayout(segments, {}, 3);
  std::vector<std::string> names;
  for (const FlatParameter& flat : layout.flat_parameters) names.push_back(flat.name);
  EXPECT_EQ(names, (std::vector<std::string>{"root", "h.0", "h.0.2", "h.1", "h.1.2", "h.2.frozen",
                                             "h.2.frozen.2"}));
  EXPECT_EQ(Trainable(layout, 1), (std::vector<int>{1, 2}));
  EXPECT_EQ(Trainable(layout, 2), (std::vector<int>{3, 4}));
  EXPECT_EQ(Trainable(layout, 3), (std::vector<int>{}));
  const FlatParameter &w = layout.flat_parameters[1], &b = layout.flat_parameters[2];
  EXPECT_EQ(w.dtypes, half);
  EXPECT_EQ(b.dtypes, full);
  EXPECT_EQ(w.parameters[0].name, "h.0.w");
  EXPECT_EQ(b.parameters[0].name, "h.0.b");
  EXPECT_EQ(b.parameters[0].offset, 0);
  EXPECT_EQ(layout.GatheredBytes(1), 2 * w.size + 4 * b.size);
  EXPECT_EQ(layout.GradientBytes(1), 2 * w.size + 4 * b.size);
}

// An untied embedding and head: neither in the root nor joined with blocks.
TEST(Layout, UnitsOfTheirOwn) {
  std::vector<SegmentShape> segments = ThreeBlocks();
  segments.front().own_unit = segments.back().own_unit = true;
  const auto units = [&](const WrapPolicy& policy) {
    return MakeLayout(segments, policy, 2).unit_of_segment;
  };
  EXPECT_EQ(units({}), (std::vector<int>{1, 2, 3, 4, 5}));
  EXPECT_EQ(units({AutoWrap::kSize, 1000000}), (std::vector<int>{1, 2, 2, 2, 3}));
  EXPECT_EQ(units({AutoWrap::kSize, 1}), (std::vector<int>{1, 2, 3, 4, 5}));
  EXPECT_EQ(units({AutoWrap::kNone}), (std::vector<int>{0, 0, 0, 0, 0}));
  const Layout layout = MakeLayout(segments, {}, 2);
  EXPECT_EQ(layout.flat_parameters[0].size, 0);
  EXPECT_TRUE(layout.flat_parameters[0].parameters.empty());
  EXPECT_EQ(layout.flat_parameters[1].name, segments[0].name);
}

// As PyTorch's wrapper has it, which wraps blocks alone.
TEST(Layout, WhatIsOutsideTheBlocksMayBeTheRoots) {
  std::vector<SegmentShape> segments = ThreeBlocks();
  segments.front().own_unit = segments.back().own_unit = true;
  segments.back().parameters.push_back({"lm_head", Shape{101, 7}});
  const auto with = [&](AutoWrap policy) {
    return MakeLayout(segments, {policy, 7 * 21 + 21 + 1, WrapPolicy::Outside::kRoot}, 2);
  };
  const Layout layout = with(AutoWrap::kTransformerBlock);
  EXPECT_EQ(layout.unit_of_segment, (std::vector<int>{0, 1, 2, 3, 0}));
  EXPECT_EQ(with(AutoWrap::kSize).unit_of_segment, (std::vector<int>{0, 1, 1, 2, 0}));
  EXPECT_EQ(with(AutoWrap::kNone).unit_of_segment, (std::vector<int>{0, 0, 0, 0, 0}));
  std::vector<std::string> root;
  for (const Placement& p : layout.flat_parameters[0].parameters) root.push_back(p.name);
  EXPECT_EQ(root, (std::vector<std::string>{"wte", "wpe", "ln_f", "lm_head"}));
  EXPECT_EQ(layout.NumParameters(), MakeLayout(segments, {}, 2).NumParameters());
  // Blocks that trained before lie where they lay: units count from 1.
  const Layout units = MakeLayout(segments, {}, 2);
  for (int block = 1; block <= 3; ++block) {
    EXPECT_EQ(layout.GatheredBytes(block), units.GatheredBytes(block + 1));
  }
}

// A bias table that every block reads, listed in the first of them, whatever it is called.
TEST(Layout, WhatSeveralSegmentsReadIsTheRoots) {
  std::vector<SegmentShape> segments = ThreeBlocks();
  segments[1].parameters.push_back({"h.0.table", Shape{5, 7}, false, {}, /*shared=*/true});
  const Layout layout = MakeLayout(segments, {}, 2);
  EXPECT_EQ(layout.unit_of_segment, (std::vector<int>{0, 1, 2, 3, 0}));
  ASSERT_EQ(layout.flat_parameters.size(), 4u);
  std::vector<std::string> root;
  for (const Placement& p : layout.flat_parameters[0].parameters) root.push_back(p.name);
  EXPECT_EQ(root, (std::vector<std::string>{"wte", "wpe", "h.0.table", "ln_f"}));
  EXPECT_EQ(layout.flat_parameters[1].parameters.size(), 2u);
  EXPECT_EQ(layout.flat_parameters[1].name, "h.0");
  // No block is larger for it.
  EXPECT_EQ(MakeLayout(segments, {AutoWrap::kSize, 7 * 21 + 21 + 1}, 1).unit_of_segment,
            (std::vector<int>{0, 1, 1, 2, 0}));
}

TEST(Layout, RefusesWhatItCannotLayOut) {
  EXPECT_THROW(MakeLayout(ThreeBlocks(), {}, 0), std::invalid_argument);
  std::vector<SegmentShape> twice = ThreeBlocks();
  twice[2].parameters[0].name = "h.0.w";
  EXPECT_THROW(MakeLayout(twice, {}, 1), std::invalid_argument);
}

}  // namespace
}  // namespace fsdp
