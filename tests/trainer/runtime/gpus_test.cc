#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "tests/emulated/cudart.h"
#include "trainer/core/errors.h"
#include "trainer/runtime/choose_device.h"

namespace fsdp {
namespace {

using ::testing::HasSubstr;

class GpusTest : public ::testing::Test {
 protected:
  ~GpusTest() override { ResetEmulatedGpus(); }
  static std::string Why(const EmulatedGpus& machine, int gpu = 0, const char* visible = nullptr) {
    ResetEmulatedGpus(machine);
    return WhyUnusable(FindGpus(), gpu, visible);
  }
};

TEST_F(GpusTest, AreListed) {
  ResetEmulatedGpus({.count = 3, .major = 9, .minor = 0, .bytes = 5000});
  const Gpus gpus = FindGpus();
  EXPECT_TRUE(gpus.built);
  EXPECT_EQ(gpus.driver, 13000);
  EXPECT_EQ(gpus.error, "");
  ASSERT_EQ(gpus.visible.size(), 3u);
  EXPECT_EQ(gpus.visible[2].major, 9);
  EXPECT_EQ(gpus.visible[2].memory, 5000);
  EXPECT_NE(gpus.visible[2].name, "");
  EXPECT_EQ(gpus.visible[2].pci, "feed:02:00.0");
  EXPECT_EQ(WhyUnusable(gpus, 2, nullptr), "");
}

// Itself, and the others where the driver says so.
TEST_F(GpusTest, ReachEachOther) {
  ResetEmulatedGpus({.count = 4, .multiprocessors = 132});
  EXPECT_EQ(FindGpus().visible.at(3).multiprocessors, 132);
  EXPECT_EQ(GpusInReach(3), 4);
  ResetEmulatedGpus({.count = 4, .peers = false});
  EXPECT_EQ(GpusInReach(3), 1);
}

TEST_F(GpusTest, RanksTakeTheHostsGpusInTurn) {
  ResetEmulatedGpus({.count = 3});
  const Gpus gpus = FindGpus();
  EXPECT_EQ(GpuOfRank(gpus, 2), 2);
  EXPECT_EQ(GpuOfRank(gpus, 4), 1);
  EXPECT_EQ(GpuOfRank(Gpus(), 4), 0);
}

// The runtime would call each of the first two an insufficient driver.
TEST_F(GpusTest, WhatIsMissingIsSaid) {
  EXPECT_EQ(Why({.driver = 0}), "there is no NVIDIA driver on this host");
  EXPECT_THAT(Why({.driver = 12040}), HasSubstr("CUDA up to 12.4, and this program needs 13.0"));
  EXPECT_EQ(Why({.driver = 14010}), "");
  EXPECT_THAT(Why({.count = 0}), HasSubstr("no GPU (CUDA_VISIBLE_DEVICES is not set)"));
  EXPECT_THAT(Why({.count = 0}, 0, ""), HasSubstr("no GPU (CUDA_VISIBLE_DEVICES=)"));
  EXPECT_THAT(Why({.count = 0}, 0, "7"), HasSubstr("no GPU (CUDA_VISIBLE_DEVICES=7)"));
  EXPECT_THAT(Why({.major = 7, .minor = 5}),
              HasSubstr("capability 7.5, and this program needs 8.0"));
  EXPECT_EQ(Why({.major = 8, .minor = 6}), "");
}

TEST_F(GpusTest, WhatTheRuntimeRefusesIsSaid) {
  ResetEmulatedGpus();
  FailEmulatedCall("cudaGetDeviceCount", 1, cudaErrorInvalidValue);
  EXPECT_THAT(WhyUnusable(FindGpus(), 0, nullptr), HasSubstr("cudaErrorInvalidValue"));
}

// The line "SigBlk:" of the driver's thread: a bit a signal, in hexadecimal digits.
uint64_t BlockedByTheDriver() {
  for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream name(thread.path() / "comm"), status(thread.path() / "status");
    std::string line;
    if (!std::getline(name, line) || line != kDriversThread) continue;
    while (std::getline(status, line)) {
      if (line.starts_with("SigBlk:")) return std::stoull(line.substr(7), nullptr, 16);
    }
  }
  return 0;
}

// The supervisor waits for SIGCHLD by a descriptor: a thread that blocked it not would swallow it.
TEST_F(GpusTest, TheDriversThreadTakesNoSignal) {
  ResetEmulatedGpus();
  FindGpus();
  uint64_t blocked = 0;
  for (int i = 0; i < 1000 && blocked == 0; ++i) {  // It names itself when it runs.
    blocked = BlockedByTheDriver();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  for (const int number : {SIGCHLD, SIGINT, SIGTERM, SIGUSR1, SIGUSR2}) {
    EXPECT_NE(blocked >> (number - 1) & 1, 0u) << number;
  }
  sigset_t here;
  pthread_sigmask(SIG_BLOCK, nullptr, &here);
  EXPECT_EQ(sigismember(&here, SIGCHLD), 0);
}

TEST_F(GpusTest, SayWhatIsFree) {
  ResetEmulatedGpus({.count = 2, .bytes = 4096});
  const GpuMemory memory = MemoryOf(1);
  EXPECT_EQ(memory.total, 4096);
  EXPECT_LE(memory.free, memory.total);
  EXPECT_THROW(MemoryOf(2), DeviceError);
}

TEST_F(GpusTest, ABuildWithoutCudaSaysSo) {
  EXPECT_THAT(WhyUnusable(Gpus(), 0, nullptr), HasSubstr("built without CUDA"));
}

}  // namespace
}  // namespace fsdp
