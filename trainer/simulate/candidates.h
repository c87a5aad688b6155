// The recipes that `plan --search` tries: one recipe with other settings of memory, sharding and
// order, none of which changes results but by rounding.
// Tests: tests/trainer/simulate/search_test.cc
#ifndef FSDP_TRAIN_TRAINER_SIMULATE_CANDIDATES_H_
#define FSDP_TRAIN_TRAINER_SIMULATE_CANDIDATES_H_

#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "trainer/recipe/hardware.h"
#include "trainer/recipe/recipe.h"

namespace fsdp {

struct SearchSpace {
  Recipe recipe;
  int world = 1, local_world = 1;  // local_world: ranks of a host.
  Hardware hardware;
  // The model has batch norms over a rank's micro-batch: its size changes results.
  bool normalizes = false;
};

// Candidates are numbered from 0, the recipe itself. Neighbours form groups: candidates of a group
// compute and move the same. They differ in when, and in slots. Combinations that the recipe's own
// checks refuse are among them.
class Candidates {
 public:
  static constexpr size_t kNumAxes = 15;               // Settings that differ.
  using Settings = std::array<std::string, kNumAxes>;  // A value for each.

  explicit Candidates(SearchSpace space);

  size_t size() const { return size_; }
  size_t groups() const { return groups_.size(); }
  size_t GroupOf(size_t candidate) const;
  size_t FirstOf(size_t group) const { return groups_[group].first; }
  size_t EndOf(size_t group) const;  // Behind its last candidate.
  // The candidate with the fewest slots. Where memory is planned by slots, no other of its group
  // takes less.
  size_t LeastOf(size_t group) const;
  // How many of these differ from the recipe's: what is computed again, whether activations are on
  // the host, whether the optimizer's state is there. `plan` cures by one at a time.
  int ChangesOf(size_t group) const;

  // "KEY=VALUE" as --set has it, of each setting that is another than the recipe's own.
  std::vector<std::string> Overrides(size_t candidate) const;
  // The candidate with these alone, in any order. Empty: it is not among them.
  std::optional<size_t> Find(const std::vector<std::string>& overrides) const;

 private:
  struct Group {
    size_t first = 0;
    Settings work;  // The recipe's own where a group's members differ.
  };
  void Descend(size_t axis, size_t end, Settings& chosen, std::vector<Settings>& found) const;
  bool SameWork(const Settings& a, const Settings& b) const;
  std::vector<Settings> MembersOf(size_t group) const;

  const SearchSpace space_;
  Settings own_;
  size_t order_ = 0;    // The first axis in which members of a group differ.
  bool alone_ = false;  // The recipe's own work is in no other candidate.
  std::vector<Group> groups_;
  size_t size_ = 0;
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_SIMULATE_CANDIDATES_H_
