#include "trainer/observe/build_info.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace fsdp {
namespace {

using ::testing::MatchesRegex;

TEST(BuildInfo, SaysWhichBuildThisIs) {
  EXPECT_THAT(BuildVersion(), MatchesRegex(R"([0-9]+\.[0-9]+\.[0-9]+)"));
  EXPECT_THAT(BuildGitHash(), MatchesRegex("[0-9a-f]{40}(-dirty)?|unknown"));
  EXPECT_THAT(BuildCompiler(), MatchesRegex(R"((gcc|clang) [0-9]+\..*)"));
  EXPECT_THAT(BuildCuda(), MatchesRegex("(CUDA [0-9.]+:( (sm|compute)_[0-9]+a?)+)?"));
}

}  // namespace
}  // namespace fsdp
