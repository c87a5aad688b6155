// `plan --search`: of the recipes that differ from one in memory, sharding and order alone, those
// whose steps are the shortest on a described cluster. Each that is timed is the real schedule,
// simulated, in memory that is planned to the byte.
//
//   Cures   Where the recipe itself does not fit, what `plan` names as cures is tried first, for
//   ten
//           seconds even where the budget is smaller. Groups of candidates (candidates.h) with few
//           of these changes go first.
//   Memory  The candidate that takes the least of its group is planned. Where it does not fit, the
//           whole group is lost.
//   Bound   No step is shorter than its floor (step_floor.h), nor than what its compute stream does
//           alone. A group whose bound is above the last of the `best` steps so far has lost. The
//           group with the fewest changes, and the lowest bound of those, is timed first.
//   Time    Steps of many micro-batches are simulated with few (short_step.h). The best are then
//           simulated whole, where the budget allows.
//   Budget  Groups are planned for half of it at most, and a tenth is left for the best. Nothing
//           begins that is likely to end too late.
// Tests: tests/trainer/simulate/search_test.cc
#ifndef FSDP_TRAIN_TRAINER_SIMULATE_SEARCH_H_
#define FSDP_TRAIN_TRAINER_SIMULATE_SEARCH_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "trainer/engine/plan.h"
#include "trainer/engine/plan_cures.h"
#include "trainer/recipe/hardware.h"

namespace fsdp {

struct Recipe;

// The recipe with these overrides behind its own. Throws ConfigError.
using LoadWith = std::function<Recipe(const std::vector<std::string>& overrides)>;

struct SearchProgress {
  size_t groups = 0, planned = 0;               // Groups of candidates that do the same.
  size_t candidates = 0, done = 0;              // Done: timed, cut, or found not to fit.
  std::optional<double> best_s = std::nullopt;  // The shortest step so far.
};

struct SearchOptions {
  size_t best = 10;
  double budget_s = std::numeric_limits<double>::infinity();  // Seconds that `clock` counts.
  std::function<double()> clock = nullptr;                    // Seconds. Null: wall time.
  double expert_load = 1;                                     // Place's.
  bool cut = true;  // False: every candidate is planned, and all that fit are timed.
  std::function<void(const SearchProgress& progress)> progress = nullptr;
};

// Why a candidate is not among the best.
enum class LostBy {
  kMemory,         // It does not fit.
  kBound,          // It cannot be as fast.
  kCommunication,  // It is slower; of the parts of a step this one adds the most.
  kRecomputation,
  kOffload,
  kHost,
  kComputation,
  kEqual,     // It does what one of the best does in the same time.
  kNotTried,  // The budget was spent before.
};
inline constexpr int kNumLostBy = 9;

struct Loser {
  size_t count = 0;
  // The one that comes nearest: by its bound where it was not timed, and then by its step.
  std::vector<std::string> overrides;
  double step_s = 0;   // Its step, or the bound.
  double seconds = 0;  // Those that the part adds to the best step's.
  Misfit misfit = {};  // kMemory. The nearest is the one that takes the least of what there is.
};

struct Proposal {
  std::vector<std::string> overrides;
  RunPlan plan;
  StepEstimate estimate;
};

struct SearchResult {
  // The shortest step first. Candidates of one group with equal steps count as one, that which
  // plans the fewest bytes and then changes the fewest settings.
  std::vector<Proposal> best;
  std::array<Loser, kNumLostBy> lost;  // By LostBy.
  size_t candidates = 0, planned = 0, timed = 0;
  std::optional<double> own_s =
      std::nullopt;    // A step of the recipe itself. Empty: it does not fit.
  bool all = true;     // False: the budget was spent.
  double seconds = 0;  // The search took, by its clock.
};

// `local_world`: ranks of a host. Throws ConfigError where the recipe itself is wrong or the file
// lacks a number that every candidate needs. Throws MemoryError where none fits, or none was found
// in the budget, with the least bytes that were found: the words say which.
SearchResult Search(const LoadWith& load, int world, int local_world, const Hardware& hardware,
                    const SearchOptions& options = {});

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_SIMULATE_SEARCH_H_
