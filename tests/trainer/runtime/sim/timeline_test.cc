#include "trainer/runtime/sim/timeline.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace fsdp {
namespace {

constexpr SimResource kKernels = SimResource::kKernels, kInside = SimResource::kInside;

double End(Timeline& timeline, size_t stream, double time = 0) {
  const Timeline::MarkPtr mark = timeline.AddMark(stream, time);
  timeline.AdvanceUntil(*mark);
  return mark->time;
}

// All times below are sums of powers of two, and rates are: exact.
TEST(TimelineTest, WhatIsEnqueuedLaterSlowsDownWhatRuns) {
  Timeline timeline({{kKernels, kInside, 0.5}, {kInside, kKernels, 0.25}});
  const size_t compute = timeline.AddStream(), comm = timeline.AddStream();
  timeline.AddWork(compute, 0, {8, kKernels}, {});
  const Timeline::MarkPtr computed = timeline.AddMark(compute, 0);
  timeline.AdvanceTo(4);
  EXPECT_FALSE(computed->passed);
  timeline.AddWork(comm, 4, {1, kInside}, {});  // 4 s at a quarter of its speed.
  const Timeline::MarkPtr gathered = timeline.AddMark(comm, 4);
  timeline.AdvanceUntil(*computed);
  EXPECT_EQ(gathered->time, 8);
  EXPECT_EQ(computed->time, 10);  // 4 s alone, 4 s at half its speed, 2 s alone.
}

TEST(TimelineTest, AResourceHasOnlySoMuchToGive) {
  Timeline timeline;
  const size_t a = timeline.AddStream(), b = timeline.AddStream(), c = timeline.AddStream();
  timeline.AddWork(a, 0, {1, kKernels, 0.5}, {});
  timeline.AddWork(b, 0, {1, kKernels, 0.5}, {});
  EXPECT_EQ(End(timeline, a), 1);  // The two have room beside each other.
  EXPECT_EQ(End(timeline, b, 1), 1);
  timeline.AddWork(a, 1, {1, kKernels}, {});
  timeline.AddWork(b, 1, {1, kKernels}, {});
  timeline.AddWork(c, 1, {1, SimResource::kNone}, {});
  EXPECT_EQ(End(timeline, c, 1), 2);
  EXPECT_EQ(End(timeline, a, 2), 3);
  EXPECT_EQ(End(timeline, b, 3), 3);
}

TEST(TimelineTest, WaitsAndPeersHoldAStreamBack) {
  Timeline timeline;
  const size_t a = timeline.AddStream(), b = timeline.AddStream();
  struct Seen {
    size_t stream;
    std::string name;
    double begin, end;
    bool operator==(const Seen&) const = default;
  };
  std::vector<Seen> seen;
  timeline.Observe([&](size_t stream, const Timeline::Label& label, double begin, double end) {
    seen.push_back({stream, label.name, begin, end});
  });
  timeline.AddWork(a, 0, {.seconds = 1, .resource = kInside, .not_before = 3}, {"gather"});
  const Timeline::MarkPtr gathered = timeline.AddMark(a, 0);
  timeline.AddWait(b, 0.5, gathered, {"wait"});
  timeline.AddWork(b, 0.5, {2, kKernels}, {"run"});
  EXPECT_EQ(End(timeline, b, 0.5), 6);
  EXPECT_EQ(seen, (std::vector<Seen>{{a, "gather", 0, 4}, {b, "wait", 0.5, 4}, {b, "run", 4, 6}}));
}

// However often the host looks, the same ends come out; and work is neither made nor lost.
TEST(TimelineTest, LookingChangesNothing) {
  for (int seed = 0; seed < 50; ++seed) {
    std::vector<double> ends[2];
    double busy = 0, longest = 0;
    for (const bool looks : {false, true}) {
      std::mt19937_64 random(seed);
      const auto pick = [&](int n) { return static_cast<int>(random() % n); };
      Timeline timeline({{kKernels, kInside, 0.75}});
      std::vector<size_t> streams;
      std::vector<double> alone(3);
      for (int s = 0; s < 3; ++s) streams.push_back(timeline.AddStream());
      std::vector<Timeline::MarkPtr> marks;
      double time = 0;
      busy = 0;
      for (int i = 0; i < 60; ++i) {
        time += pick(3) * 0.25;
        const size_t stream = pick(3);
        if (pick(4) == 0 && !marks.empty()) {
          timeline.AddWait(streams[stream], time, marks[pick(static_cast<int>(marks.size()))], {});
        }
        const double seconds = pick(8) * 0.5;
        timeline.AddWork(streams[stream], time,
                         {seconds, stream == 0 ? kKernels : kInside, /*share=*/1}, {});
        busy += seconds / 0.75;
        alone[stream] += seconds;
        marks.push_back(timeline.AddMark(streams[stream], time));
        if (looks && pick(2) == 0) timeline.AdvanceTo(time);
        if (!looks) pick(2);
      }
      for (const Timeline::MarkPtr& mark : marks) {
        timeline.AdvanceUntil(*mark);
        ends[looks].push_back(mark->time);
      }
      longest = *std::max_element(alone.begin(), alone.end());
      const double end = *std::max_element(ends[looks].begin(), ends[looks].end());
      EXPECT_GE(end, longest);
      EXPECT_LE(end, time + busy * (1 + 1e-12));
    }
    for (size_t i = 0; i < ends[0].size(); ++i) EXPECT_NEAR(ends[0][i], ends[1][i], 1e-9) << seed;
  }
}

}  // namespace
}  // namespace fsdp
