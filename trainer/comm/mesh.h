// Who is who: the ranks of a job as coordinates. Pure arithmetic, the same on every rank.
#ifndef FSDP_TRAIN_TRAINER_COMM_MESH_H_
#define FSDP_TRAIN_TRAINER_COMM_MESH_H_

#include <vector>

#include "trainer/comm/rank_group.h"

namespace fsdp {

// The ranks that a collective of a step goes over.
enum class Group {
  kGather,     // All-gathers: neighbours who together hold one copy of everything.
  kSecondary,  // All-gathers of secondary copies: neighbours among those.
  kReduce,     // Reduce-scatters: the same.
  kInside,     // The first hop of reductions that take two: those of them on one host.
  kAcross,     // The second hop: those of the same index on each host.
  kReplicate,  // All-reduces of a shard: those who hold the same one.
  kWorld,      // The step's scalars.
};
inline constexpr int kGroups = 7;
const char* Name(Group group);  // "gather", ...

// Ranks as a [replicate][shard] array, shard innermost: with F = ranks per host, a shard group is a
// host (Zhao et al. 2023, arXiv:2304.11277, section 3.2.2, hybrid sharding). A rank's place in it,
// replicate x F + shard, is its position; world ranks only name it, however they are numbered.
class Mesh {
 public:
  struct Coordinate {
    int replicate = 0, shard = 0;
    bool operator==(const Coordinate&) const = default;
  };
  // A group has `size` ranks, `stride` positions apart: they differ in that digit of their position
  // alone. Another axis is another case of AxisOf().
  struct Axis {
    int size = 1, stride = 1;
  };

  // `shard_size` is F, a divisor of `world_size`. `ranks[p]`: the world rank at position p, each
  // once; empty: they are the same. `secondary_size`, `inside_size`: sizes of groups kSecondary and
  // kInside, divisors of F. An inside_size of 0 is F: reductions take one hop. Throws
  // std::invalid_argument otherwise.
  Mesh(int world_rank, int world_size, int shard_size, std::vector<int> ranks = {},
       int secondary_size = 1, int inside_size = 0);

  int world_rank() const { return world_rank_; }
  int world_size() const { return world_size_; }
  int shard_size() const { return shard_size_; }
  int replicate_size() const { return world_size_ / shard_size_; }
  int secondary_size() const { return secondary_size_; }
  int inside_size() const { return inside_size_; }
  bool hybrid() const { return shard_size_ > 1 && replicate_size() > 1; }

  Coordinate coordinate() const { return CoordinateOf(world_rank_); }
  Coordinate CoordinateOf(int world_rank) const;
  int RankOf(const Coordinate& coordinate) const;

  // In order of position. With s = coordinate().shard a rank's number in the group is s (kGather,
  // kReduce), s modulo secondary_size() (kSecondary), s modulo inside_size() (kInside), s /
  // inside_size() (kAcross), coordinate().replicate (kReplicate) or position() (kWorld).
  RankGroup RanksOf(Group group) const;
  Axis AxisOf(Group group) const;
  int SizeOf(Group group) const { return AxisOf(group).size; }

  int position() const { return position_; }
  // The part of the samples that is this rank's, of data_size() parts.
  int data_coordinate() const { return position_; }
  int data_size() const { return world_size_; }

 private:
  int PositionOf(int world_rank) const;
  int RankAt(int position) const { return ranks_.empty() ? position : ranks_[position]; }

  int world_rank_, world_size_, shard_size_, secondary_size_, inside_size_, position_;
  std::vector<int> ranks_;  // By position. Empty: the identity.
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_COMM_MESH_H_
