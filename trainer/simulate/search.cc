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
#include "trainer/engine/plan_cures.h"
#include "trainer/loop/place.h"
#include "trainer/loop/resolve.h"
#include "trainer/nn/model.h"
#include "trainer/recipe/load.h"
#include "trainer/recipe/recipe.h"
#include "trainer/simulate/candidates.h"
#include "trainer/simulate/short_step.h"
#include "trainer/simulate/simulate.h"

namespace fsdp {
namespace {

// The shares of the budget after which no further group is planned, and no further candidate timed.
constexpr double kPlanningEnds = 0.5, kTimingEnds = 0.9;
constexpr double kForCures = 10;  // Seconds that plan's cures, tried first, have at any budget.

double WallSeconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Seconds of a step, by what loses them.
using StepParts = std::array<double, kNumLostBy>;

StepParts PartsOf(const Simulation& simulation) {
  const StepTimes& times = simulation.times;
  StepParts parts{};
  const auto part = [&](LostBy by) -> double& { return parts[static_cast<size_t>(by)]; };
  part(LostBy::kCommunication) = times.communication;
  part(LostBy::kRecomputation) = times.recompute;
  part(LostBy::kOffload) = times.offload;
  part(LostBy::kHost) = simulation.host_s;
  part(LostBy::kComputation) = times.data + times.forward + times.backward + times.optimizer;
  return parts;
}

double ShareTaken(const Misfit& misfit) {
  return static_cast<double>(misfit.bytes) / std::max(1.0, static_cast<double>(misfit.room));
}

std::string Flags(const std::vector<std::string>& overrides) {
  std::string text;
  for (const std::string& one : overrides) text += " --set " + ShellWord(one);
  return text.empty() ? " the recipe as it is" : text;
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
    TryTheRecipe();
    PlanGroups();
    TimeGroups();
    SimulateWhole();
    if (result_.best.empty()) ThrowNoneFits();
    Explain();
    result_.seconds = Seconds();
    return std::move(result_);
  }

 private:
  struct Group {
    bool planned = false;
    StepBound bound = {};
  };
  struct Timed {
    size_t candidate = 0;
    double step_s = 0;
    StepParts parts = {};
    int64_t planned = 0;                 // Bytes of a rank.
    std::optional<Proposal> found = {};  // One of the best has it.
    std::optional<double> whole_s = {};  // All of its micro-batches likely take the search so long.
  };
  struct Lost {
    LostBy by = LostBy::kNotTried;
    size_t candidate = 0;
  };

  double Seconds() const { return clock_() - begin_; }

  // Whether what takes so long can begin in this share of the budget.
  bool HasTime(double seconds, double share = 1) const {
    const double now = Seconds();
    return now < options_.budget_s * share && now + seconds <= options_.budget_s;
  }

  void Enumerate() {
    const Recipe recipe = load_({});
    CheckWorld(recipe, world_, local_world_);
    const ResolvedRun run = ResolveUnplanned(recipe, PlaceOf(recipe));
    candidates_.emplace(SearchSpace{.recipe = recipe,
                                    .world = world_,
                                    .local_world = local_world_,
                                    .hardware = hardware_,
                                    .normalizes = run.model->fewest_normed_pixels() > 0});
    done_.resize(candidates_->size());
    groups_.resize(candidates_->groups());
    progress_ = {.groups = groups_.size(), .candidates = done_.size()};
  }

  Place PlaceOf(const Recipe& recipe) const {
    return PlaceToPlan(recipe, world_, local_world_, hardware_, options_.expert_load);
  }

  // Those behind the candidates are cures with settings that these leave alone.
  std::vector<std::string> Overrides(size_t candidate) const {
    const size_t all = candidates_->size();
    return candidate < all ? candidates_->Overrides(candidate) : cures_[candidate - all];
  }
  size_t GroupOf(size_t candidate) const {
    return candidate < candidates_->size() ? candidates_->GroupOf(candidate)
                                           : groups_.size() + candidate;
  }

  // Empty: settings contradict each other.
  std::optional<ResolvedRun> Resolve(size_t candidate) {
    try {
      const Recipe recipe = load_(Overrides(candidate));
      CheckWorld(recipe, world_, local_world_);
      return ResolveUnplanned(recipe, PlaceOf(recipe));
    } catch (const ConfigError&) {
      if (candidate == 0) throw;
      return std::nullopt;
    }
  }

  void Say() {
    if (!options_.progress) return;
    if (!best_.empty()) progress_.best_s = timed_[best_[0]].step_s;
    options_.progress(progress_);
  }

  void Finish(size_t candidate) {
    done_[candidate] = true;
    ++progress_.done;
    Say();
  }

  void Lose(LostBy by, size_t candidate) {
    if (done_[candidate]) return;
    lost_.push_back({by, candidate});
    if (by == LostBy::kNotTried) {
      result_.all = false;
      done_[candidate] = true;
      return;
    }
    Finish(candidate);
  }

  void LoseGroup(LostBy by, size_t group) {
    for (size_t one = candidates_->FirstOf(group); one < candidates_->EndOf(group); ++one) {
      Lose(by, one);
    }
  }

  void Conflict(size_t candidate) {
    ++conflicts_;
    Finish(candidate);
  }

  void LoseByMemory(size_t candidate, const RunPlan& plan) {
    const std::optional<Misfit> misfit = MisfitOf(plan);
    if (misfit && misfit->bytes > misfit->room &&
        (!least_ || ShareTaken(*misfit) < ShareTaken(least_->second))) {
      least_.emplace(candidate, *misfit);
    }
    Lose(LostBy::kMemory, candidate);
  }

  // Empty: it does not fit, as its plan says then.
  std::optional<Simulation> SimulationOf(ResolvedRun& run) {
    ++result_.planned;
    run.plan = PlanShort(run);
    if (run.options.executor.buffers == FsdpOptions::Buffers::kCaching) {  // It depends on time.
      std::optional<Simulation> simulation = SimulateAndPlan(run, hardware_, {});
      if (!run.plan.fits()) simulation.reset();
      return simulation;
    }
    if (!run.plan.fits()) return std::nullopt;
    return SimulateShort(run, hardware_);
  }

  // Times it, where it fits. Returns whether it does.
  bool Time(size_t candidate, ResolvedRun& run) {
    const double begin = Seconds();
    const std::optional<Simulation> simulation = SimulationOf(run);
    longest_s_ = std::max(longest_s_, Seconds() - begin);
    if (!simulation) {
      LoseByMemory(candidate, run.plan);
      return false;
    }
    Timed timed{.candidate = candidate,
                .step_s = simulation->step_s,
                .parts = PartsOf(*simulation),
                .planned = run.plan.planned()};
    if (IsShortened(run)) {
      timed.whole_s = (Seconds() - begin) * run.options.executor.micro_batches;
    }
    if (Insert(std::move(timed))) {
      const size_t group = GroupOf(candidate);
      const bool bounded = group < groups_.size() && groups_[group].planned;
      const StepBound bound = bounded ? groups_[group].bound : BoundOf(run, hardware_);
      run.plan.memory.blocks = {};  // There are many.
      timed_.back().found = {Overrides(candidate), run.plan,
                             EstimateOf(run, hardware_, *simulation, bound.floor_s)};
    }
    Finish(candidate);
    return true;
  }

  bool Consider(size_t candidate) {
    std::optional<ResolvedRun> run = Resolve(candidate);
    if (run) return Time(candidate, *run);
    Conflict(candidate);
    return false;
  }

  void TryTheRecipe() {
    ResolvedRun run = *Resolve(0);
    if (Time(0, run)) {
      result_.own_s = timed_[0].step_s;
      return;
    }
    const auto stop = [&] { return Seconds() > std::max(options_.budget_s, kForCures); };
    for (Cure& cure : CuresOf(run, stop)) {
      if (stop()) break;
      if (cure.overrides.empty()) {
        untimed_.emplace_back(std::move(cure), "name a directory in the recipe");
        continue;
      }
      size_t candidate = done_.size();
      if (const std::optional<size_t> found = candidates_->Find(cure.overrides)) {
        candidate = *found;
      } else {
        cures_.push_back(cure.overrides);
        done_.push_back(false);
      }
      if (done_[candidate]) continue;
      try {
        Consider(candidate);
      } catch (const ConfigError& error) {  // A rate that the recipe itself does without.
        untimed_.emplace_back(std::move(cure), error.what());
        Conflict(candidate);
      }
    }
    progress_.candidates = done_.size();
  }

  // Finds out which groups have a candidate that fits, and bounds for those.
  void PlanGroups() {
    std::vector<size_t> order(groups_.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
      return candidates_->ChangesOf(a) < candidates_->ChangesOf(b);
    });
    for (const size_t group : order) {
      if (!HasTime(longest_s_, kPlanningEnds)) {
        LoseGroup(LostBy::kNotTried, group);
        continue;
      }
      const double begin = Seconds();
      if (PlanGroup(group)) fitting_.push_back(group);
      longest_s_ = std::max(longest_s_, Seconds() - begin);
      ++progress_.planned;
      Say();
    }
  }

  // Whether one of the group may fit.
  bool PlanGroup(size_t group) {
    const size_t least = candidates_->LeastOf(group);
    std::optional<ResolvedRun> run = Resolve(least);
    if (run && options_.cut && run->options.executor.buffers == FsdpOptions::Buffers::kSlots) {
      ++result_.planned;
      run->plan = PlanShort(*run);
      if (!run->plan.fits()) {
        LoseByMemory(least, run->plan);
        LoseGroup(LostBy::kMemory, group);
        return false;
      }
    }
    const size_t end = candidates_->EndOf(group);
    for (size_t one = candidates_->FirstOf(group); !run && one < end; ++one) run = Resolve(one);
    groups_[group].planned = true;
    if (run) groups_[group].bound = BoundOf(*run, hardware_);
    return true;  // Without a run, each of them is found to contradict itself.
  }

  // A bound is the sum of numbers that a step adds up in another order.
  bool IsCut(size_t group) const {
    return options_.cut && best_.size() >= options_.best &&
           groups_[group].bound.least_s * (1 - 1e-9) > timed_[best_.back()].step_s;
  }

  // One of each group first, and all of it where that is among the best.
  void TimeGroups() {
    std::stable_sort(fitting_.begin(), fitting_.end(), [&](size_t a, size_t b) {
      return std::pair(candidates_->ChangesOf(a), groups_[a].bound.least_s) <
             std::pair(candidates_->ChangesOf(b), groups_[b].bound.least_s);
    });
    std::vector<std::pair<double, size_t>> slower;  // Steps of the first, and groups.
    for (const size_t group : fitting_) {
      const size_t before = timed_.size();
      TimeMembers(group, /*most=*/1);
      if (timed_.size() > before && !timed_.back().found) {
        slower.emplace_back(timed_.back().step_s, group);
      } else {
        TimeMembers(group, candidates_->size());
      }
    }
    std::stable_sort(slower.begin(), slower.end());
    for (const auto& [step_s, group] : slower) TimeMembers(group, candidates_->size());
  }

  void TimeMembers(size_t group, size_t most) {
    for (size_t one = candidates_->FirstOf(group); one < candidates_->EndOf(group); ++one) {
      if (done_[one]) continue;
      if (IsCut(group)) {
        Lose(LostBy::kBound, one);
      } else if (!HasTime(longest_s_, kTimingEnds)) {
        Lose(LostBy::kNotTried, one);
      } else if (most > 0) {
        --most;
        Consider(one);
      }
    }
  }

  // A shorter step goes first; of equal ones that with fewer bytes, with fewer changes, the
  // earlier.
  bool IsBetter(const Timed& a, const Timed& b) const {
    const auto bytes = [](const Timed& one) { return std::pair(one.step_s, one.planned); };
    if (bytes(a) != bytes(b)) return bytes(a) < bytes(b);
    const auto changes = [&](const Timed& one) { return Overrides(one.candidate).size(); };
    return std::pair(changes(a), a.candidate) < std::pair(changes(b), b.candidate);
  }

  // The same work in the same time.
  bool IsEqual(const Timed& a, const Timed& b) const {
    return a.step_s == b.step_s && GroupOf(a.candidate) == GroupOf(b.candidate);
  }

  // Whether it is among the best now.
  bool Insert(Timed timed) {
    const size_t index = timed_.size();
    timed_.push_back(std::move(timed));
    const auto better = [&](size_t a, size_t b) { return IsBetter(timed_[a], timed_[b]); };
    const auto equal = std::find_if(best_.begin(), best_.end(), [&](size_t other) {
      return IsEqual(timed_[other], timed_[index]);
    });
    if (equal == best_.end()) {
      best_.push_back(index);
    } else if (better(index, *equal)) {
      timed_[std::exchange(*equal, index)].found.reset();
    }
    std::sort(best_.begin(), best_.end(), better);
    if (best_.size() > options_.best) {
      timed_[best_.back()].found.reset();
      best_.pop_back();
    }
    return std::find(best_.begin(), best_.end(), index) != best_.end();
  }

  // The best, with all of their micro-batches, as far as the budget goes.
  void SimulateWhole() {
    for (const size_t index : best_) {
      Timed& timed = timed_[index];
      if (timed.whole_s && HasTime(*timed.whole_s)) {
        ResolvedRun run = *Resolve(timed.candidate);
        run.plan = PlanRun(*run.model, run.options, world_, local_world_, run.target);
        const Simulation simulation = Simulate(run, hardware_);
        timed.found->estimate =
            EstimateOf(run, hardware_, simulation, timed.found->estimate.floor_s);
      }
      result_.best.push_back(*std::move(timed.found));
    }
    std::stable_sort(result_.best.begin(), result_.best.end(), [](const auto& a, const auto& b) {
      return a.estimate.step_time_s < b.estimate.step_time_s;
    });
  }

  size_t Candidates() const { return done_.size() - conflicts_; }

  void Explain() {
    result_.candidates = Candidates();
    result_.timed = timed_.size();
    const Timed& best = timed_[best_[0]];
    for (size_t index = 0; index < timed_.size(); ++index) {
      if (std::find(best_.begin(), best_.end(), index) != best_.end()) continue;
      const Timed& timed = timed_[index];
      const bool equal = std::any_of(best_.begin(), best_.end(),
                                     [&](size_t other) { return IsEqual(timed_[other], timed); });
      if (equal) {
        Count(LostBy::kEqual, timed.candidate, timed.step_s, 0);
        continue;
      }
      StepParts more = timed.parts;
      for (size_t i = 0; i < more.size(); ++i) more[i] -= best.parts[i];
      const auto most = std::max_element(more.begin(), more.end());
      Count(static_cast<LostBy>(most - more.begin()), timed.candidate, timed.step_s, *most);
    }
    for (const Lost& lost : lost_) {
      const size_t group = GroupOf(lost.candidate);
      Count(lost.by, lost.candidate, group < groups_.size() ? groups_[group].bound.least_s : 0, 0);
    }
    if (!least_) return;
    Loser& misfit = result_.lost[static_cast<size_t>(LostBy::kMemory)];
    misfit.overrides = Overrides(least_->first);
    misfit.misfit = least_->second;
  }

  void Count(LostBy by, size_t candidate, double step_s, double seconds) {
    Loser& loser = result_.lost[static_cast<size_t>(by)];
    if (loser.count++ > 0 && loser.step_s <= step_s) return;
    loser.overrides = Overrides(candidate);
    loser.step_s = step_s;
    loser.seconds = seconds;
  }

  [[noreturn]] void ThrowNoneFits() {
    const std::string all = Grouped(static_cast<int64_t>(Candidates())) + " recipes";
    const auto untried = std::count_if(
        lost_.begin(), lost_.end(), [](const Lost& lost) { return lost.by == LostBy::kNotTried; });
    std::string text, least;
    if (least_) {
      const auto& [candidate, misfit] = *least_;
      least = ". The least that was found is " + HumanBytes(misfit.bytes) + " of " + misfit.of +
              " a rank, where " + HumanBytes(misfit.room) + " are free, with" +
              Flags(Overrides(candidate));
    }
    if (!untimed_.empty()) {
      text = "no recipe was found that fits and whose time is known";
      for (const auto& [cure, why] : untimed_) {
        text += "\nit fits with " + cure.setting + ": " + HumanBytes(cure.bytes) +
                "; its time is not known: " + why;
      }
    } else if (untried > 0) {
      text = "no recipe that fits was found in " + HumanDuration(options_.budget_s) + ": " +
             Grouped(static_cast<int64_t>(Candidates()) - untried) + " of " + all +
             " were looked at, and " + Grouped(untried) + " were not" + least +
             "\ngive --budget more seconds, or leave it out";
    } else {
      text = "does not fit: none of " + all + " does" + least +
             "\nuse more ranks on more hosts, or a smaller model";
    }
    throw MemoryError(text);
  }

  const LoadWith& load_;
  const int world_, local_world_;
  const Hardware& hardware_;
  const SearchOptions& options_;
  const std::function<double()> clock_;
  const double begin_;
  std::optional<fsdp::Candidates> candidates_;
  std::vector<std::vector<std::string>> cures_;  // Overrides.
  std::vector<bool> done_;                       // Candidates, then cures.
  std::vector<Group> groups_;
  std::vector<size_t> fitting_;  // Groups.
  std::vector<Timed> timed_;
  std::vector<size_t> best_;  // Into timed_.
  std::vector<Lost> lost_;
  std::vector<std::pair<Cure, std::string>> untimed_;  // They fit. Why their time is not known.
  std::optional<std::pair<size_t, Misfit>> least_;  // The candidate that comes nearest to fitting.
  double longest_s_ = 0;                            // A candidate took the search, at the most.
  size_t conflicts_ = 0;
  SearchProgress progress_;
  SearchResult result_;
};

}  // namespace

SearchResult Search(const LoadWith& load, int world, int local_world, const Hardware& hardware,
                    const SearchOptions& options) {
  return Searching(load, world, local_world, hardware, options).Run();
}

}  // namespace fsdp
