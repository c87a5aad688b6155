#include <gtest/gtest.h>

#include <stdexcept>

#include "trainer/runtime/choose_device.h"
#include "trainer/runtime/stream_checker.h"

namespace fsdp {
namespace {

TEST(DeviceFactory, MakesWhatIsAskedFor) {
  const auto checker = std::make_shared<StreamChecker>();
  const auto device = CreateDevice(DeviceType::kCpu, {.checker = checker});
  EXPECT_EQ(device->type(), DeviceType::kCpu);
  EXPECT_EQ(device->checker(), checker);
  EXPECT_EQ(CreateDevice(DeviceType::kCpu)->checker(), nullptr);
}

TEST(DeviceFactory, NoCudaWithoutIt) {
  EXPECT_THROW(CreateDevice(DeviceType::kCuda), std::invalid_argument);
}

TEST(DeviceFactory, NothingRunsOnTheSimulatedOne) {
  EXPECT_THROW(CreateDevice(DeviceType::kSim), std::invalid_argument);
}

}  // namespace
}  // namespace fsdp
