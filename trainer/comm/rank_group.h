// Some of a job's ranks, and which of them this one is.
// Tests: tests/trainer/comm/mesh_test.cc
#ifndef FSDP_TRAIN_TRAINER_COMM_RANK_GROUP_H_
#define FSDP_TRAIN_TRAINER_COMM_RANK_GROUP_H_

#include <string>
#include <vector>

namespace fsdp {

// In the order of their numbers in a communicator. Messages name ranks as the world does.
class RankGroup {
 public:
  // World ranks, each once, `world_rank` among them. Throws std::invalid_argument.
  RankGroup(std::vector<int> ranks, int world_rank);
  // The whole of a world. Throws std::invalid_argument.
  static RankGroup World(int rank, int size);

  int rank() const { return rank_; }  // This one's number here.
  int size() const { return static_cast<int>(ranks_.size()); }
  int NameOf(int rank) const { return ranks_[rank]; }  // Its number in the world.
  const std::vector<int>& ranks() const { return ranks_; }

  bool operator==(const RankGroup&) const = default;

 private:
  std::vector<int> ranks_;
  int rank_;
};

// "rank 3", "ranks 2, 3", "ranks 1, 4 to 7": ascending ranks, for people.
std::string RanksInWords(const std::vector<int>& ranks);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_COMM_RANK_GROUP_H_
