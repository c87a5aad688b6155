#include "trainer/comm/mesh.h"

#include <stdexcept>
#include <string>

#include "trainer/core/check.h"

namespace fsdp {

Mesh::Mesh(int world_rank, int world_size, int shard_size)
    : world_rank_(world_rank), world_size_(world_size), shard_size_(shard_size) {
  if (world_size < 1 || world_rank < 0 || world_rank >= world_size) {
    throw std::invalid_argument("[Mesh] rank " + std::to_string(world_rank) + " of " +
                                std::to_string(world_size) + ", want 0 <= rank < world size");
  }
  if (shard_size < 1 || world_size % shard_size != 0) {
    throw std::invalid_argument("[Mesh] shard size is " + std::to_string(shard_size) +
                                ", want a divisor of the world size, " +
                                std::to_string(world_size));
  }
}

Mesh::Coordinate Mesh::CoordinateOf(int world_rank) const {
  FSDP_CHECK_LE(0, world_rank);
  FSDP_CHECK_LT(world_rank, world_size_);
  return {world_rank / shard_size_, world_rank % shard_size_, 0, 0};
}

int Mesh::RankOf(const Coordinate& coordinate) const {
  FSDP_CHECK_EQ(coordinate.sequence, 0);
  FSDP_CHECK_EQ(coordinate.expert, 0);
  FSDP_CHECK_LT(coordinate.shard, shard_size_);
  FSDP_CHECK_LT(coordinate.replicate, replicate_size());
  return coordinate.replicate * shard_size_ + coordinate.shard;
}

std::vector<int> Mesh::ShardGroup() const {
  std::vector<int> ranks;
  const int replicate = coordinate().replicate;
  for (int s = 0; s < shard_size_; ++s) ranks.push_back(RankOf({replicate, s, 0, 0}));
  return ranks;
}

std::vector<int> Mesh::ReplicateGroup() const {
  std::vector<int> ranks;
  const int shard = coordinate().shard;
  for (int r = 0; r < replicate_size(); ++r) ranks.push_back(RankOf({r, shard, 0, 0}));
  return ranks;
}

}  // namespace fsdp
