#include "trainer/runtime/stream_checker.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

namespace fsdp {
namespace {

// Bytes [begin, end) of a small address space; the checker never looks at the memory itself.
Range Bytes(uintptr_t begin, uintptr_t end) {
  Range range;
  range.begin = begin;
  range.bytes = static_cast<int64_t>(end - begin);
  return range;
}

class StreamCheckerTest : public ::testing::Test {
 protected:
  void Read(int stream, const char* name, Range range) {
    checker_.OnOperation(stream, name, {range}, {});
  }
  void Write(int stream, const char* name, Range range) {
    checker_.OnOperation(stream, name, {}, {range});
  }
  void Order(int first, int second) { checker_.OnWait(second, checker_.OnRecord(first)); }
  void HostWaits(int stream) { checker_.OnHostWait(checker_.OnRecord(stream)); }

  // Takes what was reported since the last call.
  std::vector<std::string> Races() { return std::exchange(races_, {}); }
  static std::string Message(const std::string& second, const std::string& first, Range range) {
    return StreamChecker::Race{first, second, range}.ToString();
  }

  std::vector<std::string> races_;
  StreamChecker checker_{
      [this](const StreamChecker::Race& race) { races_.push_back(race.ToString()); }};
  const int a_ = checker_.AddStream("a"), b_ = checker_.AddStream("b"),
            c_ = checker_.AddStream("c");
};
using Strings = std::vector<std::string>;

TEST_F(StreamCheckerTest, MessageNamesBothOperationsAndTheBytes) {
  EXPECT_EQ(Message("matmul on compute", "gather on comm", Bytes(0x1000, 0x1400)),
            "stream checker: matmul on compute is not ordered after gather on comm: "
            "1024 bytes at 0x1000");
}

TEST_F(StreamCheckerTest, ReadAfterWrite) {
  Write(a_, "w", Bytes(100, 200));
  Read(b_, "r", Bytes(150, 160));
  EXPECT_EQ(Races(), Strings{Message("r on b", "w on a", Bytes(150, 160))});
}

TEST_F(StreamCheckerTest, WriteAfterRead) {
  Read(a_, "r", Bytes(100, 200));
  Write(b_, "w", Bytes(190, 300));
  EXPECT_EQ(Races(), Strings{Message("w on b", "r on a", Bytes(190, 200))});
}

TEST_F(StreamCheckerTest, WriteAfterWrite) {
  Write(a_, "w0", Bytes(100, 200));
  Write(b_, "w1", Bytes(0, 101));
  EXPECT_EQ(Races(), Strings{Message("w1 on b", "w0 on a", Bytes(100, 101))});
}

TEST_F(StreamCheckerTest, ReadsDoNotConflict) {
  Read(a_, "r", Bytes(0, 100));
  Read(b_, "r", Bytes(0, 100));
  Read(c_, "r", Bytes(50, 150));
  EXPECT_EQ(Races(), Strings());
}

TEST_F(StreamCheckerTest, NeighboursDoNotConflict) {
  Write(a_, "w", Bytes(0, 100));
  Write(b_, "w", Bytes(100, 200));
  Write(c_, "w", Bytes(100, 100));  // Nothing at all.
  EXPECT_EQ(Races(), Strings());
}

TEST_F(StreamCheckerTest, EveryReaderSinceTheWriteCounts) {
  Read(a_, "ra", Bytes(0, 10));
  Read(b_, "rb", Bytes(0, 10));
  Order(b_, c_);
  Write(c_, "w", Bytes(0, 10));
  EXPECT_EQ(Races(), Strings{Message("w on c", "ra on a", Bytes(0, 10))});
}

TEST_F(StreamCheckerTest, NewestReadOfAStreamCounts) {
  Read(a_, "early", Bytes(0, 10));
  Order(a_, b_);
  Read(a_, "late", Bytes(0, 10));
  Write(b_, "w", Bytes(0, 10));
  EXPECT_EQ(Races(), Strings{Message("w on b", "late on a", Bytes(0, 10))});
}

TEST_F(StreamCheckerTest, EventOrdersWhatCameBeforeItOnly) {
  Write(a_, "before", Bytes(0, 10));
  const VectorClock event = checker_.OnRecord(a_);
  Write(a_, "after", Bytes(10, 20));
  checker_.OnWait(b_, event);
  Read(b_, "r", Bytes(0, 20));
  EXPECT_EQ(Races(), Strings{Message("r on b", "after on a", Bytes(10, 20))});
}

TEST_F(StreamCheckerTest, WaitOrdersWhatComesAfterItOnly) {
  Write(a_, "w", Bytes(0, 10));
  Read(b_, "too early", Bytes(0, 10));
  Order(a_, b_);
  Read(b_, "r", Bytes(0, 10));
  EXPECT_EQ(Races(), Strings{Message("too early on b", "w on a", Bytes(0, 10))});
}

TEST_F(StreamCheckerTest, OrderedUsesAreSilent) {
  Write(a_, "w", Bytes(0, 100));
  Write(a_, "w", Bytes(50, 60));  // A stream is ordered in itself.
  Order(a_, b_);
  Read(b_, "r", Bytes(0, 100));
  Order(b_, a_);
  Write(a_, "w", Bytes(0, 100));
  EXPECT_EQ(Races(), Strings());
}

TEST_F(StreamCheckerTest, OrderIsTransitive) {
  Write(a_, "w", Bytes(0, 10));
  Order(a_, b_);
  Order(b_, c_);  // b itself did nothing.
  Write(c_, "w", Bytes(0, 10));
  EXPECT_EQ(Races(), Strings());
}

TEST_F(StreamCheckerTest, OrderIsNotSymmetric) {
  Order(b_, a_);
  Write(a_, "w", Bytes(0, 10));
  Write(b_, "w", Bytes(0, 10));
  EXPECT_EQ(Races().size(), 1u);
}

TEST_F(StreamCheckerTest, HostWaitOrdersEveryStreamAfterIt) {
  Write(a_, "w", Bytes(0, 10));
  Write(b_, "enqueued before the host waited", Bytes(20, 30));
  HostWaits(a_);
  Write(c_, "w", Bytes(0, 10));
  checker_.OnHostAccess("print", {Bytes(0, 5)}, {});
  EXPECT_EQ(Races(), Strings{Message("print on host", "w on c", Bytes(0, 5))});
}

TEST_F(StreamCheckerTest, HostWritesBeforeItEnqueues) {
  checker_.OnHostAccess("fill", {}, {Bytes(0, 10)});
  Read(a_, "r", Bytes(0, 10));
  EXPECT_EQ(Races(), Strings());
  checker_.OnHostAccess("peek", {Bytes(0, 10)}, {});  // Two reads.
  EXPECT_EQ(Races(), Strings());
  checker_.OnHostAccess("refill", {}, {Bytes(5, 20)});
  EXPECT_EQ(Races(), Strings{Message("refill on host", "r on a", Bytes(5, 10))});
}

TEST_F(StreamCheckerTest, FreeIsAUseByTheHostAndForgets) {
  Read(a_, "r", Bytes(0, 10));
  checker_.OnFree(Bytes(0, 100));
  EXPECT_EQ(Races(), Strings{Message("free on host", "r on a", Bytes(0, 10))});
  EXPECT_EQ(checker_.segments(), 0u);
  Write(b_, "another's memory now", Bytes(0, 10));
  EXPECT_EQ(Races(), Strings());
}

TEST_F(StreamCheckerTest, FailedEventSpeaksForItsOwnStreamOnly) {
  Write(a_, "wa", Bytes(0, 10));
  Write(b_, "wb", Bytes(20, 30));
  Order(a_, b_);
  checker_.OnHostWaitFailed(b_, checker_.OnRecord(b_));
  checker_.OnFree(Bytes(20, 30));
  EXPECT_EQ(Races(), Strings());
  checker_.OnFree(Bytes(0, 10));
  EXPECT_EQ(Races(), Strings{Message("free on host", "wa on a", Bytes(0, 10))});
}

TEST_F(StreamCheckerTest, FailedEventOfAnUnusedStreamSaysNothing) {
  checker_.OnHostWaitFailed(c_, checker_.OnRecord(c_));
  Write(a_, "w", Bytes(0, 10));
  checker_.OnStreamEnd(c_);
  checker_.OnFree(Bytes(0, 10));
  EXPECT_EQ(Races().size(), 1u);
}

TEST_F(StreamCheckerTest, EndedStreamIsDone) {
  Write(a_, "w", Bytes(0, 10));
  checker_.OnStreamEnd(a_);
  checker_.OnFree(Bytes(0, 10));
  EXPECT_EQ(Races(), Strings());
}

TEST_F(StreamCheckerTest, PartialOverlapsKeepTheirOwnHistory) {
  Write(a_, "left", Bytes(0, 50));
  Write(b_, "right", Bytes(50, 100));
  Read(c_, "middle", Bytes(40, 60));
  EXPECT_EQ(Races(), (Strings{Message("middle on c", "left on a", Bytes(40, 50)),
                              Message("middle on c", "right on b", Bytes(50, 60))}));
  Order(a_, c_);
  Write(c_, "w", Bytes(10, 40));
  EXPECT_EQ(Races(), Strings());
  Read(b_, "r", Bytes(0, 45));
  EXPECT_EQ(Races(), (Strings{Message("r on b", "left on a", Bytes(0, 10)),
                              Message("r on b", "w on c", Bytes(10, 40)),
                              Message("r on b", "left on a", Bytes(40, 45))}));
}

TEST_F(StreamCheckerTest, WriteMergesWhatReadsHaveSplit) {
  Write(a_, "w", Bytes(0, 1000));
  EXPECT_EQ(checker_.segments(), 1u);
  for (uintptr_t i = 0; i < 100; ++i) Read(a_, "r", Bytes(10 * i, 10 * i + 5));
  EXPECT_EQ(checker_.segments(), 200u);
  Write(a_, "w", Bytes(3, 998));  // Over the middle of the first and of the last.
  EXPECT_EQ(checker_.segments(), 3u);
  Write(a_, "w", Bytes(0, 1000));
  EXPECT_EQ(checker_.segments(), 1u);
}

TEST_F(StreamCheckerTest, ReadOverGapsAndUses) {
  Write(a_, "w", Bytes(10, 20));
  Write(a_, "w", Bytes(30, 40));
  Read(b_, "r", Bytes(0, 50));
  EXPECT_EQ(Races(), (Strings{Message("r on b", "w on a", Bytes(10, 20)),
                              Message("r on b", "w on a", Bytes(30, 40))}));
  Write(c_, "w", Bytes(0, 5));  // The gaps were read, too.
  EXPECT_EQ(Races(), Strings{Message("w on c", "r on b", Bytes(0, 5))});
}

TEST_F(StreamCheckerTest, MapDoesNotGrowOverRepeatedSteps) {
  const auto step = [&] {
    for (uintptr_t unit = 0; unit < 8; ++unit) {
      const uintptr_t slot = 1000 + 1000 * (unit % 2), shard = 100000 + 300 * unit;
      Order(b_, a_);
      checker_.OnOperation(a_, "gather", {Bytes(shard, shard + 300)}, {Bytes(slot, slot + 900)});
      Order(a_, b_);
      for (uintptr_t p = 0; p < 9; ++p) {
        checker_.OnOperation(b_, "matmul", {Bytes(slot + 100 * p, slot + 100 * p + 100)},
                             {Bytes(5000 + 10 * p, 5010 + 10 * p)});
      }
    }
    Order(b_, c_);
    checker_.OnOperation(c_, "step", {}, {Bytes(100000, 100000 + 300 * 8)});
    Order(c_, a_);
    const VectorClock end = checker_.OnRecord(c_);
    checker_.OnHostWait(end);
    checker_.OnHostAccess("loss", {Bytes(5000, 5004)}, {});
    const Range activation = Bytes(900000, 900100);
    Write(b_, "activation", activation);
    HostWaits(b_);
    checker_.OnFree(activation);
  };
  for (int i = 0; i < 3; ++i) step();
  const size_t after_three = checker_.segments();
  for (int i = 0; i < 1000; ++i) step();
  EXPECT_EQ(checker_.segments(), after_three);
  EXPECT_LT(after_three, 100u);
  EXPECT_EQ(Races(), Strings());
  EXPECT_EQ(checker_.races(), 0);
}

TEST(StreamCheckerDeathTest, ByDefaultARaceEndsTheProgram) {
  StreamChecker checker;
  const int a = checker.AddStream("a"), b = checker.AddStream("b");
  checker.OnOperation(a, "gather", {}, {Bytes(0, 8)});
  EXPECT_DEATH(checker.OnOperation(b, "matmul", {Bytes(0, 8)}, {}),
               "stream checker: matmul on b is not ordered after gather on a: 8 bytes at 0x0");
}

}  // namespace
}  // namespace fsdp
