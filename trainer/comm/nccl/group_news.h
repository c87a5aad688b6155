// News that ranks of a group tell each other through the store, beside their collectives: that one
// has failed or left, and where each of them is. Costs nothing while all is well.
// Tests: tests/trainer/comm/group_news_test.cc
#ifndef FSDP_TRAIN_TRAINER_COMM_NCCL_GROUP_NEWS_H_
#define FSDP_TRAIN_TRAINER_COMM_NCCL_GROUP_NEWS_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "trainer/comm/rank_group.h"
#include "trainer/comm/store/store.h"

namespace fsdp {

class GroupNews {
 public:
  // Called on a thread of its own, never for what this rank itself has told.
  struct Listener {
    // A rank has failed or left: it has done `calls` calls and does no more.
    std::function<void(uint64_t calls, const std::string& why)> ended;
    std::function<void(const std::string& why)> lost;  // The store: nobody is heard of any more.
    std::function<std::string()> position;             // This rank's, for whoever asks.
  };

  // `key` is this group's alone: its keys in the store begin with it. The store outlives this
  // object.
  GroupNews(Store& store, std::string key, const RankGroup& group, Listener listener);
  ~GroupNews() { Leave(0, ""); }
  GroupNews(const GroupNews&) = delete;
  GroupNews& operator=(const GroupNews&) = delete;

  // Tell all others. Where the store takes nothing any more they hear of that by themselves. A rank
  // that has left hears nothing from here on.
  void Fail(uint64_t calls, const std::string& why);
  void Leave(uint64_t calls, const std::string& why);

  // Everybody's position(), by rank of the group: of those who answer within `patience_s`. Blocks.
  std::vector<std::optional<std::string>> Positions(double patience_s);

 private:
  int64_t Tell(const std::string& text);  // Its number. Throws CommError.
  void Listen();
  bool Hear(int64_t number, const std::string& text);  // False for the last.

  Store& store_;
  const std::string key_;
  const RankGroup group_;
  const Listener listener_;
  std::thread thread_;  // Last: it uses all of the above.
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_COMM_NCCL_GROUP_NEWS_H_
