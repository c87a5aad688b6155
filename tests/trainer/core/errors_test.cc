#include "trainer/core/errors.h"

#include <gtest/gtest.h>

namespace fsdp {
namespace {

// The numbers are a contract with whoever starts the program (README, exit codes).
TEST(Errors, CarryTheirExitCode) {
  const auto code = [](const Error& error) { return static_cast<int>(error.code()); };
  EXPECT_EQ(code(DeviceError("x")), 1);
  EXPECT_EQ(code(ConfigError("x")), 2);
  EXPECT_EQ(code(MemoryError("x")), 3);
  EXPECT_EQ(code(DataError("x")), 4);
  EXPECT_EQ(code(CheckpointError("x")), 5);
  EXPECT_EQ(code(CommError("x")), 6);
  EXPECT_EQ(static_cast<int>(ExitCode::kNotFinite), 7);
  EXPECT_EQ(static_cast<int>(ExitCode::kStopped), 75);
  EXPECT_STREQ(DataError("no such file").what(), "no such file");
}

}  // namespace
}  // namespace fsdp
