// The actions of a schedule as they are listed, and the waits that each needs: no more than order
// two uses of the same memory which nothing else orders. Two steps may be listed, one behind the
// other: a wait of the second may then be for an action of the first.
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
  // `one_queue`: what belongs to the reduce stream goes to the gather stream. `caching`: what an
  // action takes on the device is other memory each time.
  ActionList(bool one_queue, bool caching) : one_queue_(one_queue), caching_(caching) {}

  // The index of the action, which waits for what it reads and writes, and for `pacing` besides.
  int Add(Action action, const std::vector<int>& pacing = {});

  // `wait`, a kHostWait, was listed right before `held`: it is pacing where that one's own waits
  // already order all that it waits for.
  void Settle(int wait, int held);

  // What follows is the second step, of the same actions.
  void NextStep();

  // The last step's, which signal what the same step behind it would wait for.
  std::vector<Action> Take();

 private:
  // Entry s: the actions of stream s with an index below it are done. The host's waits are one
  // more: what it has waited for is done before all that it enqueues from then on.
  static constexpr int kHost = kNumStreams;
  using Clock = std::array<int, kNumStreams + 1>;
  struct Users {
    int write = -1;  // Of nobody: what was before the first step has ended.
    std::vector<int> reads;
  };

  // The same for all that use one memory.
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
  std::vector<Clock> clocks_;  // Of each action, when it is done.
  std::array<Clock, kNumStreams + 1> streams_{};
  std::map<Key, Users> users_;
  // Of the last kHostWait: what it waits for to order memory, and what the stream that it holds
  // back knew before.
  std::vector<int> needed_;
  Clock held_{};
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_FSDP_ACTION_LIST_H_
