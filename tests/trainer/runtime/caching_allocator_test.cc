// The caching allocator against a model of it that keeps lists and looks through all of them, and
// under the stream checker.
#include "trainer/runtime/caching_allocator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "trainer/core/errors.h"
#include "trainer/runtime/cpu/cpu_device.h"
#include "trainer/runtime/sim/sim_device.h"

namespace fsdp {
namespace {

constexpr int64_t kKiB = 1 << 10, kMiB = 1 << 20;

// How much of what was recorded has passed.
struct Progress {
  int64_t recorded = 0, passed = 0;
};

class ManualEvent final : public Event {
 public:
  ManualEvent(std::shared_ptr<Progress> progress, int64_t at)
      : progress_(std::move(progress)), at_(at) {}
  bool Ready() const override { return progress_->passed >= at_; }
  void Block() const override { progress_->passed = std::max(progress_->passed, at_); }

 private:
  double DoTime() const override { return 0; }

  std::shared_ptr<Progress> progress_;
  int64_t at_;
};

// Whose events pass when a test says so, or waits.
class ManualStream final : public Stream {
 public:
  using Stream::Stream;
  Progress& progress() { return *progress_; }

 private:
  void DoEnqueue(Operation) override {}
  std::shared_ptr<Event> DoRecord(bool) override {
    return std::make_shared<ManualEvent>(progress_, ++progress_->recorded);
  }
  void DoWait(const EventPtr&) override {}

  std::shared_ptr<Progress> progress_ = std::make_shared<Progress>();
};

// The allocator again, without a thought for speed: every list is looked through.
class Model {
 public:
  Model(int64_t limit, std::vector<std::unique_ptr<ManualStream>>& streams)
      : limit_(limit), streams_(streams) {}

  // Allocate() has to do this: `address` where the place is known, else a new segment of that size;
  // nothing: it throws.
  struct Expected {
    uintptr_t address = 0;
    int64_t new_segment = 0;
  };
  std::optional<Expected> Allocate(int64_t bytes, int stream) {
    Look();
    const int64_t want = (bytes + 511) / 512 * 512;
    const int64_t segment = want <= kMiB       ? 2 * kMiB
                            : want < 10 * kMiB ? 20 * kMiB
                                               : (want + 2 * kMiB - 1) / (2 * kMiB) * (2 * kMiB);
    for (const bool again : {false, true}) {
      if (again) Retry();
      Piece* best = nullptr;
      for (Segment& s : segments_) {
        if (s.stream != stream || s.small != (want <= kMiB)) continue;
        for (Piece& p : s.pieces) {
          if (p.state != State::kFree || p.bytes < want) continue;
          if (!best || std::pair(p.bytes, p.begin) < std::pair(best->bytes, best->begin)) best = &p;
        }
      }
      if (best) {
        const uintptr_t address = best->begin;
        Take(address, want);
        return Expected{address};
      }
      if (Reserved() + segment <= limit_) {
        wanted_ = {stream, want, segment};
        return Expected{0, segment};
      }
    }
    return std::nullopt;
  }
  // Where the new segment is.
  void NewSegment(uintptr_t address) {
    const auto [stream, want, bytes] = wanted_;
    segments_.push_back({address, bytes, stream, want <= kMiB, {{address, bytes}}});
    Count();
    Take(address, want);
  }
  void Use(uintptr_t address, int stream) {
    const auto [segment, piece] = Find(address);
    if (segment->stream == stream) return;
    auto& users = piece->users;
    if (std::find(users.begin(), users.end(), stream) == users.end()) users.push_back(stream);
  }
  // Before the allocator's, which records the events that this one counts.
  void Free(uintptr_t address) {
    const auto [segment, piece] = Find(address);
    piece->state = piece->users.empty() ? State::kFree : State::kPassing;
    for (const int user : piece->users) {
      piece->events.emplace_back(user, streams_[user]->progress().recorded + 1);
    }
    piece->users.clear();
    Join(*segment);
    Count();
  }

  const CachingStatistics& statistics() const { return statistics_; }
  bool Overlaps(uintptr_t begin, int64_t bytes) const {
    return std::any_of(segments_.begin(), segments_.end(), [&](const Segment& s) {
      return begin < s.begin + s.bytes && s.begin < begin + bytes;
    });
  }
  // Nothing that is live lies in another's.
  bool Disjoint() const {
    for (const Segment& s : segments_) {
      uintptr_t at = s.begin;
      for (const Piece& p : s.pieces) {
        if (p.begin != at) return false;
        at += p.bytes;
      }
      if (at != s.begin + s.bytes) return false;
    }
    return true;
  }

 private:
  enum class State { kFree, kUsed, kPassing };
  struct Piece {
    uintptr_t begin;
    int64_t bytes;
    State state = State::kFree;
    std::vector<int> users = {};
    std::vector<std::pair<int, int64_t>> events = {};
  };
  struct Segment {
    uintptr_t begin;
    int64_t bytes;
    int stream;
    bool small;
    std::vector<Piece> pieces;
  };

  std::pair<Segment*, Piece*> Find(uintptr_t address) {
    for (Segment& s : segments_) {
      for (Piece& p : s.pieces) {
        if (p.begin == address) return {&s, &p};
      }
    }
    return {};
  }

  void Take(uintptr_t address, int64_t want) {
    const auto [s, p] = Find(address);
    const int64_t rest = p->bytes - want;
    p->state = State::kUsed;
    if (s->small ? rest >= 512 : rest > kMiB) {
      p->bytes = want;
      s->pieces.insert(s->pieces.begin() + (p - s->pieces.data()) + 1,
                       {address + want, rest, State::kFree});
    }
    Count();
  }

  void Look() {
    for (Segment& s : segments_) {
      bool changed = false;
      for (Piece& p : s.pieces) {
        if (p.state != State::kPassing) continue;
        std::erase_if(p.events, [&](const auto& e) {
          return streams_[e.first]->progress().passed >= e.second;
        });
        if (!p.events.empty()) continue;
        p.state = State::kFree;
        changed = true;
      }
      if (changed) Join(s);
    }
    Count();
  }

  void Retry() {
    ++statistics_.retries;
    for (Segment& s : segments_) {
      for (Piece& p : s.pieces) {
        if (p.state != State::kPassing) continue;
        p.events.clear();
        p.state = State::kFree;
      }
      Join(s);
    }
    std::erase_if(segments_, [](const Segment& s) {
      return s.pieces.size() == 1 && s.pieces[0].state == State::kFree;
    });
    Count();
  }

  static void Join(Segment& s) {
    for (size_t i = 0; i + 1 < s.pieces.size();) {
      if (s.pieces[i].state == State::kFree && s.pieces[i + 1].state == State::kFree) {
        s.pieces[i].bytes += s.pieces[i + 1].bytes;
        s.pieces.erase(s.pieces.begin() + static_cast<std::ptrdiff_t>(i) + 1);
      } else {
        ++i;
      }
    }
  }

  int64_t Reserved() const {
    int64_t sum = 0;
    for (const Segment& s : segments_) sum += s.bytes;
    return sum;
  }

  void Count() {
    CachingStatistics now;
    now.reserved.now = Reserved();
    for (const Segment& s : segments_) {
      for (const Piece& p : s.pieces) {
        if (p.state == State::kUsed) now.allocated.now += p.bytes;
        if (p.state != State::kFree) now.active.now += p.bytes;
      }
    }
    const auto update = [](CachingStatistics::Bytes& mine, int64_t bytes) {
      mine = {bytes, std::max(mine.peak, bytes)};
    };
    update(statistics_.allocated, now.allocated.now);
    update(statistics_.active, now.active.now);
    update(statistics_.reserved, now.reserved.now);
  }

  const int64_t limit_;
  std::vector<std::unique_ptr<ManualStream>>& streams_;
  std::vector<Segment> segments_;
  CachingStatistics statistics_;
  struct {
    int stream;
    int64_t want, segment;
  } wanted_{};
};

struct Trace {
  uint64_t seed;
  int64_t operations;
  int streams;
  int64_t limit;
};

// Events that a trace met with.
struct Met {
  int64_t retries = 0, refused = 0, reused = 0, waited = 0;
};

void Follow(const Trace& trace, Met& met) {
  std::mt19937_64 random(trace.seed);
  const auto below = [&](int64_t n) {
    return static_cast<int64_t>(random() % static_cast<uint64_t>(n));
  };
  SimDevice device;
  std::vector<std::unique_ptr<ManualStream>> streams;
  CachingAllocator allocator(device, trace.limit);
  for (int s = 0; s < trace.streams; ++s) {
    streams.push_back(std::make_unique<ManualStream>(device, "s" + std::to_string(s)));
    allocator.Attach(s, streams.back().get());
  }
  Model model(trace.limit, streams);
  std::vector<uintptr_t> live;
  const auto free = [&](size_t i) {
    const uintptr_t address = live[i];
    live[i] = live.back();
    live.pop_back();
    model.Free(address);
    allocator.Free(reinterpret_cast<std::byte*>(address));
  };
  for (int64_t i = 0; i < trace.operations; ++i) {
    const int64_t what = below(16);
    if (what < 6 && live.size() < 40) {
      constexpr int64_t kLargest[] = {4 * kKiB, 200 * kKiB, 2 * kMiB, 12 * kMiB, 30 * kMiB};
      const int64_t bytes = 1 + below(kLargest[below(5)]);
      const int stream = static_cast<int>(below(trace.streams));
      const std::optional<Model::Expected> expected = model.Allocate(bytes, stream);
      uintptr_t address = 0;
      try {
        address = reinterpret_cast<uintptr_t>(allocator.Allocate(bytes, stream));
      } catch (const MemoryError&) {
      }
      ASSERT_EQ(address != 0, expected.has_value()) << "operation " << i;
      if (address == 0) {
        ++met.refused;
      } else if (expected->new_segment > 0) {
        ASSERT_FALSE(model.Overlaps(address, expected->new_segment)) << "operation " << i;
        model.NewSegment(address);
      } else {
        ASSERT_EQ(address, expected->address) << "operation " << i;
        ++met.reused;
      }
      if (address != 0) live.push_back(address);
    } else if (what < 11 && !live.empty()) {
      free(static_cast<size_t>(below(static_cast<int64_t>(live.size()))));
      met.waited += allocator.statistics().active.now > allocator.statistics().allocated.now;
    } else if (what < 14 && !live.empty()) {
      const uintptr_t address = live[below(static_cast<int64_t>(live.size()))];
      const int stream = static_cast<int>(below(trace.streams));
      model.Use(address, stream);
      allocator.Use(reinterpret_cast<std::byte*>(address), stream);
    } else {
      Progress& progress = streams[below(trace.streams)]->progress();
      progress.passed += (progress.recorded - progress.passed + 1) / 2;
    }
    ASSERT_TRUE(allocator.statistics() == model.statistics()) << "operation " << i;
    if (i % 64 == 0) {
      ASSERT_TRUE(model.Disjoint());
    }
  }
  met.retries += allocator.statistics().retries;
  // Without a limit nothing is ever tried again.
  if (trace.limit == CachingAllocator::kNoLimit) {
    EXPECT_EQ(allocator.statistics().retries, 0);
  }
  while (!live.empty()) free(live.size() - 1);
}

TEST(CachingAllocator, FollowsItsModelOverAMillionOperations) {
#ifdef __SANITIZE_ADDRESS__
  constexpr int64_t kOperations = 5000;
#else
  constexpr int64_t kOperations = 50'000;
#endif
  Met met;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    const int64_t limits[] = {CachingAllocator::kNoLimit, 500 * kMiB, 200 * kMiB, 90 * kMiB};
    Follow({seed, kOperations, 1 + static_cast<int>(seed % 4), limits[seed / 4 % 4]}, met);
    if (HasFatalFailure()) return;
  }
  std::printf("%lld retries, %lld refused, %lld reused, %lld frees that others had not passed\n",
              static_cast<long long>(met.retries), static_cast<long long>(met.refused),
              static_cast<long long>(met.reused), static_cast<long long>(met.waited));
  EXPECT_GT(met.retries, 100);
  EXPECT_GT(met.refused, 100);
  EXPECT_GT(met.retries, met.refused);
  EXPECT_GT(met.reused, 10 * met.retries);
  EXPECT_GT(met.waited, 1000);
}

class CachingAllocatorCase : public ::testing::Test {
 protected:
  void Limit(int64_t bytes) {
    allocator_.emplace(device_, bytes);
    for (int s = 0; s < 2; ++s) allocator_->Attach(s, streams_[s].get());
  }
  std::byte* New(int64_t bytes, int stream = 0) { return allocator_->Allocate(bytes, stream); }
  const CachingStatistics& now() const { return allocator_->statistics(); }

  SimDevice device_;
  std::unique_ptr<ManualStream> streams_[2] = {std::make_unique<ManualStream>(device_, "a"),
                                               std::make_unique<ManualStream>(device_, "b")};
  std::optional<CachingAllocator> allocator_{std::in_place, device_};
};

TEST_F(CachingAllocatorCase, RoundsSizesAndSegments) {
  for (const auto& [asked, block, segment] : std::vector<std::tuple<int64_t, int64_t, int64_t>>{
           {1, 512, 2 * kMiB},
           {513, kKiB, 2 * kMiB},
           {kMiB, kMiB, 2 * kMiB},
           {kMiB + 1, kMiB + 512, 20 * kMiB},
           {10 * kMiB, 10 * kMiB, 10 * kMiB},
           {10 * kMiB + 1, 10 * kMiB + 512, 12 * kMiB},
           {11 * kMiB + 1, 12 * kMiB, 12 * kMiB},  // Too little is left to be split off.
           {31 * kMiB, 32 * kMiB, 32 * kMiB}}) {
    Limit(CachingAllocator::kNoLimit);
    New(asked);
    EXPECT_EQ(now().allocated.now, block) << asked;
    EXPECT_EQ(now().reserved.now, segment) << asked;
  }
}

TEST_F(CachingAllocatorCase, SplitsAndJoins) {
  Limit(CachingAllocator::kNoLimit);
  std::byte* const a = New(kMiB);
  std::byte* const b = New(512 * kKiB);
  std::byte* const c = New(512 * kKiB);
  EXPECT_EQ(b, a + kMiB);
  EXPECT_EQ(c, b + 512 * kKiB);
  EXPECT_EQ(now().reserved.now, 2 * kMiB);
  for (std::byte* const block : {a, c, b}) allocator_->Free(block);
  EXPECT_EQ(New(kMiB), a);  // All of it is one again; half of that is taken.
  EXPECT_EQ(New(kMiB), b);
  EXPECT_EQ(now().reserved.now, 2 * kMiB);
}

TEST_F(CachingAllocatorCase, SmallestThatFits) {
  Limit(CachingAllocator::kNoLimit);
  std::byte* const large = New(600 * kKiB);
  New(512);
  std::byte* const small = New(300 * kKiB);
  New(512);
  allocator_->Free(large);
  allocator_->Free(small);
  EXPECT_EQ(New(200 * kKiB), small);
  EXPECT_EQ(New(200 * kKiB), large);
}

TEST_F(CachingAllocatorCase, BlocksBelongToStreams) {
  Limit(CachingAllocator::kNoLimit);
  std::byte* const a = New(4 * kKiB, 0);
  allocator_->Free(a);
  EXPECT_NE(New(4 * kKiB, 1), a);
  EXPECT_EQ(New(4 * kKiB, 0), a);
}

TEST_F(CachingAllocatorCase, ReuseWaitsForOthersEvents) {
  Limit(CachingAllocator::kNoLimit);
  std::byte* const a = New(4 * kKiB, 0);
  allocator_->Use(a, 1);
  allocator_->Free(a);
  EXPECT_EQ(now().allocated.now, 0);
  EXPECT_EQ(now().active.now, 4 * kKiB);
  std::byte* const other = New(4 * kKiB, 0);
  EXPECT_NE(other, a);
  allocator_->Free(other);
  streams_[1]->progress().passed = 1;
  EXPECT_EQ(New(4 * kKiB, 0), a);
  EXPECT_EQ(now().active.now, 4 * kKiB);
  EXPECT_EQ(now().active.peak, 8 * kKiB);
  EXPECT_EQ(now().allocated.peak, 4 * kKiB);
}

TEST_F(CachingAllocatorCase, TheLimitTakesBackWhatIsCached) {
  Limit(30 * kMiB);
  std::byte* const a = New(20 * kMiB, 0);
  allocator_->Use(a, 1);
  allocator_->Free(a);
  New(12 * kMiB, 1);  // Waits for stream 1, which it is for, too.
  EXPECT_EQ(streams_[1]->progress().passed, streams_[1]->progress().recorded);
  EXPECT_EQ(now().retries, 1);
  EXPECT_EQ(now().reserved.now, 12 * kMiB);
  EXPECT_EQ(now().reserved.peak, 20 * kMiB);
  EXPECT_EQ(device_.allocated_bytes(), 12 * kMiB);
  New(18 * kMiB, 0);  // Exactly.
  EXPECT_EQ(now().retries, 1);
  try {
    New(1, 0);
    FAIL() << "nothing is left";
  } catch (const MemoryError& error) {
    EXPECT_EQ(std::string(error.what()),
              "does not fit: 512 B of device memory wanted, and 30.0 MiB are reserved, 30.0 MiB of "
              "them in use; run.memory_limit is 30.0 MiB");
  }
  EXPECT_EQ(now().retries, 2);
}

TEST(CachingAllocatorDevice, AFullDeviceIsALimit) {
  SimDevice device({.capacity_bytes = 24 * kMiB});
  CachingAllocator allocator(device);
  allocator.Free(allocator.Allocate(20 * kMiB, 0));
  allocator.Allocate(22 * kMiB, 0);
  EXPECT_EQ(allocator.statistics().retries, 1);
  EXPECT_THROW(allocator.Allocate(3 * kMiB, 0), MemoryError);
}

TEST(CachingAllocatorDevice, WhatOthersHaveCountsAgainstTheLimit) {
  SimDevice device;
  CachingAllocator allocator(device, 30 * kMiB);
  allocator.Free(allocator.Allocate(20 * kMiB, 0));
  allocator.Include(12 * kMiB);  // The cached segment goes back for it.
  const CachingStatistics& now = allocator.statistics();
  EXPECT_EQ(now.retries, 1);
  for (const CachingStatistics::Bytes& all : {now.allocated, now.active, now.reserved}) {
    EXPECT_EQ(all.now, 12 * kMiB);
    EXPECT_EQ(all.peak, 20 * kMiB);
  }
  allocator.Allocate(18 * kMiB, 0);
  EXPECT_EQ(now.allocated.now, 30 * kMiB);
  try {
    allocator.Include(1);
    FAIL() << "nothing is left";
  } catch (const MemoryError& error) {
    EXPECT_STREQ(error.what(),
                 "does not fit: 1 B of host memory wanted, and 30.0 MiB are reserved, 30.0 MiB of "
                 "them in use, 12.0 MiB as host memory; run.memory_limit is 30.0 MiB");
  }
  EXPECT_EQ(now.reserved.now, 30 * kMiB);
}

TEST(CachingAllocatorDevice, PeaksBeginAgain) {
  SimDevice device;
  CachingAllocator allocator(device);
  allocator.Free(allocator.Allocate(20 * kMiB, 0));
  allocator.ResetPeaks();
  EXPECT_EQ(allocator.statistics().allocated.peak, 0);
  EXPECT_EQ(allocator.statistics().reserved.peak, 20 * kMiB);
}

// Work that touches what it was given, on streams of a device, in an order that only its own waits
// and the allocator's events make.
void WorkUnderTheChecker(Device& device, int64_t limit, uint64_t seed, int& races) {
  std::mt19937_64 random(seed);
  const auto below = [&](int64_t n) {
    return static_cast<int64_t>(random() % static_cast<uint64_t>(n));
  };
  constexpr int kStreams = 3;
  CachingAllocator allocator(device, limit);
  std::vector<std::unique_ptr<Stream>> streams;
  for (int s = 0; s < kStreams; ++s) {
    streams.push_back(device.CreateStream("s" + std::to_string(s)));
    allocator.Attach(s, streams.back().get());
  }
  const auto touch = [](Stream& stream, std::byte* data, int64_t bytes) {
    Operation operation{"touch", {}, {Range(data, bytes)}, {}};
    operation.costs = {Cost{.bytes_written = static_cast<double>(bytes)}};
    operation.kernels.host = [data, bytes](ThreadPool&) {
      std::fill_n(HostAddress(data), bytes, std::byte{1});
    };
    stream.Enqueue(std::move(operation));
  };
  struct Live {
    std::byte* data;
    int64_t bytes;
  };
  std::vector<Live> live;
  for (int i = 0; i < 2000 && races == 0; ++i) {
    if (live.size() < 12 && below(2) == 0) {
      const int64_t bytes = 1 + below(below(2) == 0 ? 5000 : 3 * kMiB / 2);
      const int own = static_cast<int>(below(kStreams)), other = static_cast<int>(below(kStreams));
      std::byte* const data = allocator.Allocate(bytes, own);
      live.push_back({data, bytes});
      touch(*streams[own], data, std::min<int64_t>(bytes, 64));
      streams[other]->Wait(streams[own]->Record());
      touch(*streams[other], data, std::min<int64_t>(bytes, 64));
      allocator.Use(data, other);
    } else if (!live.empty()) {
      std::swap(live[below(static_cast<int64_t>(live.size()))], live.back());
      allocator.Free(live.back().data);
      live.pop_back();
    }
  }
  for (const Live& block : live) allocator.Free(block.data);
  EXPECT_GT(limit == CachingAllocator::kNoLimit ? 1 : allocator.statistics().retries, 0);
  streams.clear();  // Then the segments.
}

TEST(CachingAllocatorDevice, NoRaceOnTheCpuOrInSimulatedTime) {
  for (uint64_t seed = 1; seed <= 6; ++seed) {
    for (const int64_t limit : {CachingAllocator::kNoLimit, 70 * kMiB}) {
      int races = 0;
      const auto checker = std::make_shared<StreamChecker>([&](const StreamChecker::Race& race) {
        if (races++ == 0) std::printf("%s\n", race.ToString().c_str());
      });
      if (seed % 2 == 0) {
        CpuDevice cpu({.checker = checker});
        WorkUnderTheChecker(cpu, limit, seed, races);
      } else {
        SimDevice sim({.s_per_byte = 1, .s_per_enqueue = 10}, checker);
        WorkUnderTheChecker(sim, limit, seed, races);
      }
      EXPECT_EQ(races, 0) << seed;
    }
  }
}

}  // namespace
}  // namespace fsdp
