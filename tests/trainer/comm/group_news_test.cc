#include "trainer/comm/nccl/group_news.h"

#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "trainer/comm/store/memory_store.h"

namespace fsdp {
namespace {

// The news that a rank hears, in words.
class Heard {
 public:
  void Add(const std::string& text) {
    {
      std::lock_guard lock(mutex_);
      all_ += text + ";";
    }
    changed_.notify_all();
  }
  std::string Wait(const std::string& want) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::seconds(60), [&] { return all_ == want; });
    return all_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::string all_;
};

class GroupNewsTest : public ::testing::Test {
 protected:
  GroupNewsTest() {
    for (int r = 0; r < 3; ++r) {
      news_.push_back(std::make_unique<GroupNews>(
          store_, "group", RankGroup({4, 5, 6}, 4 + r),
          GroupNews::Listener{
              [&heard = heard_[r]](uint64_t calls, const std::string& why) {
                heard.Add(std::to_string(calls) + " calls: " + why);
              },
              [&heard = heard_[r]](const std::string& why) { heard.Add("lost: " + why); },
              [r] { return "position " + std::to_string(r); }}));
    }
  }

  MemoryStore store_{/*timeout_s=*/60};
  Heard heard_[3];
  std::vector<std::unique_ptr<GroupNews>> news_;
};

TEST_F(GroupNewsTest, OthersHearInOrder) {
  const std::string first = "5 calls: the disk\nis full;", second = "7 calls: enough;";
  news_[1]->Fail(5, "the disk\nis full");
  EXPECT_EQ(heard_[0].Wait(first), first);
  news_[0]->Leave(7, "enough");
  EXPECT_EQ(heard_[2].Wait(first + second), first + second);
  EXPECT_EQ(heard_[1].Wait(second), second);
}

TEST_F(GroupNewsTest, WhoIsThereSaysWhere) {
  const std::vector<std::optional<std::string>> all = {"position 0", "position 1", "position 2"};
  EXPECT_EQ(news_[2]->Positions(60), all);
  news_[0].reset();
  EXPECT_EQ(news_[1]->Positions(0.2)[0], std::nullopt);
  EXPECT_EQ(news_[1]->Positions(0.2)[2], "position 2");
}

TEST_F(GroupNewsTest, AFailedStoreIsHeardOf) {
  store_.Fail("rank 9 has gone");
  for (Heard& heard : heard_) {
    EXPECT_EQ(heard.Wait("lost: rank 9 has gone;"), "lost: rank 9 has gone;");
  }
  EXPECT_EQ(news_[1]->Positions(60)[1], std::nullopt);
  news_[1]->Fail(0, "nobody is told any more");
}

CallPosition After(const std::vector<CallPosition::Call>& calls) {
  CallPosition position;
  for (const CallPosition::Call& call : calls) position.Begin(call);
  return CallPosition::Parse(position.ToString());
}

TEST(CallPosition, TellsWhoDisagreesAndWhoIsLate) {
  const RankGroup group({4, 5, 6}, 4);
  const CallPosition::Call first{0, "all_reduce #0 (n = 7, fp32)"},
      second{1, "all_gather #1 (n = 7, fp32)"}, odd{1, "all_gather #1 (n = 8, fp32)"};
  EXPECT_EQ(WhoIsLate(1, group, {After({first, second}), After({first}), After({})}),
            "rank 5 has not arrived (its last was all_reduce #0), rank 6 has not arrived (no "
            "collective yet)");
  EXPECT_EQ(WhoIsLate(1, group, {After({first, second}), std::nullopt, After({second})}),
            "rank 5 does not answer");
  EXPECT_EQ(Disagreement(1, group, {After({first, second}), After({first}), After({first, odd})}),
            "ranks disagree: rank 4 is in all_gather #1 (n = 7, fp32), rank 6 in all_gather #1 (n "
            "= 8, fp32)");
  EXPECT_EQ(Disagreement(0, group, {After({first, second}), std::nullopt, After({first, odd})}),
            "");
}

TEST(CallPosition, KeepsTheNewest) {
  CallPosition position;
  for (uint64_t i = 0; i < 100; ++i) position.Begin({i, "call #" + std::to_string(i)});
  const CallPosition back = CallPosition::Parse(position.ToString());
  EXPECT_EQ(back.newest()->sequence, 99u);
  EXPECT_EQ(back.Find(98)->text, "call #98");
  EXPECT_EQ(back.Find(1), nullptr);
}

}  // namespace
}  // namespace fsdp
