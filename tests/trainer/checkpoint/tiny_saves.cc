#include "tests/trainer/checkpoint/tiny_saves.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <exception>
#include <ostream>

#include "trainer/checkpoint/checkpoint.h"
#include "trainer/checkpoint/checkpoint_directory.h"
#include "trainer/comm/store/memory_store.h"

namespace fsdp {

World TinyWorld(int world) {
  World w;
  w.model = {{"embedding", false, {{"wte", Shape{11, 24}}}},
             {"h.0", true, {{"h.0.w", Shape{24, 13}}, {"h.0.b", Shape{13}}}}};
  w.states = {"master", "m"};
  w.world = w.shards = world;
  return w;
}

std::vector<std::string> TinySave::Run(const std::string& checkpoints) const {
  MemoryStore store(/*timeout_s=*/60);
  return Save(world, checkpoints, saved.step, keep_last, store, /*attempt=*/0, saved.salt);
}

void TinySave::Before(const std::string& checkpoints) const {
  for (const Saved& earlier : before) {
    MemoryStore store(/*timeout_s=*/60);
    for (const std::string& error : Save(world, checkpoints, earlier.step, /*keep_last=*/0, store,
                                         /*attempt=*/0, earlier.salt)) {
      ASSERT_EQ(error, "");
    }
  }
}

testing::Answer TinySave::FileSystem(const testing::FileCall& call) const {
  const bool refused = call.kind == testing::FileCall::Kind::kExchange && !can_exchange;
  return {.error = refused ? EINVAL : 0};
}

std::vector<TinySave> TinySaves() {
  std::vector<TinySave> saves;
  const Saved one{1, 1}, two{2, 2}, three{3, 3}, other{2, 1002};
  saves.push_back({"first", TinyWorld(1), {}, one});
  saves.push_back({"second", TinyWorld(1), {one}, two});
  saves.push_back({"second of two ranks", TinyWorld(2), {one}, two});
  saves.push_back({"in place of the last", TinyWorld(1), {one}, two, 1});
  saves.push_back({"keeps the last two", TinyWorld(1), {one, two}, three, 2});
  saves.push_back({"same step", TinyWorld(1), {one, two}, other});
  saves.push_back({"same step of two ranks", TinyWorld(2), {two}, other, 1});
  saves.push_back({"same step set aside", TinyWorld(1), {two}, other, 0, false});
  return saves;
}

void PrintTo(const TinySave& save, std::ostream* out) { *out << save.name; }

std::optional<Saved> FindSaved(const TinySave& save, const std::string& checkpoints,
                               std::string& error) {
  try {
    const auto path = FindLatestCheckpoint(checkpoints);
    if (!path) return std::nullopt;
    const int64_t step = ReadCheckpointMeta(*path).step;
    std::vector<Saved> all = save.before;
    all.push_back(save.saved);
    error = *path + ": holds none of what was saved";
    for (const Saved& one : all) {
      if (one.step != step) continue;
      error = LoadAndCompare(save.world, *path, one.salt);
      if (error.empty()) return one;
    }
  } catch (const std::exception& e) {
    error = e.what();
  }
  return std::nullopt;
}

std::string NextSave(const TinySave& save, const std::string& checkpoints) {
  TinySave next = save;
  next.saved = {save.saved.step + 1, 4711};
  next.keep_last = 1;
  for (const std::string& error : next.Run(checkpoints)) {
    if (!error.empty()) return error;
  }
  std::string error;
  const auto found = FindSaved(next, checkpoints, error);
  if (!error.empty()) return error;
  return found == next.saved ? "" : "the next save is not what is found";
}

}  // namespace fsdp
