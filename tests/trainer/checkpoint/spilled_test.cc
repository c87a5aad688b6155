// Shards that lie on a disk, saved and loaded: held against the same shards in memory.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/testing/error_of.h"
#include "tests/testing/everything.h"
#include "tests/trainer/checkpoint/rank_states.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/checkpoint/finite.h"
#include "trainer/checkpoint/state_format.h"
#include "trainer/comm/store/memory_store.h"
#include "trainer/core/atomic_file.h"
#include "trainer/core/errors.h"
#include "trainer/core/file_io.h"
#include "trainer/core/philox.h"
#include "trainer/runtime/memory.h"
#include "trainer/runtime/spill/spill_memory.h"

namespace fsdp {
namespace {

using Strings = std::vector<std::string>;

constexpr DType kF32 = DType::kFloat32, kBF16 = DType::kBFloat16, kU8 = DType::kUInt8;

// A disk that fails, or tells of what is read.
class DiskIo : public FileIo {
 public:
  std::atomic<int> read_error = 0, write_error = 0;
  std::function<void()> on_read;
  std::atomic<int> reads = 0;

  ssize_t ReadAt(int fd, std::byte* to, size_t bytes, int64_t offset) override {
    ++reads;
    if (on_read) on_read();
    if (read_error != 0) return errno = read_error, -1;
    return FileIo::ReadAt(fd, to, bytes, offset);
  }
  ssize_t WriteAt(int fd, const std::byte* from, size_t bytes, int64_t offset) override {
    if (write_error != 0) return errno = write_error, -1;
    return FileIo::WriteAt(fd, from, bytes, offset);
  }
};

// Masters of two dtypes, and whole numbers.
std::vector<StateFormat> Formats(const Layout& layout, DType root = kF32, DType rest = kBF16) {
  const size_t flats = layout.flat_parameters.size();
  std::vector<StateFormat> states(2);
  states[0] = {"master", Grid::kElement, std::vector(flats, rest), {}};
  states[0].dtypes[0] = root;
  states[1] = {"m", Grid::kElement, std::vector(flats, kU8), {}};
  return states;
}

using Spilled = std::function<bool(size_t state, size_t flat)>;
bool None(size_t, size_t) { return false; }
bool All(size_t, size_t) { return true; }
bool Some(size_t state, size_t flat) { return (state + flat) % 2 == 0; }

int64_t RoundUp(int64_t bytes) {
  return (bytes + kSpillAlignment - 1) / kSpillAlignment * kSpillAlignment;
}

// One rank's shards, some in memory and some on the disk.
class Shards {
 public:
  Shards(const Layout& layout, const ShardPlace& place, const std::vector<StateFormat>& formats,
         const Spilled& spilled, const std::string& directory = ::testing::TempDir(),
         FileIo& io = FileIo::System())
      : layout_(layout), place_(place), formats_(formats), values_(formats.size()) {
    int64_t bytes = 0;
    for (size_t s = 0; s < formats.size(); ++s) {
      states_.push_back({.name = formats[s].name, .shards = {}, .grid = formats[s].grid});
      for (size_t u = 0; u < layout.flat_parameters.size(); ++u) {
        const FlatParameter& flat = layout.flat_parameters[u];
        const DType dtype = formats[s].dtypes[u];
        const bool there = FlatHasState(flat, formats[s].name);
        const Shape shape{there ? flat.shard_size : 0};
        values_[s].emplace_back(shape.NumElements() * SizeOf(dtype), std::byte{0xff});
        states_[s].shards.emplace_back(values_[s][u].data(), dtype, shape);
        if (there && spilled(s, u)) bytes += RoundUp(std::ssize(values_[s][u]));
      }
    }
    spill_ = std::make_unique<SpillMemory>(directory, "state", bytes, io);
    std::byte* next = spill_->data();
    for (size_t s = 0; s < formats.size(); ++s) {
      for (size_t u = 0; u < states_[s].shards.size(); ++u) {
        View& shard = states_[s].shards[u];
        if (shard.NumElements() == 0 || !spilled(s, u)) continue;
        shard.data = next;
        next += RoundUp(shard.bytes());
      }
    }
    for (CheckpointState& state : states_) state.spill = spill_.get();
    Put();
  }

  const std::vector<CheckpointState>& states() const { return states_; }
  SpillMemory* spill() { return spill_.get(); }

  // Reads the state on the disk into memory, and returns it.
  const std::vector<std::vector<std::vector<std::byte>>>& Get() {
    Move([&](View shard, View memory) { spill_->Read(shard, memory); });
    return values_;
  }
  void Put() {
    Move([&](View shard, View memory) { spill_->Write(memory, shard); });
  }
  View InMemory(size_t s, size_t u) {
    return {values_[s][u].data(), states_[s].shards[u].dtype, states_[s].shards[u].shape};
  }

  // Elements of their own, never NaN or infinite, and zeros between parameters.
  void Fill() {
    for (size_t s = 0; s < states_.size(); ++s) {
      for (size_t u = 0; u < states_[s].shards.size(); ++u) {
        const FlatParameter& flat = layout_.flat_parameters[u];
        const View to = InMemory(s, u);
        if (to.NumElements() == 0) continue;
        std::fill_n(to.data, to.bytes(), std::byte{0});
        const std::string state = states_[s].name + "/";
        for (const Piece& piece : PiecesOfShard(flat, place_.shard)) {
          Set(to.Slice(piece.at, piece.count), state + piece.parameter->name, piece.begin);
        }
      }
    }
    Put();
  }

 private:
  static void Set(const View& to, const std::string& name, int64_t begin) {
    const uint64_t seed = HashBytes(name, 1);
    const int64_t size = SizeOf(to.dtype);
    for (int64_t i = 0; i < to.NumElements(); ++i) {
      const uint64_t hash = seed + static_cast<uint64_t>(begin + i) * 0x9e3779b97f4a7c15;
      const uint32_t bits = static_cast<uint32_t>(hash >> 32 & 0xff7fffffu) >> (32 - 8 * size);
      std::memcpy(to.data + i * size, &bits, static_cast<size_t>(size));
    }
  }

  void Move(const std::function<void(View shard, View memory)>& move) {
    for (size_t s = 0; s < states_.size(); ++s) {
      for (size_t u = 0; u < states_[s].shards.size(); ++u) {
        const View& shard = states_[s].shards[u];
        if (spill_->Holds(shard)) move(shard, InMemory(s, u));
      }
    }
  }

  const Layout& layout_;
  const ShardPlace place_;
  const std::vector<StateFormat> formats_;
  std::vector<std::vector<std::vector<std::byte>>> values_;  // [state][flat]
  std::unique_ptr<SpillMemory> spill_;
  std::vector<CheckpointState> states_;
};

struct Case {
  std::vector<SegmentShape> model = OddModel();
  int world = 1, shards = 1;

  Layout MakeLayout() const { return fsdp::MakeLayout(model, {}, shards); }
};

// Shards of more than one block of a load; two parameters that do not end where blocks do.
std::vector<SegmentShape> BigModel() {
  return {{"embedding", false, {{"wte", Shape{1100, 1001}}, {"wpe", Shape{200, 1001}}}},
          {"h.0", true, {{"h.0.w", Shape{1201, 2003}}}}};
}

// Frozen parameters have a master alone there.
std::vector<SegmentShape> FrozenModel() {
  std::vector<SegmentShape> model = OddModel();
  model[1].parameters[1].frozen = true;
  return model;
}

const Case kCases[] = {{OddModel(), 1, 1},    {OddModel(), 2, 2}, {OddModel(), 3, 3},
                       {OddModel(), 2, 1},    {OddModel(), 4, 2}, {BigModel(), 1, 1},
                       {FrozenModel(), 2, 2}, {BigModel(), 3, 1}};

// Each rank's exception, "" for none.
Strings SaveAll(const Case& c, const std::string& checkpoints, int64_t step, const Spilled& spilled,
                const std::string& spill_directory = ::testing::TempDir(),
                const std::vector<FileIo*>& disks = {}) {
  const Layout layout = c.MakeLayout();
  MemoryStore store(/*timeout_s=*/60);
  Strings errors(c.world);
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < c.world; ++rank) {
    ranks.emplace_back([&, rank] {
      const ShardPlace place = PlaceOf(rank, c.world, c.shards);
      FileIo& io = disks.empty() ? FileIo::System() : *disks[rank];
      Shards shards(layout, place, Formats(layout), spilled, spill_directory, io);
      shards.Fill();
      try {
        SaveCheckpoint(checkpoints, layout, place, shards.states(), MetaOf(step), store, 0, 0);
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ExitCode::kCheckpoint);
        errors[rank] = error.what();
      }
    });
  }
  for (std::thread& rank : ranks) rank.join();
  return errors;
}

TEST(SpilledTest, IsSavedAsFromMemory) {
  for (const Case& c : kCases) {
    const std::string want = FreshDirectory("want"), got = FreshDirectory("got");
    ASSERT_EQ(SaveAll(c, want, 1, None), Strings(c.world));
    for (const Spilled& spilled : {Spilled(All), Spilled(Some)}) {
      ASSERT_EQ(SaveAll(c, got, 1, spilled), Strings(c.world));
      const Strings names = ListSorted(want + "/step_1");
      ASSERT_EQ(ListSorted(got + "/step_1"), names);
      for (const std::string& name : names) {
        EXPECT_TRUE(ReadWholeFile(got + "/step_1/" + name) ==
                    ReadWholeFile(want + "/step_1/" + name))
            << name << " of " << c.world << " ranks, F " << c.shards;
      }
    }
  }
}

// Into shards of the same and of other worlds, half of them in a run, and dtypes, and of what is
// between parameters zeros.
TEST(SpilledTest, IsLoadedAsIntoMemory) {
  size_t i = 0;
  for (const Case& from : {kCases[1], kCases[4], kCases[6], kCases[7]}) {
    const std::string dir = FreshDirectory("loaded");
    ASSERT_EQ(SaveAll(from, dir, 1, None), Strings(from.world));
    ++i;
    for (const int to : {1, 2, 3, 5}) {
      if (testing::OfAnotherPart(i++, 2)) continue;
      const Layout layout = MakeLayout(from.model, {}, to);
      for (const auto& [root, rest] : {std::pair{kF32, kBF16}, {kBF16, kF32}}) {
        for (int rank = 0; rank < to; ++rank) {
          const ShardPlace place = PlaceOf(rank, to, to);
          const std::vector<StateFormat> formats = Formats(layout, root, rest);
          Shards want(layout, place, formats, None);
          LoadCheckpoint(dir + "/step_1", layout, place, want.states());
          if (root == kF32) {
            Shards saved(layout, place, formats, None);
            saved.Fill();
            EXPECT_TRUE(want.Get() == saved.Get());
          }
          for (const Spilled& spilled : {Spilled(All), Spilled(Some)}) {
            Shards got(layout, place, formats, spilled);
            LoadCheckpoint(dir + "/step_1", layout, place, got.states());
            EXPECT_TRUE(got.Get() == want.Get()) << "rank " << rank << " of " << to;
          }
        }
      }
    }
  }
}

TEST(SpilledTest, WhatIsNotFiniteIsFoundAsInMemory) {
  const Case c{BigModel()};
  const Layout layout = c.MakeLayout();
  const std::string dir = FreshDirectory("not_finite");
  for (const DType dtype : {kF32, kBF16}) {
    const std::vector<StateFormat> formats = Formats(layout, dtype, dtype);
    Shards in_memory(layout, {}, formats, None), on_disk(layout, {}, formats, All);
    in_memory.Fill();
    on_disk.Fill();
    const FlatParameter& flat = layout.flat_parameters[0];
    const auto look = [&](Shards& shards) {
      return DescribeNotFinite("master", flat, /*begin=*/0, shards.states()[0].shards[0],
                               shards.spill());
    };
    const auto save = [&](Shards& shards) {
      MemoryStore store;
      try {
        SaveCheckpoint(dir, layout, {}, shards.states(), MetaOf(1), store, 0, 0);
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ExitCode::kNotFinite);
        return std::string(error.what());
      }
      return std::string();
    };
    EXPECT_EQ(look(in_memory), "");
    EXPECT_EQ(look(on_disk), "");
    const int64_t block = (int64_t{1} << 20) / SizeOf(dtype);
    for (const int64_t at : {2 * block + 1234, block, block - 1, int64_t{0}}) {
      for (Shards* shards : {&in_memory, &on_disk}) {
        const View values = shards->InMemory(0, 0);  // With what the rounds before have left.
        if (dtype == kF32) {
          values.As<float>()[at] = -INFINITY;
        } else {
          values.As<BFloat16>()[at] = BFloat16(-INFINITY);
        }
        shards->Put();
      }
      EXPECT_EQ(look(on_disk), DescribeNotFinite("master", flat, at, -INFINITY));
      EXPECT_EQ(look(on_disk), look(in_memory));
    }
    const std::string saved = save(on_disk);
    EXPECT_EQ(saved, save(in_memory));
    EXPECT_NE(saved.find(look(on_disk)), std::string::npos) << saved;
    EXPECT_TRUE(ListSorted(dir).empty());
  }
}

TEST(SpilledTest, ADiskThatFailsFailsTheSave) {
  const Case c{OddModel(), 2, 2};
  const std::string dir = FreshDirectory("save_fails"), spill = FreshDirectory("failing_disk");
  ASSERT_EQ(SaveAll(c, dir, 1, All), Strings(2));
  DiskIo good, bad;
  bad.read_error = EIO;
  const Strings errors = SaveAll(c, dir, 2, All, spill, {&good, &bad});
  const std::string why =
      spill + " (state, spilled): bytes 0 to 4096 cannot be read: Input/output error";
  EXPECT_EQ(errors, Strings(2, "the checkpoint was not saved: rank 1: " + why));
  EXPECT_EQ(ListSorted(dir), (Strings{"latest", "step_1"}));
  EXPECT_EQ(ReadWholeFile(dir + "/latest"), "step_1");
  bad.read_error = 0;
  EXPECT_EQ(SaveAll(c, dir, 2, All, spill, {&good, &bad}), Strings(2));
  EXPECT_EQ(ReadWholeFile(dir + "/latest"), "step_2");
}

TEST(SpilledTest, ADiskThatFailsFailsTheLoad) {
  const Case c;
  const std::string dir = FreshDirectory("load_fails"), spill = FreshDirectory("failing_disk");
  ASSERT_EQ(SaveAll(c, dir, 1, None), Strings(1));
  const Layout layout = c.MakeLayout();
  DiskIo bad;
  Shards shards(layout, {}, Formats(layout), All, spill, bad);
  const auto load = [&]() -> std::string {
    return testing::ErrorOf([&] {
      LoadCheckpoint(dir + "/step_1", layout, {}, shards.states());
      DescribeNotFinite("master", layout.flat_parameters[0], 0, shards.states()[0].shards[0],
                        shards.spill());
    });
  };
  bad.write_error = ENOSPC;
  EXPECT_EQ(load().substr(0, load().find(" bytes")), spill + " (state, spilled):");
  EXPECT_NE(load().find("cannot be written: No space left on device"), std::string::npos) << load();
  bad.write_error = 0;
  bad.read_error = EIO;  // The look at what was loaded.
  EXPECT_EQ(load().substr(0, load().find(" bytes")), spill + " (state, spilled):");
  bad.read_error = 0;
  EXPECT_EQ(load(), "");
}

TEST(SpilledTest, AJobThatHasEndedDoesNotWaitForTheDisk) {
  const Case c{BigModel()};
  const Layout layout = c.MakeLayout();
  const std::string dir = FreshDirectory("ended");
  DiskIo io;
  MemoryStore store;
  Shards shards(layout, {}, Formats(layout), All, ::testing::TempDir(), io);
  shards.Fill();
  io.reads = 0;
  io.on_read = [&] {
    if (io.reads == 2) store.Fail("the job has ended");
  };
  EXPECT_THROW(SaveCheckpoint(dir, layout, {}, shards.states(), MetaOf(1), store, 0, 0), CommError);
  EXPECT_EQ(io.reads, 2);
}

}  // namespace
}  // namespace fsdp
