// Lists the actions of a schedule and gives each its waits: only those that order two uses of the
// same memory which nothing else orders. Two steps may be listed, one behind the other: a wait of
// the second may then be for an action of the first.
// Tests: tests/trainer/fsdp/schedule_test.cc
#ifndef FSDP_TRAIN_TRAINER_FSDP_ACTION_LIST_H_
#define FSDP_TRAIN_TRAINER_FSDP_ACTION_LIST_H_

#include <array>
#include <map>
#include <tuple>
#include <vector>

#include "trainer/fsdp/action.h"

namespace fsdp {

// Vector clocks over streams, as the stream checker keeps them over bytes.
class ActionList {
 public:
  // `one_queue`: actions of the reduce stream go to the gather stream. `caching`: an action takes
  // other device memory each time.
  ActionList(bool one_queue, bool caching) : one_queue_(one_queue), caching_(caching) {}

  // Adds an action, which waits for the earlier uses of what it reads and writes, and for `pacing`.
  // Returns its index.
  int Add(Action action, const std::vector<int>& pacing = {});

  // `wait`, a kHostWait, was listed right before `held`. It becomes pacing if the waits of `held`
  // already order all that it waits for.
  void Settle(int wait, int held);

  // The last action on a stream so far; -1: none.
  int LastOn(StreamId stream) const {
    const auto lane = static_cast<int>(stream);
    return streams_[lane][lane] - 1;
  }

  // Begins the second step, which has the same actions.
  void NextStep();

  // The last step's actions. They signal what an equal step behind them would wait for.
  std::vector<Action> Take();

 private:
  // Entry s: the actions of stream s with an index below it are done. The host has an entry, too:
  // what it has waited for is done before all that it enqueues from then on.
  static constexpr int kHost = kNumStreams;
  using Clock = std::array<int, kNumStreams + 1>;
  struct Users {
    int write = -1;  // -1: none; all work before the first step has ended.
    std::vector<int> reads;
  };

  // Equal for all uses of one memory.
  using Key = std::tuple<Resource, bool, int, int>;

  static Key KeyOf(const Use& use);
  static int LaneOf(const Action& action);
  static void Join(Clock& into, const Clock& from);
  bool Knows(const Clock& clock, int action) const;
  void Touch(const Use& use, int index, bool write, std::vector<int>& needed);
  std::vector<Wait> Minimal(const Clock& known, const std::vector<int>& needed,
                            const std::vector<int>& pacing) const;

  const bool one_queue_, caching_;
  std::vector<Action> actions_;
  int begin_ = 0;              // Where the last step begins.
  std::vector<Clock> clocks_;  // By action: the clock when it is done.
  std::array<Clock, kNumStreams + 1> streams_{};
  std::map<Key, Users> users_;
  // For the last kHostWait: the actions that it waits for to order memory, and what the held-back
  // stream knew before.
  std::vector<int> needed_;
  Clock held_{};
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_FSDP_ACTION_LIST_H_
