#include "trainer/runtime/choose_device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trainer/core/errors.h"
#include "trainer/core/read_file.h"

namespace fsdp {
namespace {

using ::testing::HasSubstr;

Gpus Two() {
  Gpus gpus;
  gpus.built = true;
  gpus.runtime = gpus.driver = 13000;
  gpus.visible = {{"one", 9, 0, 100}, {"old", 7, 0, 100}};
  return gpus;
}

TEST(ChooseDevice, AutoTakesWhatCanBeUsed) {
  const ChosenDevice gpu = ChooseDevice(WantedDevice::kAuto, 0, 1, Two());
  EXPECT_EQ(gpu.type, DeviceType::kCuda);
  EXPECT_EQ(gpu.name, "one");
  EXPECT_EQ(gpu.memory, 100);
  EXPECT_EQ(gpu.note, "computes on GPU 0 of 2, one");
  const ChosenDevice cpu = ChooseDevice(WantedDevice::kAuto, 1, 2, Two());
  EXPECT_EQ(cpu.type, DeviceType::kCpu);
  EXPECT_THAT(cpu.note, HasSubstr("on the CPU: old has compute capability 7.0"));
  Gpus built;
  built.built = true;
  EXPECT_THAT(ChooseDevice(WantedDevice::kAuto, 0, 1, built).note,
              HasSubstr("computes on the CPU: there is no NVIDIA driver on this host"));
  // A program without kernels for GPUs says so where there is one.
  EXPECT_EQ(ChooseDevice(WantedDevice::kAuto, 0, 1, Gpus()).note.empty(),
            !PathExists("/dev/nvidiactl"));
}

TEST(ChooseDevice, RanksThatShareAGpuAreCounted) {
  Gpus gpus = Two();
  gpus.visible[1].major = 9;
  EXPECT_EQ(ChooseDevice(WantedDevice::kCuda, 0, 2, gpus).sharers, 1);
  const ChosenDevice third = ChooseDevice(WantedDevice::kCuda, 2, 3, gpus);
  EXPECT_EQ(third.gpu, 0);
  EXPECT_EQ(third.sharers, 2);
  EXPECT_THAT(third.note, HasSubstr("which 2 ranks of this host share"));
  EXPECT_EQ(ChooseDevice(WantedDevice::kCuda, 1, 3, gpus).sharers, 1);
}

TEST(ChooseDevice, CudaNeverFallsBack) {
  EXPECT_THROW(ChooseDevice(WantedDevice::kCuda, 1, 2, Two()), DeviceError);
  Gpus none = Two();
  none.visible.clear();
  EXPECT_THROW(ChooseDevice(WantedDevice::kCuda, 0, 1, none), DeviceError);
  EXPECT_THROW(ChooseDevice(WantedDevice::kCuda, 0, 1, Gpus()), ConfigError);
}

TEST(ChooseDevice, TheCpuAsksForNothing) {
  const ChosenDevice cpu = ChooseDevice(WantedDevice::kCpu, 0, 1, Two());
  EXPECT_EQ(cpu.type, DeviceType::kCpu);
  EXPECT_EQ(cpu.note, "");
}

}  // namespace
}  // namespace fsdp
