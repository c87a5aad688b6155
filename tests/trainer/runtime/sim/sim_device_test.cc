#include "trainer/runtime/sim/sim_device.h"

#include <gtest/gtest.h>

#include "tests/trainer/runtime/stream_suite.h"
#include "trainer/runtime/cpu/cpu_device.h"

namespace fsdp {
namespace {

SimModel SecondsAFlop() {
  SimModel model;
  model.s_per_flop = 1;
  model.capacity_bytes = int64_t{1} << 30;
  return model;
}

const auto kDevices = ::testing::Values(
    DeviceCase{"sim",
               [](std::shared_ptr<StreamChecker> checker) {
                 return std::make_unique<SimDevice>(SecondsAFlop(), std::move(checker));
               },
               int64_t{1} << 30});  // All of it, and some is in use.

INSTANTIATE_TEST_SUITE_P(Devices, StreamSuite, kDevices, DeviceName);
INSTANTIATE_TEST_SUITE_P(Devices, CheckedStreamSuite, kDevices, DeviceName);
INSTANTIATE_TEST_SUITE_P(Devices, BufferSuite, kDevices, DeviceName);

// All numbers below are sums of powers of two: exact.
double End(Stream& stream) {
  const EventPtr event = stream.RecordTime();
  event->Synchronize();
  return event->Time();
}

double Seconds(const SimModel& model, const Cost& cost) {
  SimDevice device(model);
  const auto stream = device.CreateStream("s");
  Operation operation;
  operation.costs = {cost};
  stream->Enqueue(operation);
  return End(*stream);
}

TEST(SimDevice, PricesTheLargerOfComputeAndMemoryPlusTheLink) {
  SimModel model;
  model.s_per_flop = 0.5;
  model.s_per_byte = 2;
  model.s_per_link_byte = 4;
  model.s_per_link_message = 16;
  Cost cost;
  EXPECT_EQ(Seconds(model, cost), 0);
  cost.flops = 100;
  EXPECT_EQ(Seconds(model, cost), 50);
  cost.bytes_read = 10;
  EXPECT_EQ(Seconds(model, cost), 50);  // 20 s of memory hide behind 50 s of compute.
  cost.bytes_written = 20;
  EXPECT_EQ(Seconds(model, cost), 60);  // 60 s of memory do not.
  cost.link_bytes = 8;
  EXPECT_EQ(Seconds(model, cost), 60 + 32);
  cost.link_messages = 3;
  EXPECT_EQ(Seconds(model, cost), 60 + 32 + 48);
}

TEST(SimDevice, EventsMayPassOnlyWhenTheHostHasWaited) {
  SimDevice device({.ready_when_waited_for = true});
  const auto a = device.CreateStream("a"), b = device.CreateStream("b");
  const EventPtr first = a->Record();
  b->Wait(first);
  const EventPtr behind = b->Record(), last = a->Record();
  EXPECT_FALSE(first->Ready() || behind->Ready() || last->Ready());
  behind->Synchronize();
  EXPECT_TRUE(first->Ready() && behind->Ready());
  EXPECT_FALSE(last->Ready());
  const EventPtr again = b->Record();
  EXPECT_FALSE(again->Ready());
  a->Wait(again);
  a->Synchronize();
  EXPECT_TRUE(last->Ready() && again->Ready());
  // Work takes its time all the same.
  SimDevice timed({.s_per_flop = 2, .ready_when_waited_for = true});
  const auto stream = timed.CreateStream("s");
  Operation operation;
  operation.costs = {Cost{.flops = 8}};
  stream->Enqueue(operation);
  EXPECT_EQ(End(*stream), 16);
}

TEST(SimDevice, KernelsOfAnOperationFollowOneAnother) {
  SimModel model;
  model.s_per_flop = 0.5;
  model.s_per_byte = 2;
  SimDevice device(model);
  const auto stream = device.CreateStream("s");
  std::vector<std::string> seen;
  device.Observe([&](const Operation& operation, const Stream& on) {
    EXPECT_EQ(&on, stream.get());
    seen.push_back(operation.name);
  });
  Operation operation;
  operation.name = "two";
  const Product product{.m = 2, .n = 3, .k = 4, .count = 5};
  operation.costs = {{product, {.flops = 10, .bytes_read = 1}}, Cost{.bytes_written = 7}};
  EXPECT_EQ(Sum(operation.costs).flops, 2 * 2 * 3 * 4 * 5 + 10);
  stream->Enqueue(operation);
  EXPECT_EQ(End(*stream), 125 + 14);  // Not the larger of all FLOPs and all bytes.
  EXPECT_EQ(seen, std::vector<std::string>{"two"});
}

TEST(SimDevice, WorkIsForTheDeviceThatItPlansFor) {
  EXPECT_EQ(SimDevice().kernel_type(), DeviceType::kCpu);
  EXPECT_EQ(SimDevice({}, nullptr, DeviceType::kCpu).kernel_type(), DeviceType::kCpu);
  EXPECT_EQ(SimDevice().type(), DeviceType::kSim);
}

TEST(SimDevice, HostTimeIsPartOfTheTimeline) {
  SimModel model = SecondsAFlop();
  model.s_per_enqueue = 0.25;
  SimDevice device(model);
  const auto stream = device.CreateStream("s");
  stream->Enqueue(Priced("x"));
  EXPECT_EQ(device.Now(), 0.25);  // The host paid for the call alone.
  const EventPtr first = stream->RecordTime();
  stream->Enqueue(Priced("x"));
  const EventPtr second = stream->RecordTime();
  EXPECT_FALSE(first->Ready());
  second->Synchronize();
  EXPECT_EQ(first->Time(), 1.25);
  EXPECT_EQ(second->Time(), 2.25);  // The host was ahead: back to back.
  EXPECT_EQ(device.Now(), 2.25);
  EXPECT_TRUE(first->Ready());
  stream->Enqueue(Priced("x"));
  EXPECT_EQ(device.Now(), 2.5);
  first->Synchronize();  // A passed event moves no time, least of all backwards.
  EXPECT_EQ(device.Now(), 2.5);
  EXPECT_EQ(End(*stream), 3.5);  // The device had to wait for the host.
}

// The time of every call that the host makes, and of memory that it takes by the byte.
TEST(SimDevice, EveryCallOfTheHostHasItsTime) {
  SimDevice device({.s_per_enqueue = 1,
                    .s_per_event = 2,
                    .s_per_wait = 4,
                    .s_per_block = 8,
                    .s_per_segment = 16,
                    .s_per_segment_byte = 0.5});
  const auto a = device.CreateStream("a"), b = device.CreateStream("b");
  device.StartTraceWithHost();
  a->Enqueue(Priced("x"));
  EXPECT_EQ(device.Now(), 1);
  const EventPtr event = a->Record();
  EXPECT_EQ(device.Now(), 3);
  b->Wait(event);
  EXPECT_EQ(device.Now(), 7);
  device.CountBlock();
  EXPECT_EQ(device.Now(), 15);
  {
    const Buffer segment = device.Allocate(10);
    EXPECT_EQ(device.Now(), 36);
    const Buffer pinned = device.Allocate(10, MemoryPlace::kPinned);
  }
  EXPECT_EQ(device.Now(), 57);
  const std::vector<Span> spans = device.TakeTrace();
  ASSERT_EQ(spans.size(), 4u);  // x, the two of memory, b's wait.
  EXPECT_EQ(spans[2].name, "memory");
  EXPECT_EQ(spans[2].stream, "host");
  EXPECT_EQ(spans[2].begin_s, 15);
  EXPECT_EQ(spans[2].end_s, 36);
}

// Events that the host looks at have passed by its own time, not by that of the work that is
// queued.
TEST(SimDevice, TheHostSeesWhatHasPassedByItsOwnTime) {
  SimModel model = SecondsAFlop();
  model.s_per_enqueue = 0.5;
  SimDevice device(model);
  const auto stream = device.CreateStream("s"), other = device.CreateStream("t");
  stream->Enqueue(Priced("x"));  // From 0.5 to 1.5.
  const EventPtr event = stream->Record();
  EXPECT_FALSE(event->Ready());
  other->Enqueue(Priced("y"));
  EXPECT_FALSE(event->Ready());
  other->Enqueue(Priced("y"));
  EXPECT_EQ(device.Now(), 1.5);
  EXPECT_TRUE(event->Ready());
}

TEST(SimDevice, OverlapIsPriced) {
  SimDevice device(SecondsAFlop());
  const auto compute = device.CreateStream("compute"), comm = device.CreateStream("comm");
  device.StartTrace();
  comm->Enqueue(Priced("gather 0"));
  compute->Wait(comm->Record());
  comm->Enqueue(Priced("gather 1"));
  compute->Enqueue(Priced("unit 0"));
  compute->Wait(comm->Record());
  compute->Enqueue(Priced("unit 1"));
  compute->Synchronize();
  EXPECT_EQ(device.Now(), 3);  // 0 | 1 and unit 0 | unit 1.
  const std::vector<Span> spans = device.TakeTrace();
  ASSERT_EQ(spans.size(), 6u);
  const auto expect = [&](int i, const char* name, double begin, double end) {
    EXPECT_EQ(spans[i].name, name);
    EXPECT_EQ(spans[i].begin_s, begin);
    EXPECT_EQ(spans[i].end_s, end);
  };
  expect(0, "gather 0", 0, 1);
  expect(1, "gather 1", 1, 2);
  expect(2, "wait", 0, 1);
  expect(3, "unit 0", 1, 2);
  expect(4, "wait", 2, 2);
  expect(5, "unit 1", 2, 3);
}

TEST(SimDevice, DestroyedStreamTookItsTime) {
  SimDevice device(SecondsAFlop());
  device.CreateStream("s")->Enqueue(Priced("x"));
  EXPECT_EQ(device.Now(), 1);
}

TEST(SimDevice, ZeroModelIsFreeAndOrdersStill) {
  const auto races = std::make_shared<int>(0);
  SimDevice device({},
                   std::make_shared<StreamChecker>([=](const StreamChecker::Race&) { ++*races; }));
  const auto a = device.CreateStream("a"), b = device.CreateStream("b");
  const Buffer buffer = device.Allocate(int64_t{1} << 40);  // More than any machine here has.
  Operation write = Priced("write");
  write.writes = {Range(buffer.data(), buffer.bytes())};
  a->Enqueue(write);
  EXPECT_TRUE(a->Record()->Ready());
  EXPECT_EQ(device.Now(), 0);
  b->Enqueue(write);  // Free in time, and a race all the same.
  EXPECT_EQ(*races, 1);
  a->Synchronize();
  b->Synchronize();
}

TEST(SimDevice, KernelsAreNeverCalled) {
  SimDevice device;
  const auto stream = device.CreateStream("s");
  bool called = false;
  stream->Enqueue(Priced("x", [&](ThreadPool&) { called = true; }));
  stream->Synchronize();
  EXPECT_FALSE(called);
}

TEST(SimDevice, CapacityIsEnforcedAndPeakKept) {
  SimModel model;
  model.capacity_bytes = 1000;
  SimDevice device(model);
  Buffer a = device.Allocate(600);
  EXPECT_THROW((void)device.Allocate(401), MemoryError);
  {
    const Buffer b = device.Allocate(400);
    EXPECT_EQ(device.allocated_bytes(), 1000);
    EXPECT_THROW((void)device.Allocate(1), MemoryError);
  }
  EXPECT_EQ(device.allocated_bytes(), 600);
  a = Buffer();
  EXPECT_EQ(device.allocated_bytes(), 0);
  EXPECT_EQ(device.peak_bytes(), 1000);
  EXPECT_EQ(device.Allocate(1000).bytes(), 1000);
  EXPECT_THROW((void)device.Allocate(std::numeric_limits<int64_t>::max()), MemoryError);
}

TEST(SimDevice, SimulatedAndRealTimeDoNotMix) {
  SimDevice sim;
  CpuDevice cpu;
  const auto simulated = sim.CreateStream("simulated"), real = cpu.CreateStream("real");
  EXPECT_THROW(simulated->Wait(real->Record()), std::invalid_argument);
  EXPECT_THROW(real->Wait(simulated->Record()), std::invalid_argument);
  real->Synchronize();  // Nothing was enqueued.
}

}  // namespace
}  // namespace fsdp
