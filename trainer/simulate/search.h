// `plan --search`: of the recipes that differ from one in memory, sharding and order alone, those
// whose steps are the shortest on a described cluster. Each that is timed is the real schedule,
// simulated, in memory that is planned to the byte.
//
//   Bound   No step is shorter than its floor (step_floor.h), nor than what its compute stream does
//           alone. Candidates are tried in the order of that bound, and as soon as `best` of them
//           are faster than the bound of the next, all that are left have lost.
//   Memory  A plan ends as soon as it takes more than there is.
//   Time    A step of many micro-batches goes on at the pace of its middle ones: steps of 3 and of
//           4 are simulated and the rest is added. The best are then simulated whole.
//   Budget  Once it is spent, the candidate in work ends and, where none has been shown yet, one
//           more is simulated whole, or planned to say that none fits. Bounds take half of the
//           budget at most, a fifth is left for the best. The recipe itself is always tried.
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
#include "trainer/loop/resolved_run.h"
#include "trainer/recipe/hardware.h"

namespace fsdp {

struct Recipe;

// The recipe with these overrides behind its own. Throws ConfigError.
using LoadWith = std::function<Recipe(const std::vector<std::string>& overrides)>;

struct SearchProgress {
  size_t groups = 0, bounded = 0;               // Candidates of a group share a bound.
  size_t candidates = 0, done = 0;              // Done: timed, cut, or found not to fit.
  std::optional<double> best_s = std::nullopt;  // The shortest step so far.
};

struct SearchOptions {
  size_t best = 10;
  double budget_s = std::numeric_limits<double>::infinity();  // Seconds that `clock` counts.
  std::function<double()> clock = nullptr;                    // Seconds. Null: wall time.
  bool cut = true;  // False: all that fit are timed, whatever their bounds.
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
  kNotTried,  // The budget was spent before it was tried, or as one of the best simulated whole.
};
inline constexpr int kNumLostBy = 9;

struct Loser {
  size_t count = 0;
  // The one that comes nearest: by its bound where it was not timed, and then by its step.
  std::vector<std::string> overrides;
  double step_s = 0;   // Its step, or the bound.
  double seconds = 0;  // Those that the part adds to the best step's.
  int64_t bytes = 0;   // kMemory: planned. 0: the budget left no time to add them up.
  int64_t room = 0;    // kMemory: bytes that there are.
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
// lacks a number that every candidate needs, and MemoryError where none fits, with the least bytes
// that were found.
SearchResult Search(const LoadWith& load, int world, int local_world, const Hardware& hardware,
                    const SearchOptions& options = {});

// The length in seconds that no step of the run can be below. Takes few of a run's micro-batches
// where there are many. Throws as FloorOf().
double StepBound(ResolvedRun& run, const Hardware& hardware);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_SIMULATE_SEARCH_H_
