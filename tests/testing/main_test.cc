// How many cases main.cc runs: all of them, but one in two of many under AddressSanitizer.
#include <gtest/gtest.h>

#include <cstdlib>

namespace fsdp {
namespace {

int many = 0, few = 0;

class AManyCases : public ::testing::TestWithParam<int> {};
TEST_P(AManyCases, Run) { ++many; }
INSTANTIATE_TEST_SUITE_P(All, AManyCases, ::testing::Range(0, 200));

class AFewCases : public ::testing::TestWithParam<int> {};
TEST_P(AFewCases, Run) { ++few; }
INSTANTIATE_TEST_SUITE_P(All, AFewCases, ::testing::Range(0, 4));

class Counts : public ::testing::Environment {
  void TearDown() override {
    EXPECT_EQ(few, 4);
#ifdef __SANITIZE_ADDRESS__
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
