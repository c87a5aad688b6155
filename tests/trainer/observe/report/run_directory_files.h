// Run directories as tests want them.
#ifndef FSDP_TRAIN_TESTS_TRAINER_OBSERVE_REPORT_RUN_DIRECTORY_FILES_H_
#define FSDP_TRAIN_TESTS_TRAINER_OBSERVE_REPORT_RUN_DIRECTORY_FILES_H_

#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>

#include "tests/testing/fresh_directory.h"
#include "trainer/observe/metrics.h"

namespace fsdp {

using testing::FreshDirectory;

inline void Put(const std::string& path, const std::string& contents) {
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  std::ofstream(path, std::ios::binary) << contents;
}

// The output of a script of this folder: "page.js ARGUMENT..". Debian's nodejs runs it.
inline std::string PrintedByNode(const std::string& script) {
  const std::string command = "node tests/trainer/observe/report/" + script;
  FILE* const pipe = ::popen(command.c_str(), "r");
  std::string out;
  char block[4096];
  for (size_t n; (n = std::fread(block, 1, sizeof(block), pipe)) > 0;) out.append(block, n);
  EXPECT_EQ(::pclose(pipe), 0) << command << ": tools/setup --tests installs node";
  return out;
}

inline StepRecord Step(int64_t step) {
  const auto s = static_cast<double>(step);
  return {.step = step,
          .loss = 9 / std::sqrt(s) + 1,  // The page shows means.
          .loss_mean = 4 / std::sqrt(s) + 1,
          .grad_norm = 1 + 1 / s,
          .lr = 1e-3 / s,
          .tokens = 100 * step,
          .step_time_s = 0.5,
          .tokens_per_s = 200,
          .tflops_per_device = 0.25,
          .mfu = 0.5,
          .memory = {1 << 20, 2 << 20, 3 << 20},
          .time = {0.0, 0.125, 0.0, 0.25, 0.03125, 0.0625, 0.03125, 0.0}};
}

inline RunRecord RunOf(const std::string& name, int64_t steps) {
  return {.name = name,
          .version = "0.1.0",
          .git = "0123456789abcdef0123",
          .started = "2026-01-02T03:04:05Z",
          .device = "cpu",
          .world_size = 2,
          .threads = 3,
          .seed = 7,
          .parameters = 1000,
          .steps = steps};
}

inline std::string Lines(std::initializer_list<MetricsRecord> records) {
  std::string out;
  for (const MetricsRecord& record : records) out += ToJson(record) + "\n";
  return out;
}

}  // namespace fsdp

#endif  // FSDP_TRAIN_TESTS_TRAINER_OBSERVE_REPORT_RUN_DIRECTORY_FILES_H_
