#include "trainer/recipe/hardware.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "trainer/core/errors.h"

namespace fsdp {
namespace {

std::string File(const std::string& text) {
  const std::string path = ::testing::TempDir() + "/hardware.yaml";
  std::ofstream(path) << text;
  return path;
}

std::string MistakesOf(const std::string& text) {
  try {
    ReadHardware(File(text));
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "none";
}

TEST(HardwareTest, TakesWhatTheFileSays) {
  const Hardware gpu = ReadHardware(File("name: a GPU\nmemory: 1000\noutside: 10\n"));
  EXPECT_EQ(gpu.name, "a GPU");
  EXPECT_EQ(gpu.device, Hardware::Device::kCuda);
  EXPECT_EQ(gpu.memory, 1000);
  EXPECT_EQ(gpu.outside, 10);
  EXPECT_EQ(gpu.host_memory, std::nullopt);
  EXPECT_EQ(gpu.host_link_bytes_per_s, std::nullopt);
  const Hardware cpu = ReadHardware(
      File("{name: b, device: cpu, host_memory: 5, host_link_bytes_per_s: 1.5,\n"
           " host_copy_bytes_per_s: 2, disk_read_bytes_per_s: 3, disk_write_bytes_per_s: 4}"));
  EXPECT_EQ(cpu.device, Hardware::Device::kCpu);
  EXPECT_EQ(cpu.host_memory, 5);
  EXPECT_EQ(cpu.host_link_bytes_per_s, 1.5);
  EXPECT_EQ(cpu.host_copy_bytes_per_s, 2);
  EXPECT_EQ(cpu.disk_read_bytes_per_s, 3);
  EXPECT_EQ(cpu.disk_write_bytes_per_s, 4);
}

TEST(HardwareTest, EveryMistakeHasItsPlace) {
  EXPECT_THAT(MistakesOf("name: a\nmemry: 5\nmemory: no\n"),
              ::testing::AllOf(::testing::HasSubstr("hardware.yaml:2:1: memry: "),
                               ::testing::HasSubstr("did you mean `memory`?"),
                               ::testing::HasSubstr("hardware.yaml:3:9: memory: want")));
  EXPECT_THAT(MistakesOf("memory: 5\n"), ::testing::HasSubstr("hardware.yaml:1:1: name: missing"));
  EXPECT_THAT(MistakesOf("name: [\n"), ::testing::HasSubstr("hardware.yaml:"));
  EXPECT_THROW(ReadHardware("/no/such/file.yaml"), ConfigError);
}

TEST(HardwareTest, ThoseOfTheRepositoryAreRead) {
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator("configs/hardware")) {
    const Hardware hardware = ReadHardware(entry.path().string());
    EXPECT_GT(hardware.memory.value_or(0), int64_t{1} << 30) << entry.path();
    ++files;
  }
  EXPECT_GE(files, 3);
}

}  // namespace
}  // namespace fsdp
