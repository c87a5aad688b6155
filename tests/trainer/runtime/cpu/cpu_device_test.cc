#include "trainer/runtime/cpu/cpu_device.h"

#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <optional>
#include <set>
#include <thread>

#include "tests/trainer/runtime/stream_suite.h"
#include "trainer/core/errors.h"

namespace fsdp {
namespace {

DeviceCase Cpu(const char* name, bool spin) {
  return {name,
          [spin](std::shared_ptr<StreamChecker> checker) {
            return std::make_unique<CpuDevice>(CpuOptions{spin, std::move(checker)});
          },
          int64_t{1} << 60};
}
const auto kDevices = ::testing::Values(Cpu("cpu", false), Cpu("cpu_spinning", true));

INSTANTIATE_TEST_SUITE_P(Devices, StreamSuite, kDevices, DeviceName);
INSTANTIATE_TEST_SUITE_P(Devices, CheckedStreamSuite, kDevices, DeviceName);
INSTANTIATE_TEST_SUITE_P(Devices, BufferSuite, kDevices, DeviceName);
INSTANTIATE_TEST_SUITE_P(Devices, StreamFailureSuite, kDevices, DeviceName);
INSTANTIATE_TEST_SUITE_P(Devices, DroppingSuite, kDevices, DeviceName);

TEST(CpuDevice, EnqueueReturnsWhileTheKernelIsHeld) {
  CpuDevice device;
  const auto stream = device.CreateStream("s");
  Gate gate;
  std::atomic<int> ran{0};
  gate.Enqueue(*stream);
  for (int i = 0; i < 1000; ++i) stream->Enqueue(Priced("x", [&](ThreadPool&) { ++ran; }));
  EXPECT_EQ(ran, 0);  // The host is here and the first kernel is not done.
  gate.Open();
  stream->Synchronize();
  EXPECT_EQ(ran, 1000);
}

TEST(CpuDevice, KernelsRunOneAfterTheOtherOffTheHost) {
  CpuDevice device;
  const auto stream = device.CreateStream("s");
  std::vector<int> order;  // No lock: the stream is the order, and TSan would say if not.
  std::set<std::thread::id> threads;
  for (int i = 0; i < 500; ++i) {
    stream->Enqueue(Priced("x", [&, i](ThreadPool&) {
      order.push_back(i);
      threads.insert(std::this_thread::get_id());
    }));
  }
  stream->Synchronize();
  ASSERT_EQ(order.size(), 500u);
  for (int i = 0; i < 500; ++i) EXPECT_EQ(order[i], i);
  EXPECT_EQ(threads.size(), 1u);
  EXPECT_EQ(threads.count(std::this_thread::get_id()), 0u);
}

// Two streams hand a buffer to and fro: every value must have arrived, with no lock around it.
TEST(CpuDevice, EventsPublishMemory) {
  CpuDevice device;
  const auto a = device.CreateStream("a", 2), b = device.CreateStream("b", 2);
  const Buffer buffer = device.Allocate(1024 * sizeof(int));
  const View view = buffer.As(DType::kInt32, {1024});
  const View host = Host(view);
  const auto increment = [host](ThreadPool& pool) {
    pool.ParallelFor(1024, 64, [host](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) ++host.As<int32_t>()[i];
    });
  };
  for (int i = 0; i < 200; ++i) {
    a->Enqueue(Priced("a", increment));
    b->Wait(a->Record());
    b->Enqueue(Priced("b", increment));
    a->Wait(b->Record());
  }
  a->Synchronize();
  for (int i = 0; i < 1024; ++i) ASSERT_EQ(host.As<int32_t>()[i], 400);
}

TEST(CpuDevice, StreamHasTheThreadsItWasGiven) {
  CpuDevice device;
  for (int threads = 1; threads <= 4; ++threads) {
    const auto stream = device.CreateStream("s", threads);
    int size = 0;
    stream->Enqueue(Priced("x", [&](ThreadPool& pool) { size = pool.size(); }));
    stream->Synchronize();
    EXPECT_EQ(size, threads);
  }
}

TEST(CpuDevice, RefusesAnOperationWithoutAKernelForIt) {
  CpuDevice device;
  const auto stream = device.CreateStream("s");
  try {
    stream->Enqueue({"gpu_only", {}, {}, {}});
    FAIL() << "enqueued";
  } catch (const std::invalid_argument& error) {
    EXPECT_STREQ(error.what(), "[Enqueue] gpu_only has no kernel for cpu");
  }
  stream->Synchronize();  // Nothing came of it.
}

TEST(CpuDevice, CapturesAreGoneWhenTheEventPasses) {
  CpuDevice device;
  const auto stream = device.CreateStream("s");
  for (int i = 0; i < 200; ++i) {
    auto captured = std::make_shared<int>(i);
    stream->Enqueue(Priced("x", [captured](ThreadPool&) {}));
    stream->Synchronize();
    ASSERT_EQ(captured.use_count(), 1);
  }
}

TEST(CpuDevice, ParkedStreamsStartNothingUntilRelease) {
  CpuDevice device;
  const auto a = device.CreateStream("a"), b = device.CreateStream("b");
  std::atomic<int> ran{0};
  for (int round = 0; round < 50; ++round) {
    device.Park();
    const int before = ran;
    a->Enqueue(Priced("x", [&](ThreadPool&) { ++ran; }));
    const EventPtr event = a->Record();
    b->Wait(event);
    b->Enqueue(Priced("y", [&](ThreadPool&) { ++ran; }));
    const EventPtr end = b->Record();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    EXPECT_EQ(ran, before);
    EXPECT_FALSE(event->Ready());
    EXPECT_FALSE(end->Ready());
    device.Release();
    end->Synchronize();
    EXPECT_EQ(ran, before + 2);
  }
}

TEST(CpuDevice, ParkedStreamRunsWhatItHasWhenDestroyed) {
  CpuDevice device;
  std::atomic<int> ran{0};
  device.Park();
  device.CreateStream("s")->Enqueue(Priced("x", [&](ThreadPool&) { ++ran; }));
  EXPECT_EQ(ran, 1);
  device.Release();  // With no stream left.
}

// An operation's tag is to be had while the operation runs, and where the stream has failed,
// afterwards.
TEST(CpuDevice, SaysWhereAStreamIs) {
  CpuDevice device;
  const auto stream = device.CreateStream("s"), other = device.CreateStream("t");
  std::promise<void> begun, end, failing;
  EXPECT_FALSE(stream->Position());
  stream->SetTag(7);
  stream->Enqueue({"first", {}, {}, {}, {[&](ThreadPool&) {
                     begun.set_value();
                     end.get_future().wait();
                   }}});
  stream->SetTag(8);
  stream->Enqueue({"second", {}, {}, {}, {[&](ThreadPool&) {
                     failing.get_future().wait();
                     throw CommError("failed");
                   }}});
  stream->SetTag(9);
  stream->Enqueue({"third", {}, {}, {}, {[](ThreadPool&) {}}});
  begun.get_future().wait();
  ASSERT_TRUE(stream->Position());
  EXPECT_STREQ(stream->Position()->operation, "first");
  EXPECT_EQ(stream->Position()->tag, 7u);
  other->Enqueue({"done", {}, {}, {}, {[](ThreadPool&) {}}});
  other->Synchronize();
  EXPECT_FALSE(other->Position());
  end.set_value();
  failing.set_value();
  EXPECT_THROW(stream->Synchronize(), CommError);
  ASSERT_TRUE(stream->Position());
  EXPECT_STREQ(stream->Position()->operation, "second");
  EXPECT_EQ(stream->Position()->tag, 8u);
}

TEST(CpuDevice, CountsWhatIsAllocated) {
  CpuDevice device;
  EXPECT_EQ(device.allocated_bytes(), 0);
  Buffer a = device.Allocate(1000);
  {
    const Buffer b = device.Allocate(5000);
    EXPECT_EQ(device.allocated_bytes(), 6000);
  }
  EXPECT_EQ(device.allocated_bytes(), 1000);
  EXPECT_THROW((void)device.Allocate(int64_t{1} << 60), MemoryError);
  EXPECT_EQ(device.allocated_bytes(), 1000);
  a = Buffer();
  EXPECT_EQ(device.allocated_bytes(), 0);
}

TEST(CpuDevice, MemoryIsWritableToTheLastByte) {
  CpuDevice device;
  for (const MemoryPlace place : {MemoryPlace::kDevice, MemoryPlace::kPinned, MemoryPlace::kHost}) {
    const Buffer buffer = device.Allocate((5 << 20) + 3, place);
    std::byte* const data = HostAddress(buffer.data());
    data[0] = std::byte{1};
    data[buffer.bytes() - 1] = std::byte{2};
    EXPECT_EQ(data[buffer.bytes() - 1], std::byte{2});
    // Memory that the host shares has one address; memory that it must not touch has another.
    EXPECT_EQ(data == buffer.data(), place != MemoryPlace::kDevice);
  }
}

TEST(CpuDeviceDeathTest, TheHostMayNotTouchDeviceMemory) {
  CpuDevice device;
  const Buffer buffer = device.Allocate(64);
  const View view = buffer.As(DType::kFloat32, {16});
  EXPECT_DEATH(*const_cast<volatile float*>(view.As<float>()) = 1, "");
  EXPECT_DEATH((void)*const_cast<volatile float*>(view.As<float>()), "");
  const std::optional<View> host = device.OnHost(view);
  ASSERT_TRUE(host);
  host->As<float>()[15] = 2;
  float seen = 0;
  const auto stream = device.CreateStream("s");
  const auto read = [&seen](ThreadPool&, const View& v) { seen = v.As<float>()[15]; };
  stream->Enqueue({"read", {view}, {}, {}, {OnCpu(read, view)}});
  stream->Synchronize();
  EXPECT_EQ(seen, 2);
}

TEST(CpuDevice, FailingOperationIsInTheTrace) {
  CpuDevice device;
  const auto stream = device.CreateStream("s");
  device.StartTrace();
  stream->Enqueue(Priced("fail", [](ThreadPool&) { throw DeviceError("x"); }));
  stream->Enqueue(Priced("dropped"));
  EXPECT_THROW(stream->Synchronize(), DeviceError);
  const std::vector<Span> spans = device.TakeTrace();
  ASSERT_EQ(spans.size(), 1u);
  EXPECT_EQ(spans[0].name, "fail");
}

}  // namespace
}  // namespace fsdp
