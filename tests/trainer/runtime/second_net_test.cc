// ThreadSanitizer behind the stream checker: a planted missing wait between two streams is reported
// and the same program with the wait is not. Kernels touch memory that the checker is not told of,
// as a kernel with a wrong declaration would. Without ThreadSanitizer both programs must just run.
#include <gtest/gtest.h>

#include <cstdlib>

#include "trainer/runtime/cpu/cpu_device.h"
#include "trainer/runtime/operation.h"

namespace fsdp {
namespace {

#ifdef __SANITIZE_THREAD__
constexpr int kExitOnRace = 66;  // TSan's own.
constexpr char kReport[] = "WARNING: ThreadSanitizer: data race";
#else
constexpr int kExitOnRace = 0;
constexpr char kReport[] = "";
#endif

Operation Undeclared(const char* name, CpuKernel kernel) {
  Operation operation;
  operation.name = name;
  operation.kernels.cpu = std::move(kernel);
  return operation;
}

enum class Plant { kNothing, kReadTooEarly, kWriteTooEarly };

// One step of gather, matmul, gather into the same slot. The wait that is missing is never caught
// by chance: workers start together, after the host has enqueued everything.
void RunStep(Plant plant, int threads) {
  CpuDevice device;
  const auto comm = device.CreateStream("comm", threads),
             compute = device.CreateStream("compute", threads);
  const Buffer slot = device.Allocate(4096 * sizeof(float));
  const Buffer out = device.Allocate(4096 * sizeof(float));
  const View w = slot.As(DType::kFloat32, {4096}), y = out.As(DType::kFloat32, {4096});
  const auto write = [](ThreadPool& pool, const View& to) {
    pool.ParallelFor(4096, 64, [to](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) to.As<float>()[i] = 1;
    });
  };
  const auto copy = [](ThreadPool& pool, const View& from, const View& to) {
    pool.ParallelFor(4096, 64, [from, to](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) to.As<float>()[i] = from.As<float>()[i];
    });
  };
  const CpuKernel gather = OnCpu(write, w), matmul = OnCpu(copy, w, y);
  device.Park();
  comm->Enqueue(Undeclared("gather", gather));
  const EventPtr gathered = comm->Record();
  if (plant != Plant::kReadTooEarly) compute->Wait(gathered);
  compute->Enqueue(Undeclared("matmul", matmul));
  const EventPtr used = compute->Record();
  if (plant == Plant::kNothing) comm->Wait(used);
  if (plant != Plant::kReadTooEarly) comm->Enqueue(Undeclared("gather", gather));
  const EventPtr end = comm->Record();
  device.Release();
  end->Synchronize();
  used->Synchronize();
}

[[noreturn]] void RunSteps(Plant plant, int threads) {
  for (int step = 0; step < 5; ++step) RunStep(plant, threads);
  std::exit(0);  // TSan's exit handler turns this into its own code if it has reported.
}

class SecondNet : public ::testing::TestWithParam<int> {
 protected:
  // A fresh process each: TSan reports a race of two stacks only once.
  SecondNet() { ::testing::FLAGS_gtest_death_test_style = "threadsafe"; }
};

TEST_P(SecondNet, ReadThatDoesNotWaitIsReported) {
  EXPECT_EXIT(RunSteps(Plant::kReadTooEarly, GetParam()), ::testing::ExitedWithCode(kExitOnRace),
              kReport);
}

TEST_P(SecondNet, WriteThatDoesNotWaitIsReported) {
  EXPECT_EXIT(RunSteps(Plant::kWriteTooEarly, GetParam()), ::testing::ExitedWithCode(kExitOnRace),
              kReport);
}

TEST_P(SecondNet, TheSameProgramWithItsWaitsIsSilent) {
  EXPECT_EXIT(RunSteps(Plant::kNothing, GetParam()), ::testing::ExitedWithCode(0), "");
}

INSTANTIATE_TEST_SUITE_P(Threads, SecondNet, ::testing::Values(1, 2));

}  // namespace
}  // namespace fsdp
