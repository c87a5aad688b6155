// The main function of every test.
//
// The builds of AddressSanitizer and ThreadSanitizer are there for mistakes of memory and of order,
// which the many cases of a suite with parameters have in common. Where a suite has more than
// kWhole of them they run one in two, chosen by a hash of the name; so do the tests of whole
// processes
// (//tests/e2e).
// FSDP_TRAIN_TEST_EVERYTHING or a filter of one's own runs what they say.
//
// With FSDP_TRAIN_TEST_EVERY_PATTERN a filter has to choose something with each of its patterns.
#include <fnmatch.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <string>
#include <string_view>

namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kOneInTwo = true;
#else
constexpr bool kOneInTwo = false;
#endif
constexpr int kWhole = 4;

// FNV-1a, 64 bits.
uint64_t Hash(std::string_view text) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return hash;
}

bool IsSet(const char* name) { return std::getenv(name) != nullptr; }

// Patterns of the cases that are left out, with a colon behind each. A suite keeps its first.
std::string LeftOut(const testing::TestSuite& suite, bool of_processes) {
  const bool parameterized =
      suite.total_test_count() > 0 && suite.GetTestInfo(0)->value_param() != nullptr;
  if (!of_processes && !(parameterized && suite.total_test_count() > kWhole)) return "";
  std::string patterns;
  for (int i = 1; i < suite.total_test_count(); ++i) {
    const std::string name = std::string(suite.name()) + "." + suite.GetTestInfo(i)->name();
    if (Hash(name) >> 63 == 0) patterns += name + ":";
  }
  return patterns;
}

bool IsOfATest(const std::string& pattern) {
  const testing::UnitTest& all = *testing::UnitTest::GetInstance();
  for (int i = 0; i < all.total_test_suite_count(); ++i) {
    const testing::TestSuite& suite = *all.GetTestSuite(i);
    for (int j = 0; j < suite.total_test_count(); ++j) {
      const std::string name = std::string(suite.name()) + "." + suite.GetTestInfo(j)->name();
      if (::fnmatch(pattern.c_str(), name.c_str(), 0) == 0) return true;
    }
  }
  return false;
}

// "A.*" and "B.c" are patterns of the filter "A.*:B.c-A.d".
bool EachIsOfATest(const std::string& filter) {
  bool all = true;
  std::istringstream patterns(filter.substr(0, filter.find('-')));
  for (std::string pattern; std::getline(patterns, pattern, ':');) {
    if (IsOfATest(pattern)) continue;
    std::fprintf(stderr, "no test is called %s\n", pattern.c_str());
    all = false;
  }
  return all;
}

}  // namespace

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  const std::string& filter = testing::GTEST_FLAG(filter);
  if (IsSet("FSDP_TRAIN_TEST_EVERY_PATTERN") && !EachIsOfATest(filter)) return 1;
  if (kOneInTwo && !IsSet("FSDP_TRAIN_TEST_EVERYTHING") && filter == "*") {
    const char* target = std::getenv("TEST_TARGET");
    const bool of_processes =
        target != nullptr && std::string_view(target).starts_with("//tests/e2e:");
    std::string left_out;
    const testing::UnitTest& all = *testing::UnitTest::GetInstance();
    for (int i = 0; i < all.total_test_suite_count(); ++i) {
      left_out += LeftOut(*all.GetTestSuite(i), of_processes);
    }
    if (!left_out.empty()) testing::GTEST_FLAG(filter) = "*-" + left_out;
  }
  return RUN_ALL_TESTS();
}
