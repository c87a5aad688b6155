#include "trainer/fsdp/step_position.h"

#include <gtest/gtest.h>

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

// An embedding in the root and two blocks, of which the second is run again.
TEST(StepPosition, SaysStepPassAndUnit) {
  const Layout layout = MakeLayout({{"embedding", false, {{"wte", Shape{8}}}},
                                    {"h.0", true, {{"h.0.w", Shape{8}}}},
                                    {"h.1", true, {{"h.1.w", Shape{8}}}}},
                                   {}, /*shards=*/2);
  ScheduleOptions options;
  options.shards = 2;
  options.unit_of_segment = layout.unit_of_segment;
  options.recomputed = {false, false, true};
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
