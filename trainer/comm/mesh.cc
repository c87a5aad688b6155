#include "trainer/comm/mesh.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "trainer/core/check.h"

namespace fsdp {

const char* Name(Group group) {
  switch (group) {
    case Group::kGather:
      return "gather";
    case Group::kSecondary:
      return "secondary";
    case Group::kReduce:
      return "reduce";
    case Group::kInside:
      return "inside";
    case Group::kAcross:
      return "across";
    case Group::kReplicate:
      return "replicate";
    case Group::kWorld:
      return "world";
  }
  FSDP_CHECK(false) << "group " << static_cast<int>(group);
}

Mesh::Mesh(int world_rank, int world_size, int shard_size, std::vector<int> ranks,
           int secondary_size, int inside_size)
    : world_rank_(world_rank),
      world_size_(world_size),
      shard_size_(shard_size),
      secondary_size_(secondary_size),
      inside_size_(inside_size == 0 ? shard_size : inside_size),
      position_(world_rank),
      ranks_(std::move(ranks)) {
  if (world_size < 1 || world_rank < 0 || world_rank >= world_size) {
    throw std::invalid_argument("[Mesh] rank " + std::to_string(world_rank) + " of " +
                                std::to_string(world_size) + ", want 0 <= rank < world size");
  }
  if (shard_size < 1 || world_size % shard_size != 0) {
    throw std::invalid_argument("[Mesh] shard size is " + std::to_string(shard_size) +
                                ", want a divisor of the world size, " +
                                std::to_string(world_size));
  }
  if (secondary_size < 1 || shard_size % secondary_size != 0) {
    throw std::invalid_argument("[Mesh] secondary size is " + std::to_string(secondary_size) +
                                ", want a divisor of the shard size, " +
                                std::to_string(shard_size));
  }
  if (inside_size_ < 1 || shard_size % inside_size_ != 0) {
    throw std::invalid_argument("[Mesh] inside size is " + std::to_string(inside_size) +
                                ", want a divisor of the shard size, " +
                                std::to_string(shard_size));
  }
  if (ranks_.empty()) return;
  std::vector<bool> there(world_size);
  for (const int rank : ranks_) {
    if (rank >= 0 && rank < world_size) there[rank] = true;
  }
  if (std::cmp_not_equal(ranks_.size(), world_size) ||
      std::find(there.begin(), there.end(), false) != there.end()) {
    throw std::invalid_argument("[Mesh] want each of " + std::to_string(world_size) +
                                " ranks at one position");
  }
  position_ = PositionOf(world_rank);
}

int Mesh::PositionOf(int world_rank) const {
  if (ranks_.empty()) return world_rank;
  return static_cast<int>(std::find(ranks_.begin(), ranks_.end(), world_rank) - ranks_.begin());
}

Mesh::Coordinate Mesh::CoordinateOf(int world_rank) const {
  FSDP_CHECK_LE(0, world_rank);
  FSDP_CHECK_LT(world_rank, world_size_);
  const int position = PositionOf(world_rank);
  return {position / shard_size_, position % shard_size_};
}

int Mesh::RankOf(const Coordinate& coordinate) const {
  FSDP_CHECK_LT(coordinate.shard, shard_size_);
  FSDP_CHECK_LT(coordinate.replicate, replicate_size());
  return RankAt(coordinate.replicate * shard_size_ + coordinate.shard);
}

Mesh::Axis Mesh::AxisOf(Group group) const {
  switch (group) {
    case Group::kGather:
    case Group::kReduce:
      return {shard_size_, 1};
    case Group::kSecondary:
      return {secondary_size_, 1};
    case Group::kInside:
      return {inside_size_, 1};
    case Group::kAcross:
      return {shard_size_ / inside_size_, inside_size_};
    case Group::kReplicate:
      return {replicate_size(), shard_size_};
    case Group::kWorld:
      return {world_size_, 1};
  }
  FSDP_CHECK(false) << "group " << static_cast<int>(group);
}

RankGroup Mesh::RanksOf(Group group) const {
  const auto [size, stride] = AxisOf(group);
  const int first = position_ - position_ / stride % size * stride;
  std::vector<int> ranks;
  ranks.reserve(size);
  for (int i = 0; i < size; ++i) ranks.push_back(RankAt(first + i * stride));
  return RankGroup(std::move(ranks), world_rank_);
}

}  // namespace fsdp
