// News that ranks of a group tell each other through the store, beside their collectives: that one
// has failed or left, and where each of them is in its calls. Costs nothing while all is well.
// Tests: tests/trainer/comm/group_news_test.cc
#ifndef FSDP_TRAIN_TRAINER_COMM_NCCL_GROUP_NEWS_H_
#define FSDP_TRAIN_TRAINER_COMM_NCCL_GROUP_NEWS_H_

#include <cstddef>
#include <cstdint>
#include <deque>
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

// The newest calls that a rank has begun, the last one last.
class CallPosition {
 public:
  struct Call {
    uint64_t sequence = 0;
    std::string text;  // "all_reduce #1 (n = 7, fp32)".
  };

  void Begin(const Call& call);

  const Call* newest() const { return calls_.empty() ? nullptr : &calls_.back(); }
  const Call* Find(uint64_t sequence) const;

  std::string ToString() const;
  static CallPosition Parse(const std::string& text);

 private:
  static constexpr size_t kKept = 8;
  std::deque<Call> calls_;
};

// By rank of the group; nullopt: it does not answer.
using CallPositions = std::vector<std::optional<CallPosition>>;

// "ranks disagree: rank 0 is in ..., rank 2 in ...": whose call of this number is not the first
// one's. Empty: nobody's, as far as they say.
std::string Disagreement(uint64_t sequence, const RankGroup& group, const CallPositions& positions);

// "rank 2 has not arrived (its last was all_reduce #0)", and the like. Empty: all have begun it.
std::string WhoIsLate(uint64_t sequence, const RankGroup& group, const CallPositions& positions);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_COMM_NCCL_GROUP_NEWS_H_
