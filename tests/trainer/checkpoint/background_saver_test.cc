#include "trainer/checkpoint/background_saver.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/trainer/checkpoint/rank_states.h"
#include "trainer/checkpoint/checkpoint_directory.h"
#include "trainer/comm/store/memory_store.h"
#include "trainer/core/errors.h"
#include "trainer/runtime/stream_checker.h"

namespace fsdp {
namespace {

TEST(BackgroundSaverTest, RunsWhileTheCallerGoesOn) {
  BackgroundSaver saver;
  EXPECT_FALSE(saver.in_flight());
  std::promise<void> go;
  std::thread::id thread;
  int number = 0;  // Written by the caller before Start() and after Finish(), read in between.
  for (int i = 1; i <= 3; ++i) {
    go = {};
    number = i;
    saver.Start([&] {
      thread = std::this_thread::get_id();
      go.get_future().wait();
      return SavedCheckpoint{"step_" + std::to_string(number), number, 0};
    });
    EXPECT_TRUE(saver.in_flight());
    EXPECT_FALSE(saver.ended());
    go.set_value();
    const SavedCheckpoint saved = saver.Finish();
    EXPECT_EQ(saved.path, "step_" + std::to_string(i));
    EXPECT_EQ(saved.bytes, i);
    EXPECT_NE(thread, std::this_thread::get_id());
    EXPECT_FALSE(saver.in_flight() || saver.ended() || saver.failed());
  }
}

TEST(BackgroundSaverTest, SaysThatItFailedAndThrowsWhenAsked) {
  BackgroundSaver saver;
  saver.Start([]() -> SavedCheckpoint { throw CheckpointError("no space"); });
  while (!saver.ended()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_TRUE(saver.in_flight());
  EXPECT_TRUE(saver.failed());
  try {
    saver.Finish();
    ADD_FAILURE() << "nothing was thrown";
  } catch (const CheckpointError& error) {
    EXPECT_STREQ(error.what(), "no space");
  }
  EXPECT_FALSE(saver.failed());
  saver.Start([] { return SavedCheckpoint{"a", 1, 0}; });
  EXPECT_EQ(saver.Finish().path, "a");
}

TEST(BackgroundSaverTest, TheEndWaits) {
  std::atomic<bool> done = false;
  {
    BackgroundSaver saver;
    saver.Start([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      done = true;
      return SavedCheckpoint();
    });
  }
  EXPECT_TRUE(done);
}

TEST(BackgroundSaverDeathTest, OneAtATime) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        BackgroundSaver saver;
        saver.Start([] { return SavedCheckpoint(); });
        saver.Start([] { return SavedCheckpoint(); });
      },
      "a second save in the background");
  EXPECT_DEATH(BackgroundSaver().Finish(), "no save to finish");
}

// Real saves of three ranks, whose shards change as soon as the snapshot is taken.
TEST(BackgroundSaverTest, SavesTheSnapshotAndNotWhatCameAfter) {
  constexpr int kWorld = 3;
  World world;
  world.world = world.shards = kWorld;
  const Layout layout = world.MakeLayout();
  const std::string dir = FreshDirectory("background");
  MemoryStore store(/*timeout_s=*/60);
  const auto run = [&](int rank) {
    const ShardPlace place = PlaceOf(rank, kWorld, kWorld);
    RankStates live(layout, place, world.states), snapshot(layout, place, world.states);
    BackgroundSaver saver;
    for (int64_t step = 1; step <= 5; ++step) {
      live.Fill(static_cast<uint64_t>(step));
      if (saver.in_flight()) saver.Finish();
      snapshot.Fill(static_cast<uint64_t>(step));
      saver.Start([&, step] {
        return SaveCheckpoint(dir, layout, place, snapshot.states(), MetaOf(step), store, step, 0);
      });
      live.Poison();
    }
    saver.Finish();
  };
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < kWorld; ++rank) ranks.emplace_back(run, rank);
  for (std::thread& rank : ranks) rank.join();
  for (int64_t step = 1; step <= 5; ++step) {
    EXPECT_EQ(LoadAndCompare(world, FindCheckpoint(dir, step), static_cast<uint64_t>(step)), "");
  }
}

// The saver is a stream to the checker: whoever wrote what it reads must have been waited for, and
// it before that is written again.
TEST(BackgroundSaverTest, IsKnownToTheStreamChecker) {
  std::vector<std::string> races;
  const auto checker = std::make_shared<StreamChecker>(
      [&](const StreamChecker::Race& race) { races.push_back(race.ToString()); });
  const int stream = checker->AddStream("compute");
  const float bytes[64] = {};
  const Range range(bytes, sizeof(bytes));
  const auto write = [&] { checker->OnOperation(stream, "copy", {}, {range}); };
  const auto wait = [&] { checker->OnHostWait(checker->OnRecord(stream)); };
  const auto save = [] { return SavedCheckpoint(); };
  const auto take = [&] { return std::exchange(races, {}); };
  {
    BackgroundSaver saver(checker);
    write();
    wait();
    saver.Start(save, {range});
    saver.Finish();
    write();
    EXPECT_EQ(take().size(), 0u);
    saver.Start(save, {range});  // Without a wait for the write.
    const auto early = take();
    ASSERT_EQ(early.size(), 1u);
    EXPECT_NE(early[0].find("save on saver is not ordered after copy on compute"),
              std::string::npos)
        << early[0];
    write();  // While the save is in flight.
    const auto over = take();
    ASSERT_EQ(over.size(), 1u);
    EXPECT_NE(over[0].find("copy on compute is not ordered after save on saver"), std::string::npos)
        << over[0];
    saver.Finish();
    wait();
    saver.Start(save, {range});
  }
  checker->OnFree(range);  // Its end has been waited for.
  EXPECT_EQ(take().size(), 0u);
}

}  // namespace
}  // namespace fsdp
