// The CUDA device on a CUDA runtime without CUDA, where that can be made to fail. on_gpu_test.cc
// has the promises of every device.
#include "trainer/runtime/cuda/cuda_device.h"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <future>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "tests/emulated/cudart.h"
#include "tests/testing/error_of.h"
#include "tests/trainer/runtime/host_operations.h"
#include "trainer/core/errors.h"
#include "trainer/runtime/choose_device.h"
#include "trainer/runtime/cpu/cpu_device.h"
#include "trainer/runtime/cuda/for_communicators.h"
#include "trainer/runtime/stream_checker.h"

namespace fsdp {
namespace {

class CudaDeviceTest : public ::testing::Test {
 protected:
  ~CudaDeviceTest() override { ResetEmulatedGpus(); }

  // A kernel, of the device and not of the host.
  static Operation Kernel(const char* name, std::function<void()> kernel) {
    Operation operation;
    operation.name = name;
    operation.kernels.cuda = [name, kernel = std::move(kernel)](CudaStreamHandle stream) {
      stream.WillPut(1);
      const cudaError_t error = LaunchOnEmulatedStream(stream, kernel);
      if (error != cudaSuccess) {
        throw DeviceError(std::string("Launch of ") + name + ": " + cudaGetErrorString(error));
      }
    };
    return operation;
  }
  static Operation Faulting(const char* name) {
    return Kernel(name, [] { throw EmulatedFault(); });
  }
  static std::string Error(const EventPtr& event) {
    return testing::ErrorOf<DeviceError>([&] { event->Synchronize(); });
  }
  static void ExpectHas(const std::string& text, const std::string& part) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  }
};

// Kernels, copies and work of the host hand a tensor on in one stream, and to another's.
TEST_F(CudaDeviceTest, KernelsAndTheHostTakeTurns) {
  const auto device = CreateCudaDevice({});
  const auto a = device->CreateStream("a"), b = device->CreateStream("b");
  const Buffer on_gpu = device->Allocate(4096),
               pinned = device->Allocate(4096, MemoryPlace::kPinned);
  std::byte* const gpu = on_gpu.data();
  auto* const host = reinterpret_cast<int*>(pinned.data());
  const auto copy = [](const char* name, std::byte* to, std::byte* from) {
    Operation operation;
    operation.name = name;
    operation.kernels.cuda = [=](CudaStreamHandle stream) {
      ASSERT_EQ(cudaMemcpyAsync(to, from, 4096, cudaMemcpyDefault, stream), cudaSuccess);
    };
    return operation;
  };
  const auto increment = [](int* data) {
    return [data] {
      for (int i = 0; i < 1024; ++i) ++data[i];
    };
  };
  for (int i = 0; i < 1024; ++i) host[i] = i;
  for (int round = 0; round < 50; ++round) {
    a->Enqueue(copy("to_device", gpu, pinned.data()));
    b->Wait(a->Record());
    b->Enqueue(Kernel("increment", increment(reinterpret_cast<int*>(HostAddress(gpu)))));
    a->Wait(b->Record());
    a->Enqueue(copy("to_host", pinned.data(), gpu));
    // Late, so that a stream that did not wait would copy the old values.
    a->Enqueue(Priced("host", [=](ThreadPool&) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      increment(host)();
    }));
  }
  a->Synchronize();
  for (int i = 0; i < 1024; ++i) ASSERT_EQ(host[i], i + 100);
}

TEST_F(CudaDeviceTest, StreamsHaveTheirPriorities) {
  const auto device = CreateCudaDevice({});
  std::map<std::string, int> priorities;
  unsigned flags = 0;
  const auto ask = [&](Stream& stream) {
    Operation operation;
    operation.name = "ask";
    operation.kernels.cuda = [&](CudaStreamHandle handle) {
      (void)cudaStreamGetPriority(handle, &priorities[stream.name()]);
      (void)cudaStreamGetFlags(handle, &flags);
    };
    stream.Enqueue(std::move(operation));
  };
  const auto compute = device->CreateStream("compute", 4);
  const auto gather = device->CreateStream("gather", 1, StreamPriority::kHigh);
  ask(*compute);
  ask(*gather);
  EXPECT_LT(priorities.at("gather"), priorities.at("compute"));  // CUDA's lower go first.
  EXPECT_EQ(priorities.at("compute"), 0);
  EXPECT_EQ(flags, cudaStreamNonBlocking);  // Without it they wait for the null stream's work.
}

// By default eight streams have a queue of the hardware each, and the ninth waits for what the
// first waits for.
TEST_F(CudaDeviceTest, ManyStreamsDoNotWaitForEachOther) {
  const auto device = CreateCudaDevice({});
  std::vector<std::unique_ptr<Stream>> streams;
  for (int i = 0; i < 20; ++i) streams.push_back(device->CreateStream("s"));
  Gate gate;
  gate.Enqueue(*streams[0]);
  std::vector<EventPtr> ends;
  for (int i = 1; i < 20; ++i) {
    streams[i]->Enqueue(Kernel("beside", [] {}));
    ends.push_back(streams[i]->Record());
  }
  const auto late = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  for (const EventPtr& end : ends) {
    while (!end->Ready()) {
      ASSERT_LT(std::chrono::steady_clock::now(), late) << "held up by a stream beside";
      std::this_thread::yield();
    }
  }
  gate.Open();
}

TEST_F(CudaDeviceTest, WorkOfTheHostHasTheStreamsThreads) {
  const auto device = CreateCudaDevice({});
  for (int threads = 1; threads <= 3; ++threads) {
    const auto stream = device->CreateStream("s", threads);
    int size = 0;
    stream->Enqueue(Priced("x", [&](ThreadPool& pool) { size = pool.size(); }));
    stream->Synchronize();
    EXPECT_EQ(size, threads);
  }
}

TEST_F(CudaDeviceTest, RunsItsOwnKernelWhereThereIsOne) {
  const auto device = CreateCudaDevice({});
  const auto stream = device->CreateStream("s");
  std::string ran;
  Operation operation = Kernel("both", [&] { ran += "cuda"; });
  operation.kernels.host = [&](ThreadPool&) { ran += "host"; };
  operation.kernels.cpu = [&](ThreadPool&) { ran += "cpu"; };
  stream->Enqueue(operation);
  stream->Synchronize();
  EXPECT_EQ(ran, "cuda");
  Operation none;
  none.name = "cpu_only";
  none.kernels.cpu = [](ThreadPool&) {};
  EXPECT_THROW(stream->Enqueue(none), std::invalid_argument);
}

// The word may have passed the number by the time that the GPU looks.
TEST_F(CudaDeviceTest, WaitsForANumberOrBeyond) {
  const auto device = CreateCudaDevice({});
  const auto stream = device->CreateStream("s");
  const int64_t waits = EmulatedCalls("cuStreamWaitValue32, GEQ"),
                others = EmulatedCalls("cuStreamWaitValue32, not GEQ");
  stream->Enqueue(Priced("host", [](ThreadPool&) {}));
  stream->Synchronize();
  EXPECT_EQ(EmulatedCalls("cuStreamWaitValue32, GEQ"), waits + 1);
  EXPECT_EQ(EmulatedCalls("cuStreamWaitValue32, not GEQ"), others);
}

// Who waits for the work may free what it used.
TEST_F(CudaDeviceTest, WhatATaskHoldsIsGoneWhenItIsOver) {
  const auto device = CreateCudaDevice({});
  const auto stream = device->CreateStream("s");
  std::atomic<bool> gone{false};
  const std::shared_ptr<void> end(nullptr, [&](void*) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    gone = true;
  });
  {
    std::shared_ptr<void> held = end;
    stream->Enqueue(Priced("host", [held = std::move(held)](ThreadPool&) {}));
  }
  const_cast<std::shared_ptr<void>&>(end).reset();
  stream->Synchronize();
  EXPECT_TRUE(gone);
}

// As two ranks' collectives do: each stream's work waits for the other's, in both orders.
TEST_F(CudaDeviceTest, WorkOfTheHostOfTwoStreamsMayWaitForEachOther) {
  const auto device = CreateCudaDevice({}), peer = CreateCudaDevice({});
  std::promise<void> one, two;
  const auto meet = [](std::promise<void>& here, std::promise<void>& there) {
    return [&here, &there](ThreadPool&) {
      here.set_value();
      there.get_future().wait();
    };
  };
  const auto a = device->CreateStream("a"), b = device->CreateStream("b");
  const auto c = peer->CreateStream("c"), d = peer->CreateStream("d");
  std::promise<void> three, four;
  a->Enqueue(Priced("a", meet(one, two)));
  b->Enqueue(Priced("b", meet(three, four)));
  d->Enqueue(Priced("d", meet(four, three)));
  c->Enqueue(Priced("c", meet(two, one)));
  for (Stream* stream : {a.get(), b.get(), c.get(), d.get()}) stream->Synchronize();
}

TEST_F(CudaDeviceTest, WaitsForOtherDevices) {
  const auto device = CreateCudaDevice({}), other = CreateCudaDevice({});
  CpuDevice cpu;
  const auto stream = device->CreateStream("s"), theirs = other->CreateStream("t"),
             host = cpu.CreateStream("h");
  Gate gate;
  gate.Enqueue(*host);
  theirs->Wait(host->Record());
  stream->Wait(theirs->Record());
  const EventPtr end = stream->Record();
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_FALSE(end->Ready());
  gate.Open();
  end->Synchronize();
  host->Enqueue(Priced("fail", [](ThreadPool&) { throw CommError("gone"); }));
  theirs->Wait(host->Record());
  stream->Wait(theirs->Record());
  EXPECT_THROW(stream->Synchronize(), CommError);
  EXPECT_THROW(theirs->Synchronize(), CommError);
}

// Kernels go on behind a failure, and what they make counts as failed.
TEST_F(CudaDeviceTest, KernelsBehindAFailureRunInVain) {
  const auto device = CreateCudaDevice({});
  const auto a = device->CreateStream("a"), b = device->CreateStream("b");
  std::atomic<int> ran{0};
  a->Enqueue(Priced("fail", [](ThreadPool&) { throw CommError("gone"); }));
  a->Enqueue(Kernel("behind", [&] { ++ran; }));
  const EventPtr failed = a->Record();
  b->Enqueue(Kernel("beside", [&] { ++ran; }));
  const EventPtr good = b->Record();
  b->Wait(failed);
  b->Enqueue(Kernel("behind", [&] { ++ran; }));
  b->Enqueue(Priced("host", [&](ThreadPool&) { ran += 100; }));
  EXPECT_THROW(b->Synchronize(), CommError);
  EXPECT_THROW(failed->Synchronize(), CommError);
  good->Synchronize();
  EXPECT_EQ(ran, 3);
}

// As if the work at that place had thrown: what came before is good, what comes behind has failed,
// on other streams and for work of the host, too.
TEST_F(CudaDeviceTest, WhatIsStuckFailsFromOutside) {
  auto device = CreateCudaDevice({});
  auto stream = device->CreateStream("comm"), other = device->CreateStream("other");
  std::promise<void> stuck;
  std::atomic<bool> dropped{true};
  stream->SetTag(7);
  const EventPtr before = stream->Record();
  const FailHere fail = MayFailHere(*stream, "all_gather");
  stream->Enqueue(Kernel("all_gather", [&] { stuck.get_future().wait(); }));
  const EventPtr after = stream->Record();
  stream->Enqueue(Priced("host", [&](ThreadPool&) { dropped = false; }));
  other->Wait(stream->Record());
  std::thread([&] {
    fail(std::make_exception_ptr(CommError("gone")));
    stuck.set_value();
  }).join();
  EXPECT_THROW(other->Synchronize(), CommError);
  EXPECT_THROW(after->Synchronize(), CommError);
  before->Synchronize();
  EXPECT_TRUE(dropped);
  ASSERT_TRUE(stream->Position());
  EXPECT_STREQ(stream->Position()->operation, "all_gather");
  EXPECT_EQ(stream->Position()->tag, 7u);
  const FailHere later = MayFailHere(*stream, "all_gather");
  stream.reset();
  other.reset();
  device.reset();
  later(std::make_exception_ptr(CommError("the first one counts")));
  EXPECT_THROW(after->Synchronize(), CommError);
}

TEST_F(CudaDeviceTest, RefusedLaunchIsThatOfTheOperation) {
  const auto device = CreateCudaDevice({});
  const auto stream = device->CreateStream("compute"), other = device->CreateStream("other");
  stream->Enqueue(Kernel("before", [] {}));
  const EventPtr before = stream->Record();
  FailEmulatedCall("cudaLaunchKernelExC", 1, cudaErrorInvalidConfiguration);
  stream->SetTag(7);
  stream->Enqueue(Kernel("gemm", [] {}));
  stream->Enqueue(Kernel("behind", [] {}));
  const std::string error = Error(stream->Record());
  ExpectHas(error, "GPU 0 (Emulated GPU): gemm on stream compute");
  ExpectHas(error, "invalid configuration argument");
  ASSERT_TRUE(stream->Position());
  EXPECT_STREQ(stream->Position()->operation, "gemm");
  EXPECT_EQ(stream->Position()->tag, 7u);
  before->Synchronize();
  other->Enqueue(Kernel("beside", [] {}));
  other->Synchronize();  // The GPU itself is well.
  EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
}

TEST_F(CudaDeviceTest, FaultFailsTheDeviceAndSaysWhereItWas) {
  const auto device = CreateCudaDevice({});
  const auto stream = device->CreateStream("compute"), other = device->CreateStream("other");
  stream->SetTag(6);
  stream->Enqueue(Kernel("before", [] {}));
  const EventPtr before = stream->Record();
  before->Synchronize();
  other->Enqueue(Kernel("beside", [] {}));
  other->Synchronize();
  stream->SetTag(7);
  Gate gate;
  gate.Enqueue(*stream);
  stream->SetTag(8);
  stream->Enqueue(Faulting("gemm"));
  stream->SetTag(9);
  stream->Enqueue(Kernel("behind", [] { FAIL() << "it has faulted"; }));
  const EventPtr failed = stream->Record();
  gate.Open();
  const std::string error = Error(failed);
  ExpectHas(error,
            "GPU 0 (Emulated GPU) failed: an illegal memory access was encountered "
            "(cudaErrorIllegalAddress): in or shortly behind gemm on stream compute"
            "; FSDP_TRAIN_CUDA_SYNC=1 finds the operation");
  EXPECT_EQ(Error(failed), error);
  EXPECT_TRUE(failed->Ready());
  before->Synchronize();  // The host knew.
  // Nothing runs any more, on no stream, and nothing hangs.
  std::atomic<int> ran{0};
  other->Enqueue(Kernel("late", [&] { ++ran; }));
  other->Enqueue(Priced("host", [&](ThreadPool&) { ++ran; }));
  other->Wait(failed);
  EXPECT_EQ(Error(other->Record()), error);
  EXPECT_EQ(ran, 0);
}

// A fault that a later launch is the first to hear of is none of that operation.
TEST_F(CudaDeviceTest, FaultIsNotThatOfTheLaunchThatFindsIt) {
  const auto device = CreateCudaDevice({});
  const auto stream = device->CreateStream("compute"), other = device->CreateStream("other");
  std::promise<void> go;
  stream->Enqueue(Kernel("gemm", [&] {
    go.get_future().wait();
    throw EmulatedFault();
  }));
  Operation innocent = Kernel("innocent", [] {});
  innocent.kernels.cuda = [&, launch = innocent.kernels.cuda](CudaStreamHandle handle) {
    go.set_value();
    while (cudaPeekAtLastError() == cudaSuccess) std::this_thread::yield();
    launch(handle);
  };
  other->Enqueue(std::move(innocent));
  const std::string error = Error(other->Record());
  ExpectHas(error, "gemm on stream compute");
  ExpectHas(error, "cudaErrorIllegalAddress");
  EXPECT_EQ(error.find("Launch of"), std::string::npos) << error;
}

TEST_F(CudaDeviceTest, FaultReachesWorkOfTheHostAndItsWaiters) {
  const auto device = CreateCudaDevice({}), other = CreateCudaDevice({});
  const auto stream = device->CreateStream("compute"), theirs = other->CreateStream("t");
  std::atomic<int> ran{0};
  Gate gate;
  gate.Enqueue(*stream);
  stream->Enqueue(Faulting("gemm"));
  stream->Enqueue(Priced("all_gather", [&](ThreadPool&) { ++ran; }));
  theirs->Wait(stream->Record());
  gate.Open();
  EXPECT_NE(Error(stream->Record()), "");
  EXPECT_NE(Error(theirs->Record()), "");
  EXPECT_EQ(ran, 0);
}

TEST_F(CudaDeviceTest, SynchronousDeviceNamesTheOperation) {
  const auto device = CreateCudaDevice({.synchronous = true});
  const auto stream = device->CreateStream("compute");
  std::string order;
  stream->Enqueue(Kernel("before", [&] { order += "a"; }));
  order += "b";  // The kernel is over.
  stream->Enqueue(Priced("host", [&](ThreadPool&) { order += "c"; }));
  order += "d";
  EXPECT_EQ(order, "abcd");
  stream->SetTag(5);
  stream->Enqueue(Kernel("good", [] {}));
  stream->Enqueue(Faulting("gemm"));
  stream->Enqueue(Kernel("behind", [] {}));
  EXPECT_EQ(Error(stream->Record()),
            "GPU 0 (Emulated GPU) failed: an illegal memory access was encountered "
            "(cudaErrorIllegalAddress): in gemm on stream compute");
}

TEST_F(CudaDeviceTest, SaysWhereAStreamIs) {
  const auto device = CreateCudaDevice({});
  const auto stream = device->CreateStream("s"), other = device->CreateStream("t");
  const auto at = [](const Stream& s) {
    const std::optional<StreamPosition> position = s.Position();
    return position ? position->operation + (":" + std::to_string(position->tag)) : "";
  };
  EXPECT_EQ(at(*stream), "");
  // Kernels that wait for the host, so that the stream itself is in them.
  std::promise<void> begun[4], end[4];
  const auto hold = [&](const char* name, int i) {
    stream->Enqueue(Kernel(name, [&, i] {
      begun[i].set_value();
      end[i].get_future().wait();
    }));
  };
  stream->SetTag(7);
  hold("first", 0);
  hold("second", 1);  // Same tag: the section is called by the first.
  stream->SetTag(8);
  hold("third", 2);
  const EventPtr third = stream->Record();
  Gate gate;
  gate.Enqueue(*other);
  stream->Wait(other->Record());
  hold("fourth", 3);
  const EventPtr fourth = stream->Record();
  for (const auto& [i, where] :
       std::map<int, std::string>{{0, "first:7"}, {1, "first:7"}, {2, "third:8"}}) {
    begun[i].get_future().wait();
    EXPECT_EQ(at(*stream), where);
    end[i].set_value();
  }
  third->Synchronize();
  EXPECT_EQ(at(*stream), "wait:8");
  EXPECT_EQ(at(*other), "gate:0");
  gate.Open();
  begun[3].get_future().wait();
  EXPECT_EQ(at(*stream), "fourth:8");
  end[3].set_value();
  fourth->Synchronize();
  EXPECT_EQ(at(*stream), "");
  stream->SetTag(9);
  stream->Enqueue(Priced("failing", [](ThreadPool&) { throw CommError("x"); }));
  stream->SetTag(10);
  stream->Enqueue(Priced("behind", [](ThreadPool&) {}));
  EXPECT_THROW(stream->Synchronize(), CommError);
  EXPECT_EQ(at(*stream), "failing:9");
}

TEST_F(CudaDeviceTest, TimesAreOfTheDevicesClock) {
  const auto device = CreateCudaDevice({});
  const auto stream = device->CreateStream("s");
  const auto sleep = [](int ms) {
    return [ms] { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); };
  };
  device->StartTrace();
  const EventPtr begin = stream->RecordTime();
  stream->Enqueue(Kernel("kernel", sleep(20)));
  const EventPtr middle = stream->RecordTime();
  stream->Enqueue(Priced("host", [&](ThreadPool&) { sleep(10)(); }));
  const EventPtr end = stream->RecordTime();
  stream->Synchronize();
  const std::vector<Span> spans = device->TakeTrace();
  EXPECT_GE(middle->Time() - begin->Time(), 0.02);
  EXPECT_GE(end->Time() - middle->Time(), 0.01);
  EXPECT_LE(end->Time(), device->Now());
  ASSERT_EQ(spans.size(), 2u);
  EXPECT_EQ(spans[0].name, "kernel");
  EXPECT_GE(spans[0].end_s - spans[0].begin_s, 0.0199);
  EXPECT_LE(begin->Time(), spans[0].begin_s);
  EXPECT_LE(spans[0].end_s, middle->Time());
  EXPECT_EQ(spans[1].name, "host");
  EXPECT_GE(spans[1].end_s - spans[1].begin_s, 0.0099);
}

TEST_F(CudaDeviceTest, StreamsWaitForEventsWithoutTiming) {
  const auto device = CreateCudaDevice({});
  const auto a = device->CreateStream("a"), b = device->CreateStream("b");
  const int64_t timed = EmulatedCalls("cudaStreamWaitEvent, timed"),
                untimed = EmulatedCalls("cudaStreamWaitEvent, without timing");
  b->Wait(a->Record());
  a->Enqueue(Priced("host", [](ThreadPool&) {}));
  b->Wait(a->Record());
  b->Synchronize();
  EXPECT_EQ(EmulatedCalls("cudaStreamWaitEvent, timed"), timed);
  EXPECT_EQ(EmulatedCalls("cudaStreamWaitEvent, without timing"), untimed + 2);
}

TEST_F(CudaDeviceTest, PinnedAndHostMemoryAreTheHosts) {
  const auto device = CreateCudaDevice({});
  for (const MemoryPlace place : {MemoryPlace::kPinned, MemoryPlace::kHost}) {
    const Buffer buffer = device->Allocate((5 << 20) + 3, place);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.data()) % 4096, 0u);
    buffer.data()[0] = buffer.data()[buffer.bytes() - 1] = std::byte{1};
  }
  const Buffer buffer = device->Allocate(64);
  EXPECT_NE(HostAddress(buffer.data()), buffer.data());
  EXPECT_FALSE(device->OnHost(buffer.As(DType::kFloat32, {16})));
}

TEST_F(CudaDeviceTest, RefusedMemoryIsReportedInBytes) {
  ResetEmulatedGpus({.bytes = 1 << 20});
  const auto device = CreateCudaDevice({});
  const Buffer buffer = device->Allocate(1 << 19);
  try {
    (void)device->Allocate(1 << 20);
    FAIL() << "granted";
  } catch (const MemoryError& error) {
    EXPECT_EQ(error.code(), ExitCode::kMemory);
    ExpectHas(error.what(), "cannot allocate 1048576 bytes on GPU 0 (Emulated GPU): ");
    ExpectHas(error.what(), " of its 1048576 bytes are free");
  }
  FailEmulatedCall("cudaHostAlloc", 1, cudaErrorMemoryAllocation);
  try {
    (void)device->Allocate(4096, MemoryPlace::kPinned);
    FAIL() << "granted";
  } catch (const MemoryError& error) {
    ExpectHas(error.what(), "cannot allocate 4096 bytes of pinned host memory: out of memory");
  }
  EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
}

// A stream's words are where the GPU writes to.
TEST_F(CudaDeviceTest, StreamFreesItsWordsWhenAllIsDone) {
  const auto device = CreateCudaDevice({});
  std::atomic<bool> ran{false};
  {
    const auto stream = device->CreateStream("s");
    stream->Enqueue(Kernel("slow", [&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      ran = true;
    }));
    (void)stream->Record();  // Behind which the GPU says how far it has come.
    EXPECT_FALSE(ran);
  }
  EXPECT_TRUE(ran);
}

TEST_F(CudaDeviceTest, FreesWhatItAllocates) {
  size_t before = 0, after = 0, total = 0;
  ASSERT_EQ(cudaMemGetInfo(&before, &total), cudaSuccess);
  {
    const auto device = CreateCudaDevice({});
    std::vector<Buffer> buffers;
    for (const int64_t bytes : {1, 4096, 3 << 20}) buffers.push_back(device->Allocate(bytes));
  }
  ASSERT_EQ(cudaMemGetInfo(&after, &total), cudaSuccess);
  EXPECT_EQ(before, after);
}

// A step of the executor's kind, again and again: once the pool has its events, CUDA is asked for
// nothing.
TEST_F(CudaDeviceTest, StepsAllocateNothing) {
  const auto device = CreateCudaDevice({});
  const auto compute = device->CreateStream("compute"), gather = device->CreateStream("gather");
  EventPtr ends[2];
  const auto step = [&](int s) {
    if (ends[s % 2]) ends[s % 2]->Synchronize();
    for (int unit = 0; unit < 4; ++unit) {
      gather->Enqueue(Priced("all_gather"));
      compute->Wait(gather->Record());
      compute->Enqueue(Kernel("gemm", [] {}));
      gather->Wait(compute->Record());
    }
    ends[s % 2] = compute->Record();
  };
  const auto calls = [] {
    std::map<std::string, int64_t> counts;
    for (const char* name : {"cudaMalloc", "cudaHostAlloc", "cudaEventCreateWithFlags",
                             "cudaStreamCreateWithPriority", "cudaFree", "cudaFreeHost",
                             "cudaEventDestroy", "cudaStreamSynchronize", "cudaMemGetInfo"}) {
      counts[name] = EmulatedCalls(name);
    }
    return counts;
  };
  for (int s = 0; s < 5; ++s) step(s);
  // As many as are in use at once: the host may be up to two steps ahead.
  const auto warm = calls();
  int64_t created = 0;
  for (int s = 5; s < 50; ++s) {
    const int64_t before = EmulatedCalls("cudaEventCreateWithFlags");
    step(s);
    if (s >= 40) created += EmulatedCalls("cudaEventCreateWithFlags") - before;
  }
  auto after = calls();
  EXPECT_LE(after["cudaEventCreateWithFlags"] - warm.at("cudaEventCreateWithFlags"), 64);
  EXPECT_EQ(created, 0);
  after["cudaEventCreateWithFlags"] = warm.at("cudaEventCreateWithFlags");
  EXPECT_EQ(after, warm);
}

TEST_F(CudaDeviceTest, SynchronousDeviceKeepsTheContractOfStreams) {
  const auto device = CreateCudaDevice({.synchronous = true});
  const auto a = device->CreateStream("a"), b = device->CreateStream("b");
  a->Enqueue(Priced("fail", [](ThreadPool&) { throw CommError("gone"); }));
  b->Wait(a->Record());
  EXPECT_THROW(b->Synchronize(), CommError);
}

// The host is ahead by less than the queue holds: no launch waits in the driver.
TEST_F(CudaDeviceTest, HostRunsAheadOfAStreamByLessThanItsQueue) {
  const auto device = CreateCudaDevice({});
  const auto stream = device->CreateStream("s"), other = device->CreateStream("t");
  std::atomic<int> launched{0}, ran{0};
  (void)TakeMostQueued();
  stream->Enqueue(Priced("first", [&](ThreadPool&) {
    while (launched < 100) std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }));
  stream->Enqueue(Priced("second", [&](ThreadPool&) { ++ran; }));
  for (; launched < 5000; ++launched) {
    Operation operation;  // One of many kernels, or of many events and waits.
    operation.name = "kernels";
    operation.kernels.cuda = [&](CudaStreamHandle handle) {
      for (int i = 0; i < 3; ++i) {
        handle.WillPut(1);
        ASSERT_EQ(LaunchOnEmulatedStream(handle, [&] { ++ran; }), cudaSuccess);
      }
    };
    stream->SetTag(launched % 7);
    stream->Enqueue(std::move(operation));
    if (launched % 5 == 0) {
      stream->Wait(other->Record());
      other->Wait(stream->Record());
    }
  }
  stream->Synchronize();
  other->Synchronize();
  EXPECT_EQ(ran, 15001);
  EXPECT_LE(TakeMostQueued(), 700);
}

// Else a launch of "kernel" would stand in the driver, with the lock that "other" needs.
TEST_F(CudaDeviceTest, EventsLeaveRoomToLaunch) {
  const auto device = CreateCudaDevice({});
  const auto stream = device->CreateStream("s"), other = device->CreateStream("t");
  Gate gate;
  gate.Enqueue(*stream);
  for (int i = 0; i < 160; ++i) {
    stream->Enqueue(Kernel("kernel", [] {}));
    (void)stream->Record();
  }
  other->Enqueue(Kernel("free", [] {}));
  other->Synchronize();
  gate.Open();
  stream->Synchronize();
}

// The word that the host waits for is not written any more.
TEST_F(CudaDeviceTest, HostDoesNotWaitForAGpuThatHasFaulted) {
  const auto device = CreateCudaDevice({});
  const auto stream = device->CreateStream("s");
  std::atomic<int> launched{0};
  stream->Enqueue(Kernel("gemm", [&] {
    while (launched < 400) std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    throw EmulatedFault();
  }));
  for (; launched < 5000; ++launched) stream->Enqueue(Kernel("behind", [] {}));
  ExpectHas(Error(stream->Record()), "cudaErrorIllegalAddress");
}

// By the factory, as runs make it.
TEST_F(CudaDeviceTest, IsMadeOnTheGpuThatIsAskedFor) {
  ResetEmulatedGpus({.count = 2});
  const auto checker = std::make_shared<StreamChecker>();
  const auto device = CreateDevice(DeviceType::kCuda, {.checker = checker, .gpu = 1});
  EXPECT_EQ(device->type(), DeviceType::kCuda);
  EXPECT_EQ(device->checker(), checker);
  EXPECT_THROW(CreateDevice(DeviceType::kCuda, {.gpu = 2}), DeviceError);
  const auto stream = device->CreateStream("s");
  stream->Enqueue(Faulting("gemm"));
  ExpectHas(Error(stream->Record()), "GPU 1 (Emulated GPU) failed: ");
}

TEST_F(CudaDeviceTest, EnvironmentMakesItWait) {
  ASSERT_EQ(setenv("FSDP_TRAIN_CUDA_SYNC", "1", 1), 0);
  const auto device = CreateDevice(DeviceType::kCuda);
  ASSERT_EQ(unsetenv("FSDP_TRAIN_CUDA_SYNC"), 0);
  const auto stream = device->CreateStream("s");
  std::atomic<bool> done{false};
  stream->Enqueue(Kernel("slow", [&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    done = true;
  }));
  EXPECT_TRUE(done);
}

// Megatron-LM's scripts export 1: no stream would overlap another.
TEST_F(CudaDeviceTest, ConnectionsThatAreEnoughAreKept) {
  const char* const name = "CUDA_DEVICE_MAX_CONNECTIONS";
  ASSERT_EQ(setenv(name, "24", 1), 0);
  EXPECT_EQ(ChooseDevice(WantedDevice::kCuda, 0, 1).note.find(name), std::string::npos);
  EXPECT_STREQ(std::getenv(name), "24");
  ASSERT_EQ(setenv(name, "1", 1), 0);
  (void)CreateCudaDevice({});
  EXPECT_STREQ(std::getenv(name), "32");
  EXPECT_NE(ChooseDevice(WantedDevice::kCuda, 0, 1)
                .note.find("; CUDA_DEVICE_MAX_CONNECTIONS=1 is raised to 32"),
            std::string::npos);
  ASSERT_EQ(unsetenv(name), 0);
  (void)CreateCudaDevice({});
  EXPECT_STREQ(std::getenv(name), "32");
}

TEST_F(CudaDeviceTest, DriverWithoutTheCallsIsRefused) {
  FailEmulatedCall("cudaGetDriverEntryPointByVersion", 1, cudaErrorInvalidValue);
  EXPECT_THROW((void)CreateCudaDevice({}), DeviceError);
}

}  // namespace
}  // namespace fsdp
