// A run goes on from a checkpoint whose states have other dtypes than its own.
#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "tests/trainer/checkpoint/rank_states.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/checkpoint/state_format.h"
#include "trainer/comm/store/memory_store.h"
#include "trainer/core/errors.h"

namespace fsdp {
namespace {

constexpr DType kF32 = DType::kFloat32, kBF16 = DType::kBFloat16, kF16 = DType::kFloat16;

using DTypes = std::map<std::string, DType>;  // By state.
const DTypes kWide = {{"ema", kF32}, {"m", kF32}, {"master", kF32}, {"v", kF32}};
const DTypes kNarrow = {{"ema", kF32}, {"m", kBF16}, {"master", kBF16}, {"v", kBF16}};

Layout LayoutOf(int shards) {
  World world;
  world.model[1].parameters[1].frozen = true;  // h.0.w
  world.shards = shards;
  return world.MakeLayout();
}

// The bits of an element in fp32: below 2^1, so that nothing overflows, and every third one
// half-way between two bf16, in turn above an even and an odd one.
uint32_t WideBits(const std::string& state, const std::string& parameter, int64_t index) {
  const uint32_t bits =
      std::bit_cast<uint32_t>(ElementOf(state, parameter, index, /*salt=*/1)) & 0xbfffffffu;
  if (index % 3 != 0) return bits;
  return (bits & 0xfffe0000u) | (index % 2 == 0 ? 0x8000u : 0x18000u);
}

// To nearest, ties to even, by hand.
uint32_t NearestBits(uint32_t wide) {
  const uint32_t rest = wide & 0xffffu;
  const bool up = rest > 0x8000u || (rest == 0x8000u && (wide & 0x10000u) != 0);
  return (wide >> 16) + (up ? 1 : 0);
}

// One rank's shards, of one dtype a state.
struct Shards {
  Shards(const Layout& layout, const ShardPlace& place, const DTypes& dtypes) {
    for (const auto& [name, dtype] : dtypes) {
      CheckpointState& state = states.emplace_back();
      state.name = name;
      for (const FlatParameter& flat : layout.flat_parameters) {
        const Shape shape{FlatHasState(flat, name) ? flat.shard_size : 0};
        auto& buffer = buffers.emplace_back(static_cast<size_t>(shape[0] * SizeOf(dtype)));
        state.shards.emplace_back(buffer.data(), dtype, shape);
        if (shape[0] == 0) continue;
        for (const Piece& piece : PiecesOfShard(flat, place.shard)) {
          for (int64_t i = 0; i < piece.count; ++i) {
            elements.push_back({name, piece.parameter->name, piece.begin + i,
                                state.shards.back().Slice(piece.at + i, 1)});
          }
        }
      }
    }
  }

  struct Element {
    std::string state, parameter;
    int64_t index;
    View at;
    uint32_t Bits() const {
      uint32_t bits = 0;
      std::memcpy(&bits, at.data, static_cast<size_t>(at.bytes()));
      return bits;
    }
  };
  std::vector<std::vector<std::byte>> buffers;
  std::vector<CheckpointState> states;
  std::vector<Element> elements;
};

// A checkpoint of two ranks.
std::string Saved(const std::string& name, const DTypes& dtypes) {
  const std::string dir = FreshDirectory(name);
  const Layout layout = LayoutOf(2);
  MemoryStore store(/*timeout_s=*/60);
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.emplace_back([&, rank] {
      const ShardPlace place = PlaceOf(rank, 2, 2);
      const Shards shards(layout, place, dtypes);
      for (const auto& e : shards.elements) {
        const uint32_t wide = WideBits(e.state, e.parameter, e.index);
        const uint32_t bits = e.at.dtype == kF32 ? wide : NearestBits(wide);
        std::memcpy(e.at.data, &bits, static_cast<size_t>(e.at.bytes()));
      }
      SaveCheckpoint(dir, layout, place, shards.states, MetaOf(1), store, 0, 0);
    });
  }
  for (std::thread& rank : ranks) rank.join();
  return dir + "/step_1";
}

// Loads all three shards of another world in `now`, and holds each element against what was saved
// in `before`. Returns what the load said of them.
std::string Loaded(const std::string& directory, const DTypes& before, const DTypes& now) {
  const Layout layout = LayoutOf(3);
  std::string said;
  for (int rank = 0; rank < 3; ++rank) {
    const Shards shards(layout, PlaceOf(rank, 3, 3), now);
    said = LoadCheckpoint(directory, layout, PlaceOf(rank, 3, 3), shards.states).converted;
    EXPECT_GT(shards.elements.size(), 1000u);
    for (const auto& e : shards.elements) {
      const uint32_t wide = WideBits(e.state, e.parameter, e.index);
      const bool was_narrow = before.at(e.state) == kBF16, is_narrow = e.at.dtype == kBF16;
      const uint32_t want = is_narrow    ? NearestBits(wide)
                            : was_narrow ? NearestBits(wide) << 16
                                         : wide;
      EXPECT_EQ(e.Bits(), want) << e.state << " of " << e.parameter << ", " << e.index;
      if (e.Bits() != want) return said;
    }
  }
  return said;
}

TEST(Conversion, OfTheSamePrecisionIsNone) {
  EXPECT_EQ(Loaded(Saved("wide", kWide), kWide, kWide), "");
  EXPECT_EQ(Loaded(Saved("narrow", kNarrow), kNarrow, kNarrow), "");
}

TEST(Conversion, RoundsToNearest) {
  EXPECT_EQ(Loaded(Saved("rounds", kWide), kWide, kNarrow),
            "m, master and v from fp32 to bf16, rounded to nearest");
}

TEST(Conversion, WidensExactly) {
  EXPECT_EQ(Loaded(Saved("widens_exactly", kNarrow), kNarrow, kWide),
            "m, master and v from bf16 to fp32, exactly");
}

TEST(Conversion, SaysBothAtOnce) {
  const DTypes before = {{"m", kBF16}, {"master", kF32}}, now = {{"m", kF32}, {"master", kBF16}};
  EXPECT_EQ(Loaded(Saved("both", before), before, now),
            "master from fp32 to bf16, rounded to nearest; m from bf16 to fp32, exactly");
}

// keep_fp32, say, makes flat parameters of other dtypes; another one, other flat parameters.
TEST(Conversion, GoesByParameter) {
  const Layout two = LayoutOf(2);
  World whole;
  whole.model[1].parameters[1].frozen = true;
  whole.wrap.policy = AutoWrap::kNone;
  const Layout one = whole.MakeLayout();
  ASSERT_NE(one.flat_parameters.size(), two.flat_parameters.size());
  Manifest there;
  there.flat_parameters = two.flat_parameters;
  there.states = ElementStates({"master", "v", "old"}, two.flat_parameters.size());
  std::vector<StateFormat> here = ElementStates({"master", "v", "new"}, one.flat_parameters.size());
  EXPECT_EQ(DescribeConversion(there, one, here), "");
  there.states[0].dtypes[0] = kBF16;
  for (DType& dtype : here[1].dtypes) dtype = kBF16;
  for (DType& dtype : here[2].dtypes) dtype = kBF16;
  EXPECT_EQ(DescribeConversion(there, one, here),
            "v from fp32 to bf16, rounded to nearest; some of master from bf16 to fp32, exactly");
}

TEST(Conversion, IsOfFloatingTypesAlone) {
  EXPECT_TRUE(CanConvert(kF32, kBF16));
  EXPECT_TRUE(CanConvert(kBF16, kF32));
  EXPECT_TRUE(CanConvert(kF16, kF32));
  EXPECT_FALSE(CanConvert(kF32, kF16));  // Nothing that is saved is of it, and it overflows.
  EXPECT_FALSE(CanConvert(kBF16, kF16));
  EXPECT_FALSE(CanConvert(DType::kUInt8, kF32));
  EXPECT_FALSE(CanConvert(kF32, DType::kUInt8));
}

}  // namespace
}  // namespace fsdp
