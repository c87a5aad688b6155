#include "trainer/simulate/search.h"

#include <algorithm>
#include <chrono>
#include <numeric>
#include <tuple>
#include <utility>

#include "trainer/core/errors.h"
#include "trainer/core/paths.h"
#include "trainer/core/units.h"
#include "trainer/engine/plan.h"
#include "trainer/engine/step_operations.h"
#include "trainer/loop/place.h"
#include "trainer/loop/resolve.h"
#include "trainer/nn/model.h"
#include "trainer/recipe/load.h"
#include "trainer/recipe/recipe.h"
#include "trainer/runtime/operation.h"
#include "trainer/simulate/candidates.h"
#include "trainer/simulate/price_list.h"
#include "trainer/simulate/simulate.h"
#include "trainer/simulate/step_floor.h"

namespace fsdp {
namespace {

// Micro-batches whose step's middle is like that of any longer one.
constexpr int kFew = 4;

// The shares of the budget after which no further group gets a bound, and no further candidate is
// timed.
constexpr double kBoundsEnd = 0.5, kTimingEnds = 0.8;

double WallSeconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void SetMicroBatches(ResolvedRun& run, int count) {
  const ExecutorOptions& executor = run.options.executor;
  run.options.executor.micro_batches = count;
  run.options.global_batch_size = count * executor.micro_batch_size * run.mesh.data_size();
}

bool Caches(const ResolvedRun& run) {
  return run.options.executor.buffers == FsdpOptions::Buffers::kCaching;
}

// of(run), or what its values at few micro-batches say of it. T: has T + T, T - T and T * double.
template <typename T, typename Of>
T FromFewMicroBatches(ResolvedRun& run, const Of& of) {
  const int count = run.options.executor.micro_batches;
  if (count <= kFew + 1) return of(run);
  const int64_t samples = run.options.global_batch_size;
  SetMicroBatches(run, kFew - 1);
  const T before = of(run);
  SetMicroBatches(run, kFew);
  const T last = of(run);
  run.options.executor.micro_batches = count;
  run.options.global_batch_size = samples;
  return last + (last - before) * static_cast<double>(count - kFew);
}

// Seconds of a step, by what loses them.
struct StepParts {
  std::array<double, kNumLostBy> seconds{};
  double step = 0;

  double& operator[](LostBy part) { return seconds[static_cast<size_t>(part)]; }
  double operator[](LostBy part) const { return seconds[static_cast<size_t>(part)]; }
  template <typename Combine>
  StepParts With(const StepParts& other, const Combine& combine) const {
    StepParts all;
    all.step = combine(step, other.step);
    for (int i = 0; i < kNumLostBy; ++i) all.seconds[i] = combine(seconds[i], other.seconds[i]);
    return all;
  }
  StepParts operator+(const StepParts& other) const {
    return With(other, [](double a, double b) { return a + b; });
  }
  StepParts operator-(const StepParts& other) const {
    return With(other, [](double a, double b) { return a - b; });
  }
  StepParts operator*(double factor) const {
    return With(*this, [factor](double a, double) { return a * factor; });
  }
};

StepParts PartsOf(const Simulation& simulation) {
  const StepTimes& times = simulation.times;
  StepParts parts;
  parts.step = simulation.step_s;
  parts[LostBy::kCommunication] = times.communication;
  parts[LostBy::kRecomputation] = times.recompute;
  parts[LostBy::kOffload] = times.offload;
  parts[LostBy::kHost] = simulation.host_s;
  parts[LostBy::kComputation] = times.data + times.forward + times.backward + times.optimizer;
  return parts;
}

// Seconds of the run's compute stream where nothing else runs and it never waits.
double ComputeAlone(const ResolvedRun& run, const Hardware& hardware) {
  const PriceList prices(hardware, run.recipe->run.deterministic,
                         run.recipe->fsdp.mixed_precision.param_dtype);
  double seconds = 0;
  ObserveStreams(*run.model, run.options, run.place.world, run.target.device,
                 [&](const Operation& operation, const Stream& stream) {
                   if (stream.name() != "compute") return;
                   seconds += prices.WorkOf(operation, stream.name(), run.threads).seconds;
                 });
  return seconds;
}

struct Misfit {
  int64_t bytes = 0, room = 0;
};

// The misfit of a plan that does not fit.
Misfit MisfitOf(const RunPlan& plan) {
  if (plan.limit && plan.planned() > *plan.limit) return {plan.planned(), *plan.limit};
  if (plan.device_available && plan.planned() > plan.device_available->bytes) {
    return {plan.planned(), plan.device_available->bytes};
  }
  if (plan.available && plan.total() > plan.available->bytes) {
    return {plan.total(), plan.available->bytes};
  }
  return {plan.planned(), plan.limit.value_or(0)};
}

std::string Flags(const std::vector<std::string>& overrides) {
  std::string text;
  for (const std::string& one : overrides) text += " --set " + ShellWord(one);
  return text.empty() ? " as it is" : text;
}

class Searching {
 public:
  Searching(const LoadWith& load, int world, int local_world, const Hardware& hardware,
            const SearchOptions& options)
      : load_(load),
        world_(world),
        local_world_(local_world),
        hardware_(hardware),
        options_(options),
        clock_(options.clock ? options.clock : WallSeconds),
        begin_(clock_()) {}

  SearchResult Run() {
    Enumerate();
    Consider(0);
    if (!timed_.empty()) result_.own_s = timed_[0].parts.step;
    FindBounds();
    for (const size_t group : order_) {
      for (const size_t member : groups_[group].members) {
        if (groups_[group].bounded && IsCut(groups_[group].bound)) {
          Lose(LostBy::kBound, member);
        } else if (!groups_[group].bounded || Spent(kTimingEnds)) {
          Lose(LostBy::kNotTried, member);
        } else {
          Consider(member);
        }
      }
    }
    ShowBest();
    Explain();
    result_.seconds = Seconds();
    return std::move(result_);
  }

 private:
  struct Group {
    std::vector<size_t> members;
    double bound = 0;
    bool bounded = false;
  };
  struct Timed {
    size_t candidate = 0;
    StepParts parts = {};
    int64_t planned = 0;  // Bytes of a rank.
  };
  struct Lost {
    LostBy by = LostBy::kNotTried;
    size_t candidate = 0;
  };

  double Seconds() const { return clock_() - begin_; }

  bool IsOver() const { return Seconds() >= options_.budget_s; }

  // Whether this share of the budget is spent. Something is then left out.
  bool Spent(double share) {
    if (Seconds() < options_.budget_s * share) return false;
    result_.all = false;
    return true;
  }

  void Enumerate() {
    const Recipe recipe = load_({});
    CheckWorld(recipe, world_, local_world_);
    const ResolvedRun run = ResolveUnplanned(recipe, PlaceOf(recipe));
    candidates_ = CandidatesOf({.recipe = recipe,
                                .world = world_,
                                .local_world = local_world_,
                                .hardware = hardware_,
                                .normalizes = run.model->fewest_normed_pixels() > 0});
    done_.resize(candidates_.size());
    for (size_t i = 0; i < candidates_.size(); ++i) {
      if (candidates_[i].group >= groups_.size()) groups_.resize(candidates_[i].group + 1);
      groups_[candidates_[i].group].members.push_back(i);
    }
    order_.resize(groups_.size());
    std::iota(order_.begin(), order_.end(), size_t{0});
    progress_ = {.groups = groups_.size(), .candidates = candidates_.size()};
  }

  Place PlaceOf(const Recipe& recipe) const {
    return PlaceToPlan(recipe, world_, local_world_, hardware_);
  }

  // Empty: settings contradict each other.
  std::optional<ResolvedRun> Resolve(size_t candidate) {
    try {
      const Recipe recipe = load_(candidates_[candidate].overrides);
      CheckWorld(recipe, world_, local_world_);
      return ResolveUnplanned(recipe, PlaceOf(recipe));
    } catch (const ConfigError&) {
      if (candidate == 0) throw;
      return std::nullopt;
    }
  }

  // False: there is no time left for it.
  bool FindBound(Group& group) {
    for (const size_t member : group.members) {
      if (Spent(kBoundsEnd)) return false;
      std::optional<ResolvedRun> run = Resolve(member);
      if (!run) continue;
      group.bound = StepBound(*run, hardware_);
      break;
    }
    group.bounded = true;
    ++progress_.bounded;
    Say();
    return true;
  }

  void FindBounds() {
    for (Group& group : groups_) {
      if (!FindBound(group)) break;
    }
    std::stable_sort(order_.begin(), order_.end(), [&](size_t a, size_t b) {
      return std::pair(!groups_[a].bounded, groups_[a].bound) <
             std::pair(!groups_[b].bounded, groups_[b].bound);
    });
  }

  // A bound is the sum of numbers that a step adds up in another order.
  bool IsCut(double bound) const {
    return options_.cut && best_.size() >= options_.best &&
           bound * (1 - 1e-9) > timed_[best_.back()].parts.step;
  }

  void Say() {
    if (!best_.empty()) progress_.best_s = timed_[best_[0]].parts.step;
    if (options_.progress) options_.progress(progress_);
  }

  void Finish(size_t candidate) {
    done_[candidate] = true;
    ++progress_.done;
    Say();
  }

  void Lose(LostBy by, size_t candidate) {
    if (done_[candidate]) return;
    lost_.push_back({by, candidate});
    Finish(candidate);
  }

  // Times it, where it fits.
  void Consider(size_t candidate) {
    if (done_[candidate]) return;
    std::optional<ResolvedRun> run = Resolve(candidate);
    if (!run) {
      ++conflicts_;
      return Finish(candidate);
    }
    const std::optional<StepParts> parts = TimeOf(*run);
    if (!parts) return Lose(LostBy::kMemory, candidate);
    Insert({candidate, *parts, run->plan.planned()});
    Finish(candidate);
  }

  std::optional<StepParts> TimeOf(ResolvedRun& run) {
    ++result_.planned;
    if (Caches(run)) {  // Whether it fits depends on time.
      run.plan = PlanRun(*run.model, run.options, world_, local_world_, run.target);
      const std::optional<Simulation> simulation = SimulateAndPlan(run, hardware_, {});
      if (!simulation || !run.plan.fits()) return std::nullopt;
      return PartsOf(*simulation);
    }
    if (!FitsWithFew(run)) return std::nullopt;
    return FromFewMicroBatches<StepParts>(
        run, [&](const ResolvedRun& few) { return PartsOf(Simulate(few, hardware_)); });
  }

  // More micro-batches than two need no more memory.
  bool FitsWithFew(ResolvedRun& run) const {
    const int count = run.options.executor.micro_batches;
    const int64_t samples = run.options.global_batch_size;
    if (count > kFew) SetMicroBatches(run, kFew);
    const std::optional<RunPlan> plan =
        PlanThatFits(*run.model, run.options, world_, local_world_, run.target);
    run.options.executor.micro_batches = count;
    run.options.global_batch_size = samples;
    if (plan) run.plan = *plan;
    return plan.has_value();
  }

  // A shorter step goes first; of equal ones that with fewer bytes, with fewer changes, the
  // earlier.
  bool IsBetter(const Timed& a, const Timed& b) const {
    const auto changes = [&](const Timed& one) {
      return candidates_[one.candidate].overrides.size();
    };
    return std::tuple(a.parts.step, a.planned, changes(a), a.candidate) <
           std::tuple(b.parts.step, b.planned, changes(b), b.candidate);
  }

  // The same work in the same time.
  bool IsEqual(const Timed& a, const Timed& b) const {
    return a.parts.step == b.parts.step &&
           candidates_[a.candidate].group == candidates_[b.candidate].group;
  }

  void Insert(const Timed& timed) {
    const size_t index = timed_.size();
    timed_.push_back(timed);
    for (size_t& other : best_) {
      if (!IsEqual(timed_[other], timed)) continue;
      if (IsBetter(timed, timed_[other])) other = index;
      std::sort(best_.begin(), best_.end(),
                [&](size_t a, size_t b) { return IsBetter(timed_[a], timed_[b]); });
      return;
    }
    const auto at = std::upper_bound(best_.begin(), best_.end(), index, [&](size_t a, size_t b) {
      return IsBetter(timed_[a], timed_[b]);
    });
    best_.insert(at, index);
    if (best_.size() > options_.best) best_.pop_back();
  }

  // The best, whole.
  void ShowBest() {
    for (const size_t index : best_) {
      const size_t candidate = timed_[index].candidate;
      if (!result_.best.empty() && Spent(1)) {
        lost_.push_back({LostBy::kNotTried, candidate});
        continue;
      }
      ResolvedRun run = *Resolve(candidate);
      run.plan = PlanRun(*run.model, run.options, world_, local_world_, run.target);
      const std::optional<Simulation> simulation = SimulateAndPlan(run, hardware_, {});
      if (!simulation || !run.plan.fits()) continue;
      result_.best.push_back(
          {candidates_[candidate].overrides, run.plan, EstimateOf(run, hardware_, *simulation)});
    }
    if (result_.best.empty()) ThrowNoneFits();
    std::stable_sort(result_.best.begin(), result_.best.end(), [](const auto& a, const auto& b) {
      return a.estimate.step_time_s < b.estimate.step_time_s;
    });
  }

  void Explain() {
    result_.candidates = candidates_.size() - conflicts_;
    result_.timed = timed_.size();
    const StepParts& best = timed_[best_[0]].parts;
    for (size_t index = 0; index < timed_.size(); ++index) {
      if (std::find(best_.begin(), best_.end(), index) != best_.end()) continue;
      const Timed& timed = timed_[index];
      const bool equal = std::any_of(best_.begin(), best_.end(),
                                     [&](size_t other) { return IsEqual(timed_[other], timed); });
      if (equal) {
        Count(LostBy::kEqual, timed.candidate, timed.parts.step, 0);
        continue;
      }
      const StepParts more = timed.parts - best;
      const auto most = std::max_element(more.seconds.begin(), more.seconds.end());
      Count(static_cast<LostBy>(most - more.seconds.begin()), timed.candidate, timed.parts.step,
            *most);
    }
    for (const Lost& lost : lost_) {
      const Group& group = groups_[candidates_[lost.candidate].group];
      Count(lost.by, lost.candidate, group.bounded ? group.bound : 0, 0);
    }
    Loser& misfit = result_.lost[static_cast<size_t>(LostBy::kMemory)];
    if (misfit.count > 0 && !IsOver()) {
      const Misfit found = PlanOf(nearest_[static_cast<size_t>(LostBy::kMemory)]);
      misfit.bytes = found.bytes;
      misfit.room = found.room;
    }
  }

  void Count(LostBy by, size_t candidate, double step_s, double seconds) {
    Loser& loser = result_.lost[static_cast<size_t>(by)];
    if (loser.count++ > 0 && loser.step_s <= step_s) return;
    loser.overrides = candidates_[candidate].overrides;
    loser.step_s = step_s;
    loser.seconds = seconds;
    nearest_[static_cast<size_t>(by)] = candidate;
  }

  Misfit PlanOf(size_t candidate) {
    std::optional<ResolvedRun> run = Resolve(candidate);
    if (!run) return {};
    if (run->options.executor.micro_batches > kFew) SetMicroBatches(*run, kFew);
    return MisfitOf(PlanRun(*run->model, run->options, world_, local_world_, run->target));
  }

  // The first of each group is planned, then all of the smallest group.
  [[noreturn]] void ThrowNoneFits() {
    std::optional<Misfit> least;
    size_t at = 0;
    const auto look = [&](size_t candidate) {
      const Misfit found = PlanOf(candidate);
      if (found.bytes == 0 || (least && least->bytes <= found.bytes)) return;
      least = found;
      at = candidate;
    };
    look(0);
    for (const Group& group : groups_) {
      if (!IsOver()) look(group.members[0]);
    }
    const std::vector<size_t> members = groups_[candidates_[at].group].members;
    for (const size_t member : members) {
      if (!IsOver()) look(member);
    }
    std::string text = "does not fit: none of " +
                       Counted(static_cast<int64_t>(candidates_.size() - conflicts_), "recipe") +
                       " does";
    if (!result_.all) text += " that --budget has left time for";
    if (least) {
      text += ". The least that was found is " + HumanBytes(least->bytes) + " a rank, where " +
              HumanBytes(least->room) + " are free, with" + Flags(candidates_[at].overrides);
    }
    throw MemoryError(text + "\nuse more ranks on more hosts, or a smaller model");
  }

  const LoadWith& load_;
  const int world_, local_world_;
  const Hardware& hardware_;
  const SearchOptions& options_;
  const std::function<double()> clock_;
  const double begin_;
  std::vector<Candidate> candidates_;
  std::vector<bool> done_;
  std::vector<Group> groups_;
  std::vector<size_t> order_;  // Groups, the lowest bound first.
  std::vector<Timed> timed_;
  std::vector<size_t> best_;  // Into timed_.
  std::vector<Lost> lost_;
  std::array<size_t, kNumLostBy> nearest_{};  // Candidates.
  size_t conflicts_ = 0;
  SearchProgress progress_;
  SearchResult result_;
};

}  // namespace

double StepBound(ResolvedRun& run, const Hardware& hardware) {
  return FromFewMicroBatches<double>(run, [&](const ResolvedRun& few) {
    return std::max(FloorOf(few, hardware).Seconds(), ComputeAlone(few, hardware));
  });
}

SearchResult Search(const LoadWith& load, int world, int local_world, const Hardware& hardware,
                    const SearchOptions& options) {
  return Searching(load, world, local_world, hardware, options).Run();
}

}  // namespace fsdp
