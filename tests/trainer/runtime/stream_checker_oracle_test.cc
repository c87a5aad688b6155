// The checker against brute force: an oracle that keeps every use of every byte, and of every step
// of a stream the set of all steps before it, with no clocks and no segments.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bitset>
#include <cstdint>
#include <iterator>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "trainer/runtime/stream_checker.h"

namespace fsdp {
namespace {

constexpr int kBytes = 24;

class Oracle {
 public:
  explicit Oracle(int streams) : last_(streams + 1) { Advance(kHost); }

  static constexpr int kHost = 0;
  using Node = int;

  // Every step of a stream or of the host is a node; its parents come before it.
  Node Operate(int stream) {
    if (stream != kHost) last_[stream].insert(*last_[kHost].begin());
    return Advance(stream);
  }
  Node Record(int stream) { return Operate(stream); }
  void Wait(int stream, Node event) { last_[stream].insert(event); }
  void HostWait(Node event) {
    last_[kHost].insert(event);
    Advance(kHost);
  }

  // True if a byte of [begin, end) has an earlier use that conflicts and does not come before
  // `now`.
  bool Use(Node now, int begin, int end, bool write) {
    const Nodes& before = before_[now];
    bool race = false;
    for (int byte = begin; byte < end; ++byte) {
      for (const auto& [node, wrote] : uses_[byte]) {
        race |= (wrote || write) && node != now && !before[node];
      }
      uses_[byte].push_back({now, write});
    }
    return race;
  }
  void Forget(int begin, int end) {
    for (int byte = begin; byte < end; ++byte) uses_[byte].clear();
  }

 private:
  Node Advance(int stream) {
    const Node node = static_cast<Node>(before_.size());
    Nodes before;
    for (const Node parent : last_[stream]) (before |= before_[parent]).set(parent);
    before_.push_back(before);
    last_[stream] = {node};
    return node;
  }

  using Nodes = std::bitset<1024>;    // More than RunProgram() makes; set() throws beyond.
  std::vector<Nodes> before_;         // A node: those that come before it.
  std::vector<std::set<Node>> last_;  // A stream: what its next step comes after.
  std::vector<std::pair<Node, bool>> uses_[kBytes];
};

struct Outcome {
  int steps = 0;
  bool raced = false;
};

// Runs one random program until its first race. Beyond it the checker, which keeps the newest uses
// only, may say other things than the oracle; nobody needs it to.
Outcome RunProgram(uint32_t seed) {
  std::mt19937 random(seed);
  const auto below = [&](int n) { return static_cast<int>(random() % n); };
  const int streams = 1 + below(4);
  const int wait_weight = 1 + below(4);
  // How often, in per cent, a use is preceded by a wait for each other stream: from a program that
  // leaves order to chance to one that forgets next to nothing.
  const int care = std::array{0, 60, 95, 99, 100}[below(5)];
  const bool long_ranges = below(2) == 0;

  int64_t reported = 0;
  StreamChecker checker([&](const StreamChecker::Race&) { ++reported; });
  for (int s = 0; s < streams; ++s) checker.AddStream("s" + std::to_string(s));
  Oracle oracle(streams);
  struct Event {
    VectorClock clock;
    Oracle::Node node;
  };
  std::vector<Event> events;

  const auto range = [&](int* begin, int* end) {
    *begin = below(kBytes);
    *end = *begin + below(long_ranges ? kBytes - *begin + 1 : std::min(4, kBytes - *begin + 1));
    Range out;
    out.begin = 4096 + *begin;
    out.bytes = *end - *begin;
    return out;
  };

  const auto order_after_others = [&](int stream) {
    for (int other = 1; other <= streams; ++other) {
      if (other == stream || below(100) >= care) continue;
      const Event event{checker.OnRecord(other), oracle.Record(other)};
      if (stream == Oracle::kHost) {
        checker.OnHostWait(event.clock);
        oracle.HostWait(event.node);
      } else {
        checker.OnWait(stream, event.clock);
        oracle.Wait(stream, event.node);
      }
    }
  };

  Outcome outcome;
  for (; outcome.steps < 80; ++outcome.steps) {
    const int stream = 1 + below(streams);
    const int dice = below(16 + 2 * wait_weight);
    bool race = false;
    int begin, end;
    if (dice < 14) {  // An operation, or the host's own access.
      const bool host = dice == 0;
      order_after_others(host ? Oracle::kHost : stream);
      std::vector<Range> reads, writes;
      const Oracle::Node now = oracle.Operate(host ? Oracle::kHost : stream);
      for (int i = below(3); i > 0; --i) {
        reads.push_back(range(&begin, &end));
        race |= oracle.Use(now, begin, end, false);
      }
      for (int i = below(2); i > 0; --i) {
        writes.push_back(range(&begin, &end));
        race |= oracle.Use(now, begin, end, true);
      }
      if (host) {
        checker.OnHostAccess("host", reads, writes);
      } else {
        checker.OnOperation(stream, "op", reads, writes);
      }
    } else if (dice == 14) {
      order_after_others(Oracle::kHost);
      const Range freed = range(&begin, &end);
      race |= oracle.Use(oracle.Operate(Oracle::kHost), begin, end, true);
      checker.OnFree(freed);
      oracle.Forget(begin, end);
    } else if (dice == 15 && !events.empty()) {
      const Event& event = events[below(static_cast<int>(events.size()))];
      checker.OnHostWait(event.clock);
      oracle.HostWait(event.node);
    } else if (dice % 2 == 0 || events.empty()) {
      events.push_back({checker.OnRecord(stream), oracle.Record(stream)});
    } else {  // Mostly a fresh event, sometimes an old one.
      const int n = static_cast<int>(events.size());
      const Event& event = events[below(3) == 0 ? below(n) : n - 1];
      checker.OnWait(stream, event.clock);
      oracle.Wait(stream, event.node);
    }
    EXPECT_EQ(reported > 0, race) << "seed " << seed << ", step " << outcome.steps;
    if (race || reported > 0) {
      outcome.raced = true;
      return outcome;
    }
  }
  return outcome;
}

TEST(StreamCheckerOracle, VerdictsAreThoseOfBruteForce) {
  int raced = 0, clean = 0, long_before_the_race = 0;
  for (uint32_t seed = 0; seed < 3000 && !HasFailure(); ++seed) {
    const Outcome outcome = RunProgram(seed);
    ++(outcome.raced ? raced : clean);
    long_before_the_race += outcome.raced && outcome.steps >= 20;
  }
  // The programs are of all kinds, so the comparison means something.
  EXPECT_GT(raced, 300);
  EXPECT_GT(clean, 300);
  EXPECT_GT(long_before_the_race, 100);
}

}  // namespace
}  // namespace fsdp
