// The promises themselves: see stream_suite.h.
#include "tests/trainer/runtime/stream_suite.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace fsdp {

// Each device has its own; a simulated one runs no kernels, so none fails.
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(StreamSuite);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(CheckedStreamSuite);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(BufferSuite);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(StreamFailureSuite);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(DroppingSuite);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(GoingOnSuite);

TEST_P(StreamSuite, KnowsItsNameAndDevice) {
  const auto device = Make();
  const auto stream = device->CreateStream("compute", 2);
  EXPECT_EQ(stream->name(), "compute");
  EXPECT_EQ(&stream->device(), device.get());
}

TEST_P(StreamSuite, RunsInOrder) {
  static constexpr const char* kNames[] = {"a", "b", "c", "d", "e"};
  const auto device = Make();
  const auto stream = device->CreateStream("s");
  device->StartTrace();
  for (int i = 0; i < 100; ++i) stream->Enqueue(Priced(kNames[i % 5]));
  stream->Synchronize();
  const std::vector<Span> spans = device->TakeTrace();
  ASSERT_EQ(spans.size(), 100u);
  for (size_t i = 0; i < spans.size(); ++i) {
    EXPECT_EQ(spans[i].name, kNames[i % 5]);
    EXPECT_EQ(spans[i].stream, "s");
    EXPECT_LE(spans[i].begin_s, spans[i].end_s);
    if (i > 0) {
      EXPECT_LE(spans[i - 1].end_s, spans[i].begin_s);
    }
  }
}

// A tag goes with what is enqueued after it; bytes are a collective's over its links, and all that
// another operation reads and writes.
TEST_P(StreamSuite, SpansCarryTagsAndBytes) {
  const auto device = Make();
  const auto stream = device->CreateStream("s"), other = device->CreateStream("t");
  device->StartTrace();
  const auto enqueue = [&](const char* name, std::vector<KernelCost> costs) {
    Operation operation = Priced(name);
    operation.costs = std::move(costs);
    stream->Enqueue(std::move(operation));
  };
  enqueue("before", {});
  stream->SetTag(7);
  enqueue("kernels", {Cost{.bytes_read = 20, .bytes_written = 3}, Cost{.bytes_read = 100}});
  stream->SetTag(8);
  enqueue("link", {{KernelKind::kLink, {.bytes_read = 9, .bytes_written = 9, .link_bytes = 40}}});
  stream->Wait(other->Record());
  stream->Synchronize();
  const std::vector<Span> spans = device->TakeTrace();
  const auto expect = [&](const char* name, uint64_t tag, int64_t bytes) {
    EXPECT_EQ(Find(spans, name).tag, tag) << name;
    EXPECT_EQ(Find(spans, name).bytes, bytes) << name;
  };
  expect("before", 0, 0);
  expect("kernels", 7, 123);
  expect("link", 8, 40);
  expect("wait", 8, 0);
}

TEST_P(StreamSuite, HostRunsAhead) {
  const auto device = Make();
  const auto stream = device->CreateStream("s");
  Gate gate;
  const EventPtr before = stream->RecordTime();
  before->Synchronize();
  gate.Enqueue(*stream);
  const EventPtr after = stream->RecordTime();
  for (int i = 0; i < 200; ++i) stream->Enqueue(Priced("more"));
  LetWorkersRun();
  EXPECT_TRUE(before->Ready());
  EXPECT_FALSE(after->Ready());
  gate.Open();
  after->Synchronize();
  EXPECT_TRUE(after->Ready());
  EXPECT_LE(before->Time(), after->Time());
  stream->Synchronize();
}

TEST_P(StreamSuite, EventOfAnIdleStreamPasses) {
  const auto device = Make();
  const auto stream = device->CreateStream("s");
  stream->Record()->Synchronize();
  const EventPtr event = stream->Record();
  event->Synchronize();
  event->Synchronize();  // Again does no harm.
  EXPECT_TRUE(event->Ready());
}

TEST_P(StreamSuite, StreamsAreIndependent) {
  const auto device = Make();
  const auto held = device->CreateStream("held"), free = device->CreateStream("free");
  Gate gate;
  gate.Enqueue(*held);
  gate.Enqueue(*held);  // On sim: twice as long as what `free` has to do.
  const EventPtr event = held->Record();
  free->Enqueue(Priced("x"));
  free->Synchronize();
  EXPECT_FALSE(event->Ready());
  gate.Open();
  held->Synchronize();
}

TEST_P(StreamSuite, WaitOrdersTwoStreams) {
  const auto device = Make();
  const auto a = device->CreateStream("a"), b = device->CreateStream("b");
  Gate gate;
  device->StartTrace();
  gate.Enqueue(*a);
  a->Enqueue(Priced("first"));
  const EventPtr event = a->RecordTime();
  a->Enqueue(Priced("later"));
  b->Wait(event);
  b->Enqueue(Priced("second"));
  const EventPtr end = b->RecordTime();
  LetWorkersRun();
  EXPECT_FALSE(end->Ready());
  gate.Open();
  end->Synchronize();
  a->Synchronize();
  const std::vector<Span> spans = device->TakeTrace();
  EXPECT_LE(Find(spans, "first").end_s, event->Time());
  EXPECT_LE(event->Time(), Find(spans, "second").begin_s);
  EXPECT_LE(event->Time(), Find(spans, "wait").end_s);
  EXPECT_LE(Find(spans, "second").end_s, end->Time());
}

TEST_P(StreamSuite, WaitOrdersAcrossDevices) {
  const auto one = Make(), other = Make();
  const auto a = one->CreateStream("a"), b = other->CreateStream("b");
  Gate gate;
  gate.Enqueue(*a);
  const EventPtr event = a->RecordTime();
  b->Wait(event);
  b->Enqueue(Priced("second"));
  const EventPtr end = b->RecordTime();
  LetWorkersRun();
  EXPECT_FALSE(end->Ready());
  gate.Open();
  end->Synchronize();
  EXPECT_LE(event->Time(), end->Time());
  a->Synchronize();
}

TEST_P(StreamSuite, OrderIsTransitive) {
  const auto device = Make();
  const auto a = device->CreateStream("a"), b = device->CreateStream("b"),
             c = device->CreateStream("c");
  Gate gate;
  gate.Enqueue(*a);
  const EventPtr first = a->Record();
  b->Wait(first);
  c->Wait(b->Record());
  const EventPtr last = c->Record();
  LetWorkersRun();
  EXPECT_FALSE(last->Ready());
  gate.Open();
  last->Synchronize();
  EXPECT_TRUE(first->Ready());
}

TEST_P(StreamSuite, WaitForPassedOrNullEventIsNothing) {
  const auto device = Make();
  const auto a = device->CreateStream("a"), b = device->CreateStream("b");
  const EventPtr event = a->Record();
  a->Synchronize();
  b->Wait(event);
  b->Wait(nullptr);
  b->Synchronize();
}

TEST_P(StreamSuite, WaitForOwnEventIsNoDeadlock) {
  const auto device = Make();
  const auto stream = device->CreateStream("s");
  stream->Enqueue(Priced("x"));
  stream->Wait(stream->Record());
  stream->Synchronize();
}

TEST_P(StreamSuite, DestructorDrains) {
  const auto device = Make();
  EventPtr event;
  {
    const auto stream = device->CreateStream("s");
    for (int i = 0; i < 100; ++i) stream->Enqueue(Priced("x"));
    event = stream->Record();
  }
  EXPECT_TRUE(event->Ready());
}

TEST_P(StreamSuite, EventOutlivesItsStreamAndDevice) {
  auto device = Make();
  auto stream = device->CreateStream("s");
  stream->Enqueue(Priced("x"));
  const EventPtr event = stream->Record();
  stream.reset();
  device.reset();
  EXPECT_TRUE(event->Ready());
  event->Synchronize();
}

TEST_P(StreamSuite, TimeGoesForward) {
  const auto device = Make();
  const auto stream = device->CreateStream("s");
  const double start = device->Now();
  stream->Enqueue(Priced("x"));
  const EventPtr event = stream->RecordTime();
  event->Synchronize();
  EXPECT_LE(start, event->Time());
  EXPECT_LE(event->Time(), device->Now());
}

TEST_P(StreamSuite, TraceHoldsEachStreamInOrderAndNothingElse) {
  const auto device = Make();
  const auto b = device->CreateStream("b");
  auto a = device->CreateStream("a");
  b->Enqueue(Priced("untraced"));
  b->Synchronize();
  device->StartTrace();
  b->Enqueue(Priced("b0"));
  a->Enqueue(Priced("a0"));
  b->Wait(a->Record());
  a->Enqueue(Priced("a1"));
  b->Enqueue(Priced("b1"));
  a.reset();  // Its spans stay.
  b->Synchronize();
  std::vector<std::string> names;
  for (const Span& span : device->TakeTrace()) names.push_back(span.stream + ":" + span.name);
  EXPECT_EQ(names, (std::vector<std::string>{"a:a0", "a:a1", "b:b0", "b:wait", "b:b1"}));
  b->Enqueue(Priced("untraced"));
  b->Synchronize();
  device->StartTrace();
  EXPECT_TRUE(device->TakeTrace().empty());
}

TEST_P(CheckedStreamSuite, MissingWaitIsReportedWithBothNames) {
  const auto device = MakeChecked();
  const auto a = device->CreateStream("a"), b = device->CreateStream("b");
  const Buffer buffer = device->Allocate(64);
  a->Enqueue(Write(buffer, "gather"));
  b->Enqueue(Write(buffer, "clear"));
  a->Synchronize();
  b->Synchronize();
  ASSERT_EQ(races_.size(), 1u);
  EXPECT_NE(races_[0].find("clear on b is not ordered after gather on a: 64 bytes"),
            std::string::npos)
      << races_[0];
}

TEST_P(CheckedStreamSuite, WaitAndHostWaitAreOrder) {
  const auto device = MakeChecked();
  const auto a = device->CreateStream("a"), b = device->CreateStream("b");
  const Buffer buffer = device->Allocate(64);
  a->Enqueue(Write(buffer));
  b->Wait(a->Record());
  b->Enqueue(Write(buffer));
  b->Synchronize();
  a->Enqueue(Write(buffer));
  a->Synchronize();
  EXPECT_EQ(races_, std::vector<std::string>());
}

TEST_P(CheckedStreamSuite, FreeingMemoryInUseIsReported) {
  const auto device = MakeChecked();
  const auto stream = device->CreateStream("s");
  {  // No gate: to free a GPU's memory waits for all that it has to do.
    const Buffer buffer = device->Allocate(64);
    stream->Enqueue(Write(buffer));
  }
  stream->Synchronize();
  ASSERT_EQ(races_.size(), 1u);
  EXPECT_NE(races_[0].find("free on host is not ordered after write on s"), std::string::npos);
}

TEST_P(CheckedStreamSuite, DestroyedStreamUsesNoMemory) {
  const auto device = MakeChecked();
  {
    const Buffer buffer = device->Allocate(64);
    const auto stream = device->CreateStream("s");
    stream->Enqueue(Write(buffer));
  }
  EXPECT_EQ(races_, std::vector<std::string>());
}

TEST_P(CheckedStreamSuite, StreamsOfTwoCheckersCannotWaitForEachOther) {
  const auto one = MakeChecked(), other = MakeChecked();
  const auto a = one->CreateStream("a"), b = other->CreateStream("b");
  const EventPtr event = a->Record();
  EXPECT_DEATH(b->Wait(event), "share a checker");
}

TEST_P(CheckedStreamSuite, TwoDevicesWithOneCheckerDoNotShareAddresses) {
  const auto one = MakeChecked();
  const auto other = Make(one->checker());
  const auto a = one->CreateStream("a"), b = other->CreateStream("b");
  const Buffer x = one->Allocate(64), y = other->Allocate(64);
  a->Enqueue(Write(x));
  b->Enqueue(Write(y));
  b->Wait(a->Record());
  b->Enqueue(Write(x));
  b->Synchronize();
  EXPECT_EQ(races_, std::vector<std::string>());
}

TEST_P(BufferSuite, IsAlignedDisjointAndOfItsSize) {
  const auto device = Make();
  std::vector<Buffer> buffers;
  for (const int64_t bytes : {1, 4095, 4096, 4097, 1 << 20, (4 << 20) + 1}) {
    buffers.push_back(device->Allocate(bytes));
    EXPECT_EQ(buffers.back().bytes(), bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffers.back().data()) % 4096, 0u);
  }
  for (const Buffer& a : buffers) {
    for (const Buffer& b : buffers) {
      const bool apart = a.data() + a.bytes() <= b.data() || b.data() + b.bytes() <= a.data();
      EXPECT_TRUE(apart || &a == &b);
    }
  }
}

TEST_P(BufferSuite, OfNothingIsNothing) {
  const auto device = Make();
  const Buffer buffer = device->Allocate(0);
  EXPECT_EQ(buffer.bytes(), 0);
  EXPECT_EQ(buffer.data(), nullptr);
  EXPECT_EQ(buffer.As(DType::kFloat32, {0, 3}).NumElements(), 0);
}

TEST_P(BufferSuite, MovesAndFreesOnce) {
  int frees = 0;
  // A free is a race here, because the write before it is never waited for: so frees are counted.
  const auto device =
      Make(std::make_shared<StreamChecker>([&](const StreamChecker::Race&) { ++frees; }));
  const auto stream = device->CreateStream("s");
  const auto used = [&] {
    Buffer buffer = device->Allocate(64);
    Operation write = Priced("write");
    write.writes = {Range(buffer.data(), 64)};
    stream->Enqueue(write);
    return buffer;
  };
  {
    Buffer a = used(), b = used();
    std::byte* const data = a.data();
    Buffer c(std::move(a));
    EXPECT_EQ(c.data(), data);
    EXPECT_EQ(a.data(), nullptr);  // NOLINT: the state after a move is a promise.
    EXPECT_EQ(a.bytes(), 0);
    EXPECT_EQ(frees, 0);
    b = std::move(c);
    EXPECT_EQ(b.data(), data);
    EXPECT_EQ(frees, 1);  // Memory that b held is free now, not when c dies.
    Buffer& same = b;
    b = std::move(same);
    EXPECT_EQ(b.data(), data);
    EXPECT_EQ(frees, 1);
  }
  EXPECT_EQ(frees, 2);
}

TEST_P(BufferSuite, ViewsStayInside) {
  const auto device = Make();
  const Buffer buffer = device->Allocate(96);
  const View view = buffer.As(DType::kBFloat16, {3, 16});
  EXPECT_EQ(view.data, buffer.data());
  EXPECT_EQ(view.dtype, DType::kBFloat16);
  EXPECT_EQ(view.bytes(), 96);
  EXPECT_EQ(buffer.As(DType::kInt64, {2}, 80).data, buffer.data() + 80);
  EXPECT_DEATH(buffer.As(DType::kFloat32, {25}), "broken invariant");
  EXPECT_DEATH(buffer.As(DType::kInt64, {2}, 81), "broken invariant");
  EXPECT_DEATH(buffer.As(DType::kInt64, {2}, -8), "broken invariant");
}

TEST_P(BufferSuite, FailedAllocationThrowsAndChangesNothing) {
  const auto device = Make();
  const Buffer before = device->Allocate(4096);
  try {
    (void)device->Allocate(GetParam().too_many_bytes);
    FAIL() << "granted";
  } catch (const MemoryError& error) {
    EXPECT_EQ(error.code(), ExitCode::kMemory);
    EXPECT_NE(std::string(error.what()).find(std::to_string(GetParam().too_many_bytes)),
              std::string::npos)
        << error.what();
  }
  EXPECT_EQ(device->Allocate(4096).bytes(), 4096);
  EXPECT_DEATH((void)device->Allocate(-1), "broken invariant");
}

TEST_P(StreamFailureSuite, DropsWhatIsQueuedBehind) {
  const auto device = Make();
  const auto stream = device->CreateStream("s");
  const auto captured = std::make_shared<int>(0);
  stream->Enqueue(Priced("before", Count()));
  const EventPtr before = stream->Record();
  Gate gate;
  gate.Enqueue(*stream);
  stream->Enqueue(Priced("fail", Fail));
  for (int i = 0; i < 10; ++i) {
    stream->Enqueue(Priced("after", [this, captured](ThreadPool&) { ++ran_; }));
  }
  const EventPtr after = stream->Record();
  gate.Open();
  ExpectFailed(after);
  before->Synchronize();  // Work before the failure stays done.
  EXPECT_EQ(ran_, 1);
  EXPECT_EQ(captured.use_count(), 1);  // Dropped, not kept.
}

TEST_P(StreamFailureSuite, FailedStreamStaysFailed) {
  const auto device = Make();
  const auto stream = device->CreateStream("s");
  stream->Enqueue(Priced("fail", Fail));
  EXPECT_THROW(stream->Synchronize(), CommError);
  for (int i = 0; i < 3; ++i) {
    stream->Enqueue(Priced("after", Count()));
    stream->Enqueue(Priced("again", [](ThreadPool&) { throw DeviceError("another"); }));
    ExpectFailed(stream->Record());
  }
  EXPECT_EQ(ran_, 0);
}

TEST_P(StreamFailureSuite, FailureIsTransitive) {
  const auto device = Make(), other = Make();
  const auto a = device->CreateStream("a"), b = device->CreateStream("b"),
             c = other->CreateStream("c"), d = device->CreateStream("d");
  Gate gate;
  gate.Enqueue(*a);
  const EventPtr good = a->Record();
  a->Enqueue(Priced("fail", Fail));
  b->Wait(a->Record());
  b->Enqueue(Priced("b", Count()));
  c->Wait(b->Record());
  c->Enqueue(Priced("c", Count()));
  d->Wait(good);  // An event from before the failure.
  d->Enqueue(Priced("d", Count()));
  gate.Open();
  for (Stream* stream : {a.get(), b.get(), c.get()}) ExpectFailed(stream->Record());
  d->Synchronize();
  EXPECT_EQ(ran_, 1);
}

TEST_P(StreamFailureSuite, EventsOfTheHealthyPartStayGood) {
  const auto device = Make();
  const auto a = device->CreateStream("a"), b = device->CreateStream("b");
  b->Enqueue(Priced("b", Count()));
  const EventPtr before_the_wait = b->Record();
  a->Enqueue(Priced("fail", Fail));
  const EventPtr failed = a->Record();
  ExpectFailed(failed);
  b->Wait(failed);  // Also when it has failed long ago.
  b->Enqueue(Priced("b", Count()));
  ExpectFailed(b->Record());
  before_the_wait->Synchronize();
  EXPECT_EQ(ran_, 1);
}

TEST_P(StreamFailureSuite, FirstErrorStays) {
  const auto device = Make();
  const auto a = device->CreateStream("a"), b = device->CreateStream("b");
  a->Enqueue(Priced("fail", Fail));
  b->Enqueue(Priced("fail", [](ThreadPool&) { throw CommError("b's own"); }));
  b->Wait(a->Record());
  ExpectFailed(b->Record(), "b's own");
  ExpectFailed(a->Record());
}

TEST_P(DroppingSuite, DroppedWaitDoesNotWait) {
  const auto device = Make();
  const auto held = device->CreateStream("held"), stream = device->CreateStream("s");
  Gate gate;
  gate.Enqueue(*held);
  stream->Enqueue(Priced("fail", Fail));
  stream->Wait(held->Record());
  ExpectFailed(stream->Record());  // While the gate is shut.
  gate.Open();
  held->Synchronize();
}

// Where waits cannot be dropped, what is behind the failure has waited for all that it was to wait
// for, and counts as failed only then.
TEST_P(GoingOnSuite, WaitThatIsNotDroppedWaits) {
  const auto device = Make();
  const auto held = device->CreateStream("held"), stream = device->CreateStream("s");
  Gate gate;
  gate.Enqueue(*held);
  stream->Enqueue(Priced("fail", Fail));
  const EventPtr failed = stream->Record();
  stream->Wait(held->Record());
  const EventPtr end = stream->Record();
  ExpectFailed(failed);  // While the gate is shut.
  LetWorkersRun();
  EXPECT_FALSE(end->Ready());
  gate.Open();
  ExpectFailed(end);
  held->Synchronize();
}

// Work in no order after a failure counts as good, whenever it runs; work behind it, by way of any
// streams, as failed.
TEST_P(StreamFailureSuite, OrderAloneSaysWhatHasFailed) {
  const auto device = Make();
  const auto a = device->CreateStream("a"), b = device->CreateStream("b"),
             c = device->CreateStream("c");
  b->Enqueue(Priced("b", Count()));
  const EventPtr before = b->Record();
  a->Wait(before);
  a->Enqueue(Priced("a", Count()));
  const EventPtr good = a->Record();
  a->Enqueue(Priced("fail", Fail));
  const EventPtr failed = a->Record();
  ExpectFailed(failed);
  b->Enqueue(Priced("b", Count()));  // Later, but not behind it.
  b->Wait(good);
  b->Synchronize();
  c->Wait(b->Record());
  c->Enqueue(Priced("c", Count()));
  c->Synchronize();
  EXPECT_EQ(ran_, 4);
  b->Wait(failed);
  c->Wait(b->Record());
  c->Enqueue(Priced("c", Count()));
  ExpectFailed(c->Record());
  EXPECT_EQ(ran_, 4);
  good->Synchronize();
  before->Synchronize();
}

TEST_P(StreamFailureSuite, CarriesWhateverWasThrown) {
  const auto device = Make();
  const auto stream = device->CreateStream("s");
  stream->Enqueue(Priced("fail", [](ThreadPool&) { throw 42; }));
  EXPECT_THROW(stream->Synchronize(), int);
}

TEST_P(StreamFailureSuite, ErrorOfAComputeThreadFailsTheStream) {
  const auto device = Make();
  const auto stream = device->CreateStream("s", 3);
  stream->Enqueue(Priced("fail", [](ThreadPool& pool) {
    pool.Run([](int t) {
      if (t == 2) throw CommError("rank 3 is gone");
    });
  }));
  ExpectFailed(stream->Record());
}

TEST_P(StreamFailureSuite, DestructorsOfFailedStreamsAreQuiet) {
  const auto device = Make();
  EventPtr event;
  {
    const auto a = device->CreateStream("a"), b = device->CreateStream("b");
    a->Enqueue(Priced("fail", Fail));
    b->Wait(a->Record());
    event = b->Record();
  }
  ExpectFailed(event);
}

TEST_P(DroppingSuite, MemoryCanBeFreedAfterDrainingEveryStream) {
  std::vector<std::string> races;
  const auto device = Make(std::make_shared<StreamChecker>(
      [&](const StreamChecker::Race& race) { races.push_back(race.ToString()); }));
  const auto a = device->CreateStream("a"), b = device->CreateStream("b");
  Gate gate;
  {
    const Buffer of_a = device->Allocate(64), of_b = device->Allocate(64);
    Operation write_a = Priced("write_a", Fail), write_b = Priced("write_b");
    write_a.writes = {Range(of_a.data(), 64)};
    write_b.writes = {Range(of_b.data(), 64)};
    a->Enqueue(write_a);
    gate.Enqueue(*b);
    b->Enqueue(write_b);
    a->Wait(b->Record());
    EXPECT_THROW(a->Synchronize(), CommError);
    // a's failed event says nothing of b, which still holds its buffer: a's wait was dropped.
  }
  ASSERT_EQ(races.size(), 1u);
  EXPECT_NE(races[0].find("free on host is not ordered after write_b on b"), std::string::npos);
  gate.Open();
  b->Synchronize();
}

}  // namespace fsdp
