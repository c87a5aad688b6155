// States of every grid and dtype, through all that a checkpoint goes through.
#include "trainer/checkpoint/state_format.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <set>
#include <span>
#include <stdexcept>
#include <thread>

#include "tests/testing/error_of.h"
#include "tests/trainer/checkpoint/rank_states.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/checkpoint/checkpoint_directory.h"
#include "trainer/checkpoint/checkpoint_reader.h"
#include "trainer/checkpoint/checkpoint_writer.h"
#include "trainer/checkpoint/chunk_checksum.h"
#include "trainer/checkpoint/finite.h"
#include "trainer/checkpoint/manifest_writer.h"
#include "trainer/checkpoint/safetensors.h"
#include "trainer/checkpoint/verify.h"
#include "trainer/comm/store/memory_store.h"
#include "trainer/core/atomic_file.h"
#include "trainer/core/errors.h"
#include "trainer/core/philox.h"

namespace fsdp {
namespace {

namespace fs = std::filesystem;
using Strings = std::vector<std::string>;

constexpr DType kF32 = DType::kFloat32, kBF16 = DType::kBFloat16, kF16 = DType::kFloat16,
                kU8 = DType::kUInt8;

Layout LayoutOf(int shards) {
  World world;
  world.model[1].parameters[1].frozen = true;  // h.0.w
  world.wrap = {AutoWrap::kTransformerBlock, 3000};
  world.shards = shards;
  return world.MakeLayout();
}

// One of each grid and dtype; weights and moments of the root are wider than the blocks'.
std::vector<StateFormat> Formats(const Layout& layout) {
  std::vector<StateFormat> states;
  const auto flat = [&](const char* name, Grid grid, DType root, DType rest) {
    StateFormat& state = states.emplace_back();
    state.name = name;
    state.grid = grid;
    state.dtypes.assign(layout.flat_parameters.size(), rest);
    state.dtypes[0] = root;
  };
  flat("master", Grid::kElement, kF32, kBF16);
  flat("h", Grid::kElement, kF32, kF16);
  flat("m", Grid::kElement, kU8, kU8);
  flat("v", Grid::kElement, kBF16, kF16);
  states.push_back({"factor",
                    Grid::kTensor,
                    {},
                    {{"wte.rows", "wte", kF32, Shape{37}},
                     {"wte.columns", "wte", kBF16, Shape{24}},
                     {"h.2.w/rows", "h.2.w", kF16, Shape{24}},
                     {"h.2.w/codes", "h.2.w", kU8, Shape{3, 5}},
                     {"h.2.b", "h.2.b", kF16, Shape{2}},    // Rank 1's, of two.
                     {"h.0.w", "h.0.w", kF32, Shape{}}}});  // The scale of a frozen weight.
  states.push_back({kBuffersState,
                    Grid::kTensor,
                    {},
                    {{"mean", "", kF32, Shape{23}}, {"count", "", DType::kInt64, Shape{}}}});
  return states;
}

// Bits of value `index`; never NaN or infinite.
uint64_t BitsOf(const std::string& name, int64_t index, DType dtype, uint64_t salt) {
  const uint64_t hash = HashBytes(name, salt) + static_cast<uint64_t>(index) * 0x9e3779b97f4a7c15;
  const auto bits = static_cast<uint32_t>(hash >> 32);
  switch (dtype) {
    case DType::kInt64:
      return hash;
    case kF32:
      return bits & 0xff7fffffu;
    case kBF16:
      return bits & 0xff7fu;
    case kF16:
      return bits & 0xfbffu;
    default:
      return bits & 0xffu;
  }
}

void Put(std::vector<std::byte>& values, int64_t at, DType dtype, uint64_t bits) {
  std::memcpy(values.data() + at * SizeOf(dtype), &bits, static_cast<size_t>(SizeOf(dtype)));
}

// One rank's part of all states.
class Part {
 public:
  Part(const Layout& layout, const ShardPlace& place, const std::vector<StateFormat>& formats)
      : layout_(layout), place_(place), formats_(formats) {
    for (const std::vector<std::byte>& values : Expected(0)) {
      buffers_.emplace_back(values.size(), std::byte{0xff});
    }
    size_t next = 0;
    for (const StateFormat& format : formats) {
      CheckpointState& state = states_.emplace_back();
      state.name = format.name;
      state.grid = format.grid;
      for (const DType dtype : format.dtypes) {
        std::vector<std::byte>& b = buffers_[next++];
        const auto values = static_cast<int64_t>(b.size()) / SizeOf(dtype);
        state.shards.emplace_back(b.data(), dtype, Shape{values});
      }
      for (const OwnTensor& t : format.tensors) {
        state.tensors.push_back({t.name, t.owner, {buffers_[next++].data(), t.dtype, t.shape}});
      }
    }
  }

  std::vector<CheckpointState>& states() { return states_; }

  void Fill(uint64_t salt) {
    const auto values = Expected(salt);
    for (size_t i = 0; i < values.size(); ++i) {
      std::copy(values[i].begin(), values[i].end(), buffers_[i].begin());
    }
  }

  // Empty where all is as Fill(salt) leaves it, bit for bit.
  std::string Difference(uint64_t salt) const {
    const auto want = Expected(salt);
    for (size_t i = 0; i < want.size(); ++i) {
      if (want[i] != buffers_[i]) {
        return "buffer " + std::to_string(i) + " of rank " + std::to_string(place_.rank);
      }
    }
    return "";
  }

 private:
  // By state, then flat parameter or tensor.
  std::vector<std::vector<std::byte>> Expected(uint64_t salt) const {
    std::vector<std::vector<std::byte>> all;
    for (const StateFormat& state : formats_) {
      for (size_t u = 0; u < state.dtypes.size(); ++u) {
        const FlatParameter& flat = layout_.flat_parameters[u];
        const DType dtype = state.dtypes[u];
        std::vector<std::byte>& values = all.emplace_back();
        if (!FlatHasState(flat, state.name)) continue;
        values.resize(static_cast<size_t>(flat.shard_size * SizeOf(dtype)));  // Padding is zero.
        const int64_t begin = flat.ShardBegin(place_.shard);
        for (const Placement& p : flat.parameters) {
          for (int64_t i = 0; i < p.size(); ++i) {
            const int64_t at = p.offset + i - begin;
            if (at < 0 || at >= flat.shard_size) continue;
            Put(values, at, dtype, BitsOf(state.name + "/" + p.name, i, dtype, salt));
          }
        }
      }
      for (const OwnTensor& t : state.tensors) {
        std::vector<std::byte>& values = all.emplace_back();
        values.resize(static_cast<size_t>(t.shape.NumElements() * SizeOf(t.dtype)));
        for (int64_t i = 0; i < t.shape.NumElements(); ++i) {
          Put(values, i, t.dtype, BitsOf(state.name + "/" + t.name, i, t.dtype, salt));
        }
      }
    }
    return all;
  }

  const Layout& layout_;
  const ShardPlace place_;
  const std::vector<StateFormat> formats_;
  std::vector<std::vector<std::byte>> buffers_;
  std::vector<CheckpointState> states_;
};

using Change = std::function<void(int rank, std::vector<CheckpointState>&)>;

// Each rank's exception, "" for none.
Strings SaveAll(int world, int shards, const std::string& dir, const Change& before = nullptr) {
  const Layout layout = LayoutOf(shards);
  MemoryStore store(/*timeout_s=*/60);
  Strings errors(world);
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < world; ++rank) {
    ranks.emplace_back([&, rank] {
      const ShardPlace place = PlaceOf(rank, world, shards);
      Part part(layout, place, Formats(layout));
      part.Fill(1);
      if (before) before(rank, part.states());
      try {
        SaveCheckpoint(dir, layout, place, part.states(), MetaOf(1), store, 0, 0);
      } catch (const std::exception& error) {
        errors[rank] = error.what();
      }
    });
  }
  for (std::thread& rank : ranks) rank.join();
  return errors;
}

// The first thing that is wrong with what each rank reads.
std::string LoadAll(int shards, const std::string& directory, const Change& before = nullptr) {
  const Layout layout = LayoutOf(shards);
  for (int rank = 0; rank < shards; ++rank) {
    const ShardPlace place = PlaceOf(rank, shards, shards);
    Part part(layout, place, Formats(layout));
    if (before) before(rank, part.states());
    try {
      LoadCheckpoint(directory, layout, place, part.states());
    } catch (const CheckpointError& error) {
      return error.what();
    }
    if (std::string difference = part.Difference(1); !difference.empty()) return difference;
  }
  return "";
}

void ExpectSameFiles(const std::string& got, const std::string& want, const std::string& what) {
  ASSERT_EQ(ListSorted(got), ListSorted(want)) << what;
  for (const std::string& name : ListSorted(want)) {
    EXPECT_TRUE(ReadWholeFile(got + "/" + name) == ReadWholeFile(want + "/" + name))
        << what << ": " << name;
  }
}

bool Contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(StateFormatTest, IsReadAtAnyWorld) {
  for (const auto& [world, shards] : {std::pair(1, 1), {2, 2}, {4, 2}, {3, 3}}) {
    const std::string dir = FreshDirectory("any_world");
    ASSERT_EQ(SaveAll(world, shards, dir), Strings(world));
    EXPECT_TRUE(VerifyCheckpoint(CheckpointHold(dir + "/step_1"), nullptr).damages.empty());
    for (const int to : {1, 2, 3, 5}) {
      EXPECT_EQ(LoadAll(to, dir + "/step_1"), "") << world << ", F " << shards << " to " << to;
    }
  }
}

// The bytes that the other job would have saved; and back, those that were there.
TEST(StateFormatTest, IsResharded) {
  const std::string dir = FreshDirectory("reshard");
  ASSERT_EQ(SaveAll(2, 2, dir + "/two"), Strings(2));
  for (const auto& [world, shards] : {std::pair(1, 1), {3, 3}, {4, 2}, {2, 2}}) {
    const std::string name = std::to_string(world) + "_" + std::to_string(shards);
    const std::string out = dir + "/" + name, want = dir + "/want_" + name;
    int64_t last = 0, of = 0;
    ReshardCheckpoint(dir + "/two/step_1", world, shards, out, [&](int64_t done, int64_t total) {
      last = done;
      of = total;
    });
    EXPECT_EQ(last, of);
    ASSERT_EQ(SaveAll(world, shards, want), Strings(world));
    ExpectSameFiles(out, want + "/step_1", name);
    ReshardCheckpoint(out, 2, 2, out + "_back", nullptr);
    ExpectSameFiles(out + "_back", dir + "/two/step_1", name + " and back");
  }
}

TEST(StateFormatTest, TensorsSayTheirDType) {
  const std::string dir = FreshDirectory("names");
  ASSERT_EQ(SaveAll(2, 2, dir), Strings(2));
  const SafetensorsReader first(dir + "/step_1/rank_0.safetensors");
  const SafetensorsReader second(dir + "/step_1/rank_1.safetensors");
  const Layout layout = LayoutOf(2);
  const int64_t shard = layout.flat_parameters[0].shard_size;
  const auto is = [](const SafetensorsReader& file, const char* name, SafetensorsType type,
                     std::vector<int64_t> shape) {
    EXPECT_EQ(file.Info(name).type, type) << name;
    EXPECT_EQ(file.Info(name).shape, shape) << name;
  };
  is(first, "master/root/fp32", SafetensorsType::kF32, {shard});
  is(first, "m/root/uint8", SafetensorsType::kU8, {shard});
  is(first, "v/root/bf16", SafetensorsType::kBF16, {shard});
  EXPECT_TRUE(first.Contains("master/h.2/bf16"));
  EXPECT_TRUE(first.Contains("h/h.2/fp16"));
  // Each tensor once, where its owner begins; those of no parameter in the first file.
  is(first, "factor/wte.rows/fp32", SafetensorsType::kF32, {37});
  is(first, "factor/h.2.w/codes/uint8", SafetensorsType::kU8, {3, 5});
  is(first, "factor/h.0.w/fp32", SafetensorsType::kF32, {});
  is(first, "buffers/mean/fp32", SafetensorsType::kF32, {23});
  is(first, "buffers/count/int64", SafetensorsType::kI64, {});
  is(second, "factor/h.2.b/fp16", SafetensorsType::kF16, {2});
  EXPECT_FALSE(first.Contains("factor/h.2.b/fp16"));
  for (const std::string& name : second.Names()) {
    EXPECT_FALSE(name.starts_with("factor/wte") || name.starts_with("buffers")) << name;
  }
}

// A rank need not hold what it does not write.
TEST(StateFormatTest, TensorsAreHeldWhereTheyAreNeeded) {
  const std::string dir = FreshDirectory("held");
  const auto forget = [](bool all) {
    return [all](int rank, std::vector<CheckpointState>& states) {
      for (CheckpointState& state : states) {
        for (CheckpointState::Tensor& t : state.tensors) {
          if (all || (t.name == "h.2.b") != (rank == 1)) t.value.data = nullptr;
        }
      }
    };
  };
  ASSERT_EQ(SaveAll(2, 2, dir, forget(false)), Strings(2));
  EXPECT_EQ(LoadAll(2, dir + "/step_1"), "");
  for (const std::string& error : SaveAll(2, 2, dir + "/lost", forget(true))) {
    EXPECT_TRUE(
        Contains(error, "rank 0 does not hold tensor 'count' of state 'buffers', which it has to"))
        << error;
  }
}

TEST(StateFormatTest, WidensWhatIsNarrow) {
  const std::string dir = FreshDirectory("widens");
  ASSERT_EQ(SaveAll(2, 2, dir), Strings(2));
  CheckpointReader reader(dir + "/step_1");
  constexpr int64_t kBegin = 700, kCount = 1000;  // Over both files.
  const auto check = [&](const std::string& state, DType dtype) {
    std::vector<float> values(kCount);
    reader.Read(state, "h.2.w", Shape{24, 71}, kBegin, values);
    for (int64_t i = 0; i < kCount; ++i) {
      const auto bits = static_cast<uint32_t>(BitsOf(state + "/h.2.w", kBegin + i, dtype, 1));
      const float want = FloatAt({reinterpret_cast<const std::byte*>(&bits), dtype, Shape{1}}, 0);
      ASSERT_EQ(std::memcmp(&values[i], &want, sizeof(want)), 0) << state << ", " << i;
    }
  };
  check("master", kBF16);
  check("h", kF16);
  const auto error = [&](const std::function<void()>& read) -> std::string {
    return testing::ErrorOf(read);
  };
  std::vector<float> out(1);
  EXPECT_TRUE(Contains(error([&] {
                         reader.Read("m", "h.2.w", Shape{24, 71}, 0, out);
                       }),
                       "state 'm' of 'h.2.w' is kept in uint8, want fp32"));
  EXPECT_TRUE(Contains(error([&] {
                         reader.Read("factor", "h.2.w", Shape{24, 71}, 0, out);
                       }),
                       "state 'factor' has tensors of its own, want a value an element"));
  uint16_t half = 0;
  const View narrow(reinterpret_cast<std::byte*>(&half), kF16, Shape{1});
  EXPECT_TRUE(Contains(error([&] {
                         reader.Read("master", "wte", Shape{37, 24}, 0, narrow);
                       }),
                       "state 'master' of 'wte' is kept in fp32, want fp16"));
}

TEST(StateFormatTest, NamesWhatDoesNotFit) {
  const std::string dir = FreshDirectory("misfit");
  ASSERT_EQ(SaveAll(2, 2, dir), Strings(2));
  const std::string path = dir + "/step_1";
  const auto error = [&](const std::function<void(CheckpointState&)>& change) {
    return LoadAll(3, path, [&](int, std::vector<CheckpointState>& states) {
      for (CheckpointState& state : states) change(state);
    });
  };
  const auto of_factor = [&](const std::function<void(std::vector<CheckpointState::Tensor>&)>& f) {
    return error([&](CheckpointState& state) {
      if (state.name == "factor") f(state.tensors);
    });
  };
  EXPECT_EQ(error([](CheckpointState&) {}), "");
  EXPECT_TRUE(Contains(LoadAll(3, path,
                               [](int, std::vector<CheckpointState>& states) {
                                 ASSERT_EQ(states.back().name, kBuffersState);
                                 states.pop_back();
                               }),
                       "holds buffer 'mean', which the model does not have"));
  EXPECT_TRUE(Contains(of_factor([](auto& tensors) { tensors[0].name = "other"; }),
                       "state 'factor' has no tensor 'other'"));
  EXPECT_TRUE(Contains(of_factor([](auto& tensors) { tensors.pop_back(); }),
                       "state 'factor' holds tensor 'h.0.w', which this run does not have"));
  EXPECT_TRUE(Contains(of_factor([](auto& tensors) { tensors[0].value.shape = Shape{36}; }),
                       "tensor 'wte.rows' of state 'factor' has shape [37], want [36]"));
  EXPECT_TRUE(Contains(of_factor([](auto& tensors) { tensors[0].value.dtype = kU8; }),
                       "state 'factor' of 'wte.rows' is kept in fp32, want uint8"));
  EXPECT_TRUE(Contains(error([](CheckpointState& state) {
                         if (state.name == "v") state.name = "none";
                       }),
                       "has no state 'none'; it has master, h, m, v, factor, buffers"));
}

TEST(StateFormatTest, RefusesCallersMistakes) {
  const Layout layout = LayoutOf(2);
  const ShardPlace place = PlaceOf(1, 2, 2);
  Part part(layout, place, Formats(layout));
  const auto refuses = [&](size_t state, const std::function<void(CheckpointState&)>& change) {
    auto states = part.states();
    change(states[state]);
    EXPECT_THROW(LoadCheckpoint("none", layout, place, states), std::invalid_argument);
  };
  constexpr size_t kV = 3, kFactor = 4;
  refuses(0, [](CheckpointState& s) { s.shards[0].dtype = DType::kInt32; });
  refuses(0, [](CheckpointState& s) { s.shards[0].dtype = DType::kInt64; });
  refuses(kV, [](CheckpointState& s) { s.grid = Grid::kTensor; });
  refuses(kV, [&](CheckpointState& s) { s.tensors = part.states()[kFactor].tensors; });
  refuses(kFactor, [](CheckpointState& s) { s.tensors[1].name = s.tensors[0].name; });
  refuses(kFactor, [](CheckpointState& s) { s.tensors[1].value.shape = Shape{0}; });
  refuses(kFactor, [](CheckpointState& s) { s.tensors[1].value.dtype = DType::kInt32; });
}

// The checkpoint's files in chunks of 4096 bytes, under a manifest that fits them.
Manifest InSmallChunks(const std::string& path) {
  Manifest manifest = ReadManifest(path);
  for (ManifestFile& file : manifest.files) {
    file.chunk_bytes = 4096;
    ChunkChecksums checksums(file.chunk_bytes);
    const std::string contents = ReadWholeFile(path + "/" + file.name);
    checksums.Update(std::as_bytes(std::span(contents)));
    file.chunks = checksums.Finish();
  }
  std::ofstream(path + "/manifest.json", std::ios::binary) << ManifestToText(manifest);
  return manifest;
}

// The elements in bytes [begin, end) of a file, looked up byte by byte.
std::set<std::string> WhatLiesIn(const Manifest& manifest, const ManifestFile& file, int64_t begin,
                                 int64_t end) {
  std::set<std::string> found;
  int64_t first = file.bytes;
  for (const ManifestSlice& slice : file.slices) {
    first = std::min(first, slice.at);
    const StateFormat& state = *manifest.FindState(slice.state);
    for (int64_t at = std::max(begin, slice.at); at < std::min(end, slice.at + slice.bytes); ++at) {
      if (!slice.tensor.empty()) {
        found.insert(slice.state + " of " + slice.tensor);
        continue;
      }
      for (size_t u = 0; u < manifest.flat_parameters.size(); ++u) {
        const FlatParameter& flat = manifest.flat_parameters[u];
        if (flat.name != slice.flat) continue;
        const int64_t element = slice.begin + (at - slice.at) / SizeOf(state.dtypes[u]);
        for (const Placement& p : flat.parameters) {
          if (p.offset <= element && element < p.offset + p.size()) {
            found.insert(slice.state + " of " + p.name);
          }
        }
      }
    }
  }
  if (begin < first) found.insert("the file's header");
  if (found.empty()) found.insert("padding");
  return found;
}

TEST(StateFormatTest, VerifyNamesWhatIsDamaged) {
  const std::string dir = FreshDirectory("damaged");
  ASSERT_EQ(SaveAll(2, 2, dir), Strings(2));
  const std::string path = dir + "/step_1";
  const Manifest manifest = InSmallChunks(path);
  EXPECT_EQ(LoadAll(3, path), "");
  size_t slices = 0;
  for (const ManifestFile& file : manifest.files) {
    ASSERT_GT(file.chunks.size(), 3u);
    const std::string name = path + "/" + file.name, whole = ReadWholeFile(name);
    for (const ManifestSlice& slice : file.slices) {
      for (const int64_t at : {slice.at, slice.at + slice.bytes - 1}) {
        std::string spoilt = whole;
        spoilt[static_cast<size_t>(at)] ^= 0x20;
        std::ofstream(name, std::ios::binary) << spoilt;
        const VerifyReport report = VerifyCheckpoint(CheckpointHold(path), nullptr);
        ASSERT_EQ(report.damages.size(), 1u) << slice.state;
        const Damage& damage = report.damages[0];
        EXPECT_TRUE(damage.begin <= at && at < damage.end) << ToString(damage);
        EXPECT_EQ(std::set<std::string>(damage.touches.begin(), damage.touches.end()),
                  WhatLiesIn(manifest, file, damage.begin, damage.end))
            << slice.state;
      }
      ++slices;
    }
    std::ofstream(name, std::ios::binary) << whole;
  }
  EXPECT_GT(slices, 40u);
}

TEST(StateFormatTest, ADamagedStateIsNotRead) {
  const std::string dir = FreshDirectory("damaged_load");
  ASSERT_EQ(SaveAll(2, 2, dir), Strings(2));
  const std::string path = dir + "/step_1";
  const Manifest manifest = ReadManifest(path);
  std::set<std::string> states;
  for (const ManifestFile& file : manifest.files) {
    const std::string name = path + "/" + file.name, whole = ReadWholeFile(name);
    for (const ManifestSlice& slice : file.slices) {
      if (!states.insert(slice.state).second) continue;
      std::string spoilt = whole;
      spoilt[static_cast<size_t>(slice.at)] ^= 0x20;
      std::ofstream(name, std::ios::binary) << spoilt;
      EXPECT_TRUE(Contains(LoadAll(1, path), name + ": is damaged")) << slice.state;
    }
    std::ofstream(name, std::ios::binary) << whole;
  }
  EXPECT_EQ(states.size(), manifest.states.size());
}

TEST(StateFormatTest, WhatIsNotFiniteIsNeverSaved) {
  const std::string dir = FreshDirectory("not_finite");
  const auto spoilt = [](const View& values, int64_t at) {
    uint32_t bits = values.dtype == kF32 ? 0x7f800000u : values.dtype == kBF16 ? 0x7f80u : 0x7c00u;
    std::memcpy(values.data + at * SizeOf(values.dtype), &bits, SizeOf(values.dtype));
  };
  const struct {
    const char* want;
    std::function<void(std::vector<CheckpointState>&)> spoil;
  } cases[] = {
      {"master of h.1.ln: element 2 is inf", [&](auto& s) { spoilt(s[0].shards[3], 2); }},
      {"h of h.1.ln: element 2 is inf", [&](auto& s) { spoilt(s[1].shards[3], 2); }},
      {"v of h.1.ln: element 2 is inf", [&](auto& s) { spoilt(s[3].shards[3], 2); }},
      {"factor of h.2.w/rows: element 7 is inf",
       [&](auto& s) { spoilt(s[4].tensors[2].value, 7); }},
  };
  ASSERT_EQ(LayoutOf(2).flat_parameters[3].name, "h.1");
  for (const auto& c : cases) {
    const Strings errors = SaveAll(2, 2, dir, [&](int rank, auto& states) {
      if (rank == 0) c.spoil(states);
    });
    for (const std::string& error : errors) EXPECT_TRUE(Contains(error, c.want)) << error;
    EXPECT_EQ(ListSorted(dir), Strings());
  }
}

}  // namespace
}  // namespace fsdp
