// How far a rank has come in its calls of a communicator, and what the positions of all tell about
// a call that does not end.
// Tests: tests/trainer/comm/group_news_test.cc
#ifndef FSDP_TRAIN_TRAINER_COMM_NCCL_CALL_POSITION_H_
#define FSDP_TRAIN_TRAINER_COMM_NCCL_CALL_POSITION_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "trainer/comm/rank_group.h"

namespace fsdp {

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

#endif  // FSDP_TRAIN_TRAINER_COMM_NCCL_CALL_POSITION_H_
