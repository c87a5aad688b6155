#include "trainer/comm/rank_group.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>

namespace fsdp {

RankGroup::RankGroup(std::vector<int> ranks, int world_rank) : ranks_(std::move(ranks)) {
  const auto found = std::find(ranks_.begin(), ranks_.end(), world_rank);
  rank_ = static_cast<int>(found - ranks_.begin());
  // A million ranks in a set take half a second. Those of a mesh nearly always ascend.
  const auto each_once = [&] {
    return std::adjacent_find(ranks_.begin(), ranks_.end(), std::greater_equal<>()) ==
               ranks_.end() ||
           std::set<int>(ranks_.begin(), ranks_.end()).size() == ranks_.size();
  };
  if (found == ranks_.end() || !each_once() ||
      *std::min_element(ranks_.begin(), ranks_.end()) < 0) {
    throw std::invalid_argument("[RankGroup] rank " + std::to_string(world_rank) +
                                " in a group of " + std::to_string(ranks_.size()) +
                                ", want ranks of the world, each once, this one among them");
  }
}

RankGroup RankGroup::World(int rank, int size) {
  if (rank < 0 || rank >= size) {
    throw std::invalid_argument("[RankGroup] rank " + std::to_string(rank) + " of " +
                                std::to_string(size) + ", want 0 <= rank < size");
  }
  std::vector<int> ranks(size);
  std::iota(ranks.begin(), ranks.end(), 0);
  return RankGroup(std::move(ranks), rank);
}

std::string RanksInWords(const std::vector<int>& ranks) {
  std::string words = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t begin = 0, end; begin < ranks.size(); begin = end) {
    end = begin + 1;
    while (end < ranks.size() && ranks[end] == ranks[end - 1] + 1) ++end;
    if (end - begin == 2) --end;  // "2, 3" is shorter than "2 to 3".
    if (begin > 0) words += ", ";
    words += std::to_string(ranks[begin]);
    if (end - begin > 1) words += " to " + std::to_string(ranks[end - 1]);
  }
  return words;
}

}  // namespace fsdp
