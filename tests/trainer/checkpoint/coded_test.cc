// States in codes (ops/state_codes.h): saved, read at any F, and converted from and to others.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/trainer/checkpoint/rank_states.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/checkpoint/checkpoint_reader.h"
#include "trainer/checkpoint/checkpoint_writer.h"
#include "trainer/checkpoint/verify.h"
#include "trainer/comm/store/memory_store.h"
#include "trainer/nn/parameter.h"
#include "trainer/ops/state_codes.h"

namespace fsdp {
namespace {

constexpr DType kCodes = DType::kUInt8, kF32 = DType::kFloat32, kBF16 = DType::kBFloat16;

// Two matrices whose last block is cut, in one unit with a vector, and a frozen one; a matrix of
// four blocks in as many units as `parts`.
Layout LayoutOf(int shards, DType state, int64_t parts = 1) {
  const DTypes dtypes{.state = state};
  std::vector<SegmentShape> segments = {{"h.0",
                                         true,
                                         {{"a", Shape{20, 301}, false, dtypes},
                                          {"bias", Shape{301}},
                                          {"b", Shape{5, 999}, false, dtypes},
                                          {"fixed", Shape{7, 11}, true}}}};
  for (int64_t i = 0; i < parts; ++i) {
    const std::string name = NameOfRows("c", i * 4 / parts, (i + 1) * 4 / parts, 4);
    segments.push_back({name, true, {{name, Shape{4 / parts, kCodeBlock}, false, dtypes}}});
  }
  return MakeLayout(segments, {}, shards);
}

// From large to small, both signs for m.
float ValueOf(const std::string& state, const Placement& p, int64_t index) {
  const int64_t i = FirstInWhole(p) + index;
  const std::string parameter = WholeName(p.name);
  const float x = std::ldexp(ElementOf(state, parameter, i, /*salt=*/3) > 0 ? 1.0f : -1.0f,
                             -static_cast<int>(i * 7 % 19)) *
                  (1 + static_cast<float>(i % 31) / 64);
  return state == "v" ? x * x : x;
}

// The values, or what their codes stand for, by blocks of the parameter.
std::vector<float> Values(const std::string& state, const Placement& p, bool coded) {
  std::vector<float> values(p.size());
  for (int64_t i = 0; i < p.size(); ++i) values[i] = ValueOf(state, p, i);
  const StateCodeTables& tables = state == "v" ? kUnsignedCodes : kSignedCodes;
  for (int64_t at = 0; coded && at < p.size(); at += kCodeBlock) {
    const auto block = std::span(values).subspan(at, std::min(kCodeBlock, p.size() - at));
    uint8_t codes[kCodeBlock];
    const float absmax = EncodeBlock(tables, block, codes);
    DecodeBlock(tables, codes, absmax, block);
  }
  return values;
}

// One rank's shards: "master", "m", "v" and their absmax.
struct Shards {
  Shards(const Layout& layout, const ShardPlace& rank) : layout(layout), place(rank) {
    for (const std::string name : {"master", "m", "v", "m_absmax", "v_absmax"}) {
      const bool absmax = name.ends_with("_absmax");
      CheckpointState& state = states.emplace_back();
      state.name = name;
      state.grid = absmax ? Grid::kBlock : Grid::kElement;
      for (const FlatParameter& flat : layout.flat_parameters) {
        int64_t n = FlatHasState(flat, name) ? flat.shard_size : 0;
        if (absmax) n = flat.HasCodes() ? n / kCodeBlock : 0;
        const DType dtype = name == "m" || name == "v" ? flat.dtypes.state : kF32;
        auto& buffer = buffers.emplace_back(n * SizeOf(dtype), std::byte{0xff});
        state.shards.emplace_back(buffer.data(), dtype, Shape{n});
      }
    }
  }

  // As an optimizer leaves them.
  void Fill() {
    for (auto& buffer : buffers) std::ranges::fill(buffer, std::byte{0});
    ForEachPiece([](CheckpointState& state, CheckpointState* absmax, size_t f, const Piece& piece) {
      const View& shard = state.shards[f];
      for (int64_t i = 0; i < piece.count; ++i) {
        const float value = ValueOf(state.name, *piece.parameter, piece.begin + i);
        if (shard.dtype == kF32) shard.As<float>()[piece.at + i] = value;
        if (shard.dtype == kBF16) shard.As<BFloat16>()[piece.at + i] = BFloat16(value);
      }
      if (shard.dtype != kCodes) return;
      for (int64_t at = 0; at < piece.count; at += kCodeBlock) {
        std::vector<float> block;
        for (int64_t i = at; i < std::min(at + kCodeBlock, piece.count); ++i) {
          block.push_back(ValueOf(state.name, *piece.parameter, piece.begin + i));
        }
        absmax->shards[f].As<float>()[(piece.at + at) / kCodeBlock] =
            EncodeBlock(state.name == "v" ? kUnsignedCodes : kSignedCodes, block,
                        shard.As<uint8_t>() + piece.at + at);
      }
    });
  }

  // The first value that is not `want`'s, in words. coded: where they have been codes.
  std::string Difference(const std::map<std::string, std::vector<float>>& want) {
    std::string wrong;
    ForEachPiece([&](CheckpointState& state, CheckpointState* absmax, size_t f,
                     const Piece& piece) {
      const View& shard = state.shards[f];
      const StateCodeTables& tables = state.name == "v" ? kUnsignedCodes : kSignedCodes;
      for (int64_t i = 0; i < piece.count; ++i) {
        const int64_t at = piece.at + i;
        const float expected = want.at(state.name + "/" + piece.parameter->name)[piece.begin + i];
        const float value = shard.dtype == kF32 ? shard.As<float>()[at]
                            : shard.dtype == kBF16
                                ? float(shard.As<BFloat16>()[at])
                                : tables.values[shard.As<uint8_t>()[at]] *
                                      absmax->shards[f].As<float>()[at / kCodeBlock];
        if (value == (shard.dtype == kBF16 ? float(BFloat16(expected)) : expected)) continue;
        if (wrong.empty()) {
          wrong = state.name + " of " + piece.parameter->name + ", element " +
                  std::to_string(piece.begin + i) + ": " + std::to_string(value);
        }
      }
    });
    return wrong;
  }

  template <typename Body>
  void ForEachPiece(const Body& body) {
    for (size_t s = 0; s < 3; ++s) {
      for (size_t f = 0; f < layout.flat_parameters.size(); ++f) {
        if (states[s].shards[f].NumElements() == 0) continue;
        for (const Piece& piece : PiecesOfShard(layout.flat_parameters[f], place.shard)) {
          body(states[s], s == 0 ? nullptr : &states[s + 2], f, piece);
        }
      }
    }
  }

  const Layout& layout;
  const ShardPlace place;
  std::vector<std::vector<std::byte>> buffers;
  std::vector<CheckpointState> states;
};

std::string Saved(const std::string& name, int ranks, DType state, int64_t parts = 1) {
  const std::string dir = FreshDirectory(name);
  const Layout layout = LayoutOf(ranks, state, parts);
  MemoryStore store(/*timeout_s=*/60);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      Shards shards(layout, PlaceOf(rank, ranks, ranks));
      shards.Fill();
      SaveCheckpoint(dir, layout, shards.place, shards.states, MetaOf(1), store, 0, 0);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return dir + "/step_1";
}

// Saved values, once or twice through codes.
std::map<std::string, std::vector<float>> Want(bool coded) {
  std::map<std::string, std::vector<float>> want;
  for (const FlatParameter& flat : LayoutOf(1, kCodes).flat_parameters) {
    for (const Placement& p : flat.parameters) {
      for (const std::string state : {"master", "m", "v"}) {
        want[state + "/" + p.name] =
            Values(state, p, coded && flat.HasCodes() && state != "master");
      }
    }
  }
  return want;
}

std::string BytesOf(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// At any F, codes and absmax are the saved ones, and their values where the run wants others.
TEST(CodedCheckpoint, ReadsAsCodesFp32AndBf16AtAnyShards) {
  for (const int ranks : {1, 3}) {
    const std::string from = Saved("coded", ranks, kCodes);
    EXPECT_TRUE(VerifyCheckpoint(CheckpointHold(from), nullptr).damages.empty());
    for (const DType wanted : {kCodes, kF32, kBF16}) {
      for (const int shards : {1, 2, 5}) {
        const Layout layout = LayoutOf(shards, wanted);
        for (int rank = 0; rank < shards; ++rank) {
          Shards read(layout, PlaceOf(rank, shards, shards));
          const LoadedCheckpoint loaded = LoadCheckpoint(from, layout, read.place, read.states);
          EXPECT_EQ(read.Difference(Want(true)), "") << Name(wanted) << " " << shards;
          EXPECT_EQ(loaded.converted, wanted == kCodes ? ""
                                      : wanted == kF32
                                          ? "some of m and some of v from 8bit to fp32, exactly"
                                          : "some of m and some of v from 8bit to bf16, rounded to "
                                            "nearest");
          if (wanted != kCodes) continue;
          Shards same(layout, read.place);
          same.Fill();
          EXPECT_EQ(read.buffers, same.buffers);  // Padding, too.
        }
      }
    }
  }
}

// Codes of rows, read in other parts, and encoded so.
TEST(CodedCheckpoint, RowsAreReadInOtherParts) {
  for (const DType stored : {kCodes, kF32}) {
    for (const int64_t from : {1, 2, 4}) {
      const std::string saved = Saved("parts", 3, stored, from);
      for (const int64_t to : {1, 2, 4}) {
        const Layout layout = LayoutOf(2, kCodes, to);
        for (int rank = 0; rank < 2; ++rank) {
          Shards read(layout, PlaceOf(rank, 2, 2)), want(layout, read.place);
          LoadCheckpoint(saved, layout, read.place, read.states);
          want.Fill();
          EXPECT_EQ(read.buffers, want.buffers) << from << " to " << to;
        }
      }
    }
  }
}

TEST(CodedCheckpoint, EncodesWhatWasFp32OrBf16) {
  for (const DType stored : {kF32, kBF16}) {
    const std::string from = Saved("wide", 2, stored);
    const Layout layout = LayoutOf(3, kCodes);
    for (int rank = 0; rank < 3; ++rank) {
      Shards read(layout, PlaceOf(rank, 3, 3)), want(layout, read.place);
      const LoadedCheckpoint loaded = LoadCheckpoint(from, layout, read.place, read.states);
      EXPECT_EQ(loaded.converted, "some of m and some of v from " + std::string(Name(stored)) +
                                      " to 8bit, rounded to nearest");
      if (stored == kBF16) continue;
      want.Fill();
      EXPECT_EQ(read.buffers, want.buffers);
    }
  }
}

TEST(CodedCheckpoint, ReshardsToWhatOtherRanksWouldHaveWritten) {
  const std::string from = Saved("two", 2, kCodes), want = Saved("three", 3, kCodes);
  const std::string to = FreshDirectory("resharded") + "/to";
  ReshardCheckpoint(from, 3, 3, to, nullptr);
  for (int rank = 0; rank < 3; ++rank) {
    const std::string name = "/" + RankFileName(rank);
    EXPECT_EQ(BytesOf(to + name), BytesOf(want + name)) << rank;
  }
}

}  // namespace
}  // namespace fsdp
