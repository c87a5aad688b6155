// The cases that main.cc runs: all, but one in two of many under a sanitizer, and those of a
// filter.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdlib>
#include <filesystem>
#include <string>

namespace fsdp {
namespace {

int many = 0, few = 0;

class AManyCases : public ::testing::TestWithParam<int> {};
TEST_P(AManyCases, Run) { ++many; }
INSTANTIATE_TEST_SUITE_P(All, AManyCases, ::testing::Range(0, 200));

class AFewCases : public ::testing::TestWithParam<int> {};
TEST_P(AFewCases, Run) { ++few; }
INSTANTIATE_TEST_SUITE_P(All, AFewCases, ::testing::Range(0, 4));

// The exit status of this program, which only lists its tests.
int Listing(const std::string& variable, const std::string& filter) {
  const std::string self = std::filesystem::read_symlink("/proc/self/exe");
  const int status = std::system(
      (variable + " " + self + " --gtest_list_tests '--gtest_filter=" + filter + "'").c_str());
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(EveryPattern, ChoosesACase) {
  const std::string each = "FSDP_TRAIN_TEST_EVERY_PATTERN=1";
  EXPECT_EQ(Listing(each, "*"), 0);
  EXPECT_EQ(Listing(each, "*AFew*:All/AManyCases.Run/7*-Nothing.*"), 0);
  EXPECT_EQ(Listing(each, "*AFew*:Nothing.*"), 1);
  EXPECT_EQ(Listing("", "*AFew*:Nothing.*"), 0);
}

class Counts : public ::testing::Environment {
  void TearDown() override {
    EXPECT_EQ(few, 4);
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    if (std::getenv("FSDP_TRAIN_TEST_EVERYTHING") == nullptr) {
      EXPECT_GT(many, 70);
      EXPECT_LT(many, 130);
      return;
    }
#endif
    EXPECT_EQ(many, 200);
  }
};
[[maybe_unused]] const auto* const counts = ::testing::AddGlobalTestEnvironment(new Counts);

}  // namespace
}  // namespace fsdp
