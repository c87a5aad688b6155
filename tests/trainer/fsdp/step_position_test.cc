#include "trainer/fsdp/step_position.h"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>

namespace fsdp {
namespace {

TEST(StepPosition, ATagIsAPosition) {
  for (const Mode mode : {Mode::kTrain, Mode::kEval}) {
    for (const int64_t step : {int64_t{0}, int64_t{1}, (int64_t{1} << 39) - 1}) {
      for (const size_t action : {0, 1, (1 << 24) - 1}) {
        const StepPosition position{mode, step, action};
        EXPECT_EQ(PositionOf(TagOf(position)), position);
      }
    }
  }
}

// A block between parts of the root, two micro-batches: what each action is part of.
TEST(StepPosition, SaysPartsForTraces) {
  const Layout layout = MakeLayout({{"embedding", false, {{"wte", Shape{8}}}},
                                    {"h.0", true, {{"h.0.w", Shape{8}}}},
                                    {"head", false, {}}},
                                   {}, /*shards=*/2);
  ScheduleOptions options;
  options.shards = 2;
  options.replicas = 2;
  options.sharding_strategy = Strategy::kHybridShard;
  options.units.resize(layout.units.size());
  for (const int unit : layout.unit_of_segment) options.segments.push_back({.unit = unit});
  options.micro_batches = 2;
  const Schedule schedule = MakeSchedule(options);
  std::map<ActionKind, std::set<std::string>> parts;
  for (size_t i = 0; i < schedule.actions.size(); ++i) {
    const StepPart part = PartOf({Mode::kTrain, 3, i}, schedule, layout);
    parts[schedule.actions[i].kind].insert(part.unit + " " + part.pass + " " +
                                           std::to_string(part.micro_batch));
  }
  using Set = std::set<std::string>;
  const Set block = {"h.0 forward 0", "h.0 backward 0", "h.0 forward 1", "h.0 backward 1"};
  Set runs = block;
  runs.insert({"root forward 0", "root backward 0", "root forward 1", "root backward 1"});
  Set gathers = block;
  gathers.insert("root forward 0");
  EXPECT_EQ(parts[ActionKind::kRun], runs);
  EXPECT_EQ(parts[ActionKind::kGather], gathers);
  EXPECT_EQ(parts[ActionKind::kFree], block);
  const Set reduced = {"h.0 backward 0", "h.0 backward 1", "root backward 0", "root backward 1"};
  EXPECT_EQ(parts[ActionKind::kReduce], reduced);
  EXPECT_EQ(parts[ActionKind::kClear], reduced);
  EXPECT_EQ(parts[ActionKind::kAllReduce], (Set{"h.0 backward 1", "root backward 1"}));
  EXPECT_EQ(parts[ActionKind::kOptimizer], (Set{"h.0 update -1", "root update -1"}));
  EXPECT_EQ(parts[ActionKind::kLoad], (Set{" forward 0", " forward 1"}));
  EXPECT_EQ(parts[ActionKind::kClip], Set{" update -1"});
  EXPECT_EQ(parts[ActionKind::kReduceScalars], Set{"  -1"});
  EXPECT_EQ(PartOf({Mode::kTrain, 3, schedule.actions.size()}, schedule, layout), StepPart());
}

// An embedding in the root and two blocks, of which the second is run again.
TEST(StepPosition, SaysStepPassAndUnit) {
  const Layout layout = MakeLayout({{"embedding", false, {{"wte", Shape{8}}}},
                                    {"h.0", true, {{"h.0.w", Shape{8}}}},
                                    {"h.1", true, {{"h.1.w", Shape{8}}}}},
                                   {}, /*shards=*/2);
  ScheduleOptions options;
  options.shards = 2;
  options.units.resize(layout.units.size());
  for (const int unit : layout.unit_of_segment) options.segments.push_back({.unit = unit});
  options.segments.back().recomputed = true;
  const Schedule schedule = MakeSchedule(options);
  const auto words = [&](size_t action, Mode mode = Mode::kTrain) {
    return Describe({mode, 12, action}, schedule, layout);
  };
  std::set<std::string> of_runs, of_gathers, of_updates;
  for (size_t i = 0; i < schedule.actions.size(); ++i) {
    const Action& action = schedule.actions[i];
    if (action.kind == ActionKind::kRun) of_runs.insert(words(i));
    if (action.kind == ActionKind::kGather) of_gathers.insert(words(i));
    if (action.kind == ActionKind::kOptimizer) of_updates.insert(words(i));
    if (action.kind == ActionKind::kReduceScalars) {
      EXPECT_EQ(words(i), "step 12");
    }
  }
  const std::set<std::string> want_runs = {
      "step 12, forward of unit 0 (root)",  "step 12, forward of unit 1 (h.0)",
      "step 12, forward of unit 2 (h.1)",   "step 12, recompute of unit 2 (h.1)",
      "step 12, backward of unit 0 (root)", "step 12, backward of unit 1 (h.0)",
      "step 12, backward of unit 2 (h.1)"};
  EXPECT_EQ(of_runs, want_runs);
  for (const std::string& gather : of_gathers) EXPECT_TRUE(want_runs.contains(gather)) << gather;
  EXPECT_EQ(of_updates, (std::set<std::string>{"step 12, update of unit 0 (root)",
                                               "step 12, update of unit 1 (h.0)",
                                               "step 12, update of unit 2 (h.1)"}));
  // Behind the last action, where a stream may still be named for one.
  EXPECT_EQ(words(schedule.actions.size(), Mode::kEval), "evaluation after step 12");
}

}  // namespace
}  // namespace fsdp
