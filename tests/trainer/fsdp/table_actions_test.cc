#include "trainer/fsdp/table_actions.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/testing/block_schedule.h"
#include "trainer/fsdp/schedule.h"

namespace fsdp {
namespace {

ScheduleOptions WithTables(Mode mode) {
  ScheduleOptions options = OfBlocks(/*blocks=*/2, /*shards=*/4);
  options.mode = mode;
  options.micro_batches = mode == Mode::kTrain ? 2 : 1;
  options.tables = true;
  return options;
}

// The places of those of this kind.
std::vector<int> PlacesOf(const Schedule& schedule, ActionKind kind) {
  std::vector<int> places;
  for (int i = 0; i < std::ssize(schedule.actions); ++i) {
    if (schedule.actions[i].kind == kind) places.push_back(i);
  }
  return places;
}

TEST(TableActions, AreOnceAStepInTheirOrder) {
  const Schedule schedule = MakeSchedule(WithTables(Mode::kTrain));
  int last = -1;
  for (const ActionKind kind :
       {ActionKind::kTableTurn, ActionKind::kTableFetch, ActionKind::kTableRoute,
        ActionKind::kTableAgree, ActionKind::kTableCheck, ActionKind::kTableSend,
        ActionKind::kReduceScalars, ActionKind::kClip, ActionKind::kTableUpdate}) {
    const std::vector<int> places = PlacesOf(schedule, kind);
    ASSERT_EQ(places.size(), 1u) << NameOf({.kind = kind});
    EXPECT_GT(places[0], last) << NameOf({.kind = kind});
    last = places[0];
  }
  EXPECT_EQ(PlacesOf(schedule, ActionKind::kTableClear).size(), 1u);
}

TEST(TableActions, AnEvaluationFetchesAlone) {
  const Schedule schedule = MakeSchedule(WithTables(Mode::kEval));
  EXPECT_EQ(PlacesOf(schedule, ActionKind::kTableTurn).size(), 1u);
  EXPECT_EQ(PlacesOf(schedule, ActionKind::kTableFetch).size(), 1u);
  for (const ActionKind kind : {ActionKind::kTableRoute, ActionKind::kTableAgree,
                                ActionKind::kTableClear, ActionKind::kTableUpdate}) {
    EXPECT_TRUE(PlacesOf(schedule, kind).empty());
  }
}

// The next step's fetch comes behind this step's update, the sums are cleared behind what has sent
// them, and the first run waits for the rows.
TEST(TableActions, WaitForEachOther) {
  const Schedule schedule = MakeSchedule(WithTables(Mode::kTrain));
  const auto waits = [&](ActionKind kind) {
    return schedule.actions[PlacesOf(schedule, kind)[0]].waits;
  };
  const auto has = [](const std::vector<Wait>& list, int action, bool before) {
    return std::ranges::any_of(list, [&](const Wait& wait) {
      return wait.action == action && wait.step_before == before;
    });
  };
  const int update = PlacesOf(schedule, ActionKind::kTableUpdate)[0];
  EXPECT_TRUE(has(waits(ActionKind::kTableClear), update, true) ||
              has(waits(ActionKind::kBegin), update, true));
  EXPECT_TRUE(
      has(waits(ActionKind::kTableRoute), PlacesOf(schedule, ActionKind::kTableTurn)[0], false));
  EXPECT_TRUE(
      has(waits(ActionKind::kTableAgree), PlacesOf(schedule, ActionKind::kTableRoute)[0], false));
  const auto first_run = std::ranges::find(schedule.actions, ActionKind::kRun, &Action::kind);
  EXPECT_TRUE(has(first_run->waits, PlacesOf(schedule, ActionKind::kTableFetch)[0], false));
  ScheduleOptions without = WithTables(Mode::kTrain);
  without.tables = false;
  for (const Action& action : MakeSchedule(without).actions) {
    EXPECT_FALSE(std::string(NameOf(action)).starts_with("table"));
  }
}

}  // namespace
}  // namespace fsdp
