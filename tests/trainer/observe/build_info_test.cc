#include "trainer/observe/build_info.h"

#include <gtest/gtest.h>

#include <regex>
#include <string>

namespace fsdp {
namespace {

bool Matches(std::string_view text, const char* pattern) {
  return std::regex_match(std::string(text), std::regex(pattern));
}

TEST(BuildInfo, SaysWhichBuildThisIs) {
  EXPECT_TRUE(Matches(BuildVersion(), R"(\d+\.\d+\.\d+)")) << BuildVersion();
  EXPECT_TRUE(Matches(BuildGitHash(), "[0-9a-f]{40}(-dirty)?|unknown")) << BuildGitHash();
  EXPECT_TRUE(Matches(BuildCompiler(), R"((gcc|clang) \d+\..*)")) << BuildCompiler();
  EXPECT_TRUE(Matches(BuildCuda(), R"((CUDA [\d.]+:( (sm|compute)_\d+a?)+)?)")) << BuildCuda();
}

}  // namespace
}  // namespace fsdp
