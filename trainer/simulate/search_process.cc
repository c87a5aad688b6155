#include "trainer/simulate/search_process.h"

#include <cstdio>
#include <iostream>
#include <vector>

#include "trainer/core/json.h"
#include "trainer/core/paths.h"
#include "trainer/core/terminal.h"
#include "trainer/core/units.h"
#include "trainer/core/utf8.h"
#include "trainer/loop/plan_heading.h"
#include "trainer/recipe/recipe.h"

namespace fsdp {
namespace {

std::string WordsOf(const SearchProgress& progress) {
  std::string text;
  if (progress.planned < progress.groups) {
    text = "planned " + Grouped(static_cast<int64_t>(progress.planned)) + " of " +
           Grouped(static_cast<int64_t>(progress.groups)) + " groups, ";
  }
  text += "decided " + Grouped(static_cast<int64_t>(progress.done)) + " of " +
          Grouped(static_cast<int64_t>(progress.candidates)) + " recipes";
  if (progress.best_s) text += ", the shortest step " + HumanDuration(*progress.best_s);
  return text;
}

struct LostWords {
  const char* name;  // In JSON.
  const char* text;  // Behind a number of recipes.
};

LostWords WordsOf(LostBy by) {
  switch (by) {
    case LostBy::kMemory:
      return {"memory", "do not fit"};
    case LostBy::kBound:
      return {"bound", "cannot be as fast"};
    case LostBy::kCommunication:
      return {"communication", "wait longer for other ranks"};
    case LostBy::kRecomputation:
      return {"recomputation", "compute more again"};
    case LostBy::kOffload:
      return {"offload", "wait longer for host memory"};
    case LostBy::kHost:
      return {"host", "wait longer for the program that enqueues"};
    case LostBy::kComputation:
      return {"computation", "compute longer"};
    case LostBy::kEqual:
      return {"equal", "take as long as one of these and do the same, with as many bytes or more"};
    case LostBy::kNotTried:
      return {"not_tried", "were not tried, because the budget was spent"};
  }
  return {"", ""};
}

std::string Flags(const std::vector<std::string>& overrides) {
  std::string text;
  for (const std::string& one : overrides) {
    text += (text.empty() ? "--set " : " --set ") + ShellWord(one);
  }
  return text.empty() ? "the recipe as it is" : text;
}

std::string FlagsJson(const std::vector<std::string>& overrides) {
  std::vector<std::string> texts;
  for (const std::string& one : overrides) texts.push_back(JsonString(one));
  return JsonArray(texts);
}

bool HasExample(LostBy by, const Loser& loser) {
  if (by == LostBy::kMemory) return loser.misfit.bytes > 0;
  return by != LostBy::kNotTried && by != LostBy::kEqual;
}

std::string Example(LostBy by, const Loser& loser) {
  if (!HasExample(by, loser)) return "";
  std::string text = "    the nearest: " + Flags(loser.overrides) + "\n      ";
  switch (by) {
    case LostBy::kMemory:
      return text + HumanBytes(loser.misfit.bytes) + " of " + loser.misfit.of + " a rank, and " +
             HumanBytes(loser.misfit.room) + " are free\n";
    case LostBy::kBound:
      return text + "no step below " + HumanDuration(loser.step_s) + "\n";
    default:
      return text + HumanDuration(loser.step_s) + " a step, " + HumanDuration(loser.seconds) +
             " more of that\n";
  }
}

std::string Line(const std::string& place, const std::string& step, const std::string& samples,
                 const std::string& tokens, const std::string& device, const std::string& host,
                 const std::string& hosts, const std::string& flags) {
  char line[160];
  std::snprintf(line, sizeof(line), "%3s  %-9s %9s %8s  %9s  %9s  %9s  ", place.c_str(),
                step.c_str(), samples.c_str(), tokens.c_str(), device.c_str(), host.c_str(),
                hosts.c_str());
  return line + flags + "\n";
}

std::string LineOf(size_t place, const Proposal& found) {
  const StepEstimate& step = found.estimate;
  return Line(std::to_string(place), HumanDuration(step.step_time_s),
              HumanCount(step.samples_per_s), HumanCount(step.counted_per_s),
              HumanBytes(found.plan.planned()), HumanBytes(found.plan.host_planned()),
              HumanBytes(found.plan.host_planned() * found.plan.local_world),
              Flags(found.overrides));
}

std::string ProposalToJson(const Proposal& found) {
  return JsonObject()
      .AddRaw("set", FlagsJson(found.overrides))
      .Add("step_time_s", found.estimate.step_time_s)
      .Add("samples_per_s", found.estimate.samples_per_s)
      .Add("tokens_per_s", found.estimate.counted_per_s)
      .Add("floor_s", found.estimate.floor_s)
      .Add("exposed_s", found.estimate.exposed_s)
      .Add("planned", found.plan.planned())
      .Add("host", found.plan.host_planned())
      .Add("host_of_all", found.plan.host_planned() * found.plan.local_world)
      .Add("fits", found.plan.fits())
      .Add("fits_host", found.plan.host_known() ? std::optional(true) : std::nullopt)
      .Text();
}

std::string LoserToJson(LostBy by, const Loser& loser) {
  JsonObject object;
  object.Add("reason", WordsOf(by).name).Add("count", loser.count);
  if (!HasExample(by, loser)) return object.Text();
  object.AddRaw("set", FlagsJson(loser.overrides));
  if (by == LostBy::kMemory) {
    object.Add("bytes", loser.misfit.bytes).Add("room", loser.misfit.room);
  } else if (by == LostBy::kBound) {
    object.Add("bound_s", loser.step_s);
  } else {
    object.Add("step_time_s", loser.step_s).Add("seconds_more", loser.seconds);
  }
  return object.Text();
}

}  // namespace

std::string SearchToText(const SearchResult& result, int world, const Hardware& hardware) {
  std::string text = Grouped(static_cast<int64_t>(result.candidates)) + " recipes on " +
                     Counted(world, "rank") + " of " + PrintableName(hardware.name) + ": " +
                     Grouped(static_cast<int64_t>(result.planned)) + " planned, " +
                     Grouped(static_cast<int64_t>(result.timed)) + " simulated, in " +
                     HumanDuration(result.seconds) + "\n";
  if (!result.all) {
    const size_t untried = result.lost[static_cast<size_t>(LostBy::kNotTried)].count;
    text += "the budget was spent when " +
            Grouped(static_cast<int64_t>(result.candidates - untried)) + " of " +
            Grouped(static_cast<int64_t>(result.candidates)) +
            " recipes were decided: a better one may exist\n";
  }
  text += "the recipe as it is: ";
  text += result.own_s ? HumanDuration(*result.own_s) + " a step\n" : "does not fit\n";
  text += "the best, with the memory of a rank and of all ranks of a host:\n";
  text += Line("", "step", "samples/s", "tokens/s", "device", "host", "a host", "settings");
  for (size_t i = 0; i < result.best.size(); ++i) text += LineOf(i + 1, result.best[i]);
  if (const std::string fits = FitsInWords(result.best[0].plan); fits != "fits: yes") {
    text += "the first " + fits + "\n";
  }
  text += "the others:\n";
  for (int i = 0; i < kNumLostBy; ++i) {
    const Loser& loser = result.lost[i];
    if (loser.count == 0) continue;
    const auto by = static_cast<LostBy>(i);
    text += "  " + Grouped(static_cast<int64_t>(loser.count)) + " " + WordsOf(by).text + "\n" +
            Example(by, loser);
  }
  return text;
}

std::string SearchToJson(const SearchResult& result, int world, int local_world) {
  std::vector<std::string> best, lost;
  for (const Proposal& found : result.best) best.push_back(ProposalToJson(found));
  for (int i = 0; i < kNumLostBy; ++i) {
    if (result.lost[i].count == 0) continue;
    lost.push_back(LoserToJson(static_cast<LostBy>(i), result.lost[i]));
  }
  return JsonObject()
      .Add("world_size", world)
      .Add("local_world_size", local_world)
      .Add("candidates", result.candidates)
      .Add("planned", result.planned)
      .Add("simulated", result.timed)
      .Add("all", result.all)
      .Add("own_step_time_s", result.own_s)
      .AddRaw("best", JsonArray(best))
      .AddRaw("lost", JsonArray(lost))
      .Text();
}

ExitCode SearchProcess(const LoadWith& load, int world, int local_world, const Hardware& hardware,
                       double budget_s, double expert_load, bool json, ProgressLine& line) {
  line.Do("planning the recipe itself");
  const SearchResult result = Search(
      load, world, local_world, hardware,
      {.budget_s = budget_s, .expert_load = expert_load, .progress = [&](const SearchProgress& p) {
         line.Do(WordsOf(p));
       }});
  line.End();
  std::cerr << NoteOnKernels(hardware, load({}).fsdp.mixed_precision.param_dtype);
  std::cout << (json ? SearchToJson(result, world, local_world) + "\n"
                     : SearchToText(result, world, hardware))
            << std::flush;
  return ExitCode::kDone;
}

}  // namespace fsdp
