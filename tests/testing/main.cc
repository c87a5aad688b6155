// The main function of every test.
//
// The builds of AddressSanitizer and ThreadSanitizer are there for mistakes of memory and of order,
// which the many cases of a suite with parameters have in common. Where a suite has more than
// kWhole of them they run one in two, by a hash of the name and the run's part (everything.h).
// FSDP_TRAIN_TEST_EVERYTHING or a filter of one's own runs what they say.
//
// A rule chooses with variables, in place of a filter: FSDP_TRAIN_TEST_FILES names sources
// ("gemm_test"), FSDP_TRAIN_TEST_WITHOUT is a pattern of tests that are left out,
// FSDP_TRAIN_TEST_OPTIMISED one of those that a sanitizer's build leaves to the optimised one, and
// with FSDP_TRAIN_SHARD_BY_FILE all tests of a source run in one shard.
//
// With FSDP_TRAIN_TEST_EVERY_PATTERN a filter has to choose something with each of its patterns.
#include <fnmatch.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <map>
#include <sstream>
#include <string>
#include <string_view>

#include "tests/testing/chosen_tests.h"
#include "tests/testing/everything.h"

namespace fsdp::testing {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitizer = true;
#else
constexpr bool kSanitizer = false;
#endif
constexpr int kWhole = 4;

// FNV-1a, 64 bits.
uint64_t Hash(std::string_view text) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return hash;
}

std::string Variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::string SourceOf(const ::testing::TestInfo& test) {
  return std::filesystem::path(test.file()).stem().string();
}

void ForEachTest(
    const std::function<void(const ::testing::TestSuite&, const ::testing::TestInfo&)>& see) {
  const ::testing::UnitTest& all = *::testing::UnitTest::GetInstance();
  for (int i = 0; i < all.total_test_suite_count(); ++i) {
    const ::testing::TestSuite& suite = *all.GetTestSuite(i);
    for (int j = 0; j < suite.total_test_count(); ++j) see(suite, *suite.GetTestInfo(j));
  }
}

std::string NameOf(const ::testing::TestSuite& suite, const ::testing::TestInfo& test) {
  return std::string(suite.name()) + "." + test.name();
}

// Whether a sanitizer's build leaves the case to another part. A suite keeps its first.
bool IsOfAnotherPart(const ::testing::TestSuite& suite, const ::testing::TestInfo& test) {
  if (!kSanitizer || Everything() || test.value_param() == nullptr) return false;
  if (suite.total_test_count() <= kWhole || &test == suite.GetTestInfo(0)) return false;
  return Hash(NameOf(suite, test)) >> 63 != Part(2);
}

// This process's shard of sources, by name; then gtest shards no more.
std::set<std::string> ShardOfSources() {
  std::map<std::string, int> sources;
  ForEachTest([&](const auto&, const auto& test) { sources.emplace(SourceOf(test), 0); });
  const std::string total = Variable("GTEST_TOTAL_SHARDS"), index = Variable("GTEST_SHARD_INDEX");
  const int shards = total.empty() ? 1 : std::stoi(total);
  std::set<std::string> chosen;
  int n = 0;
  for (const auto& [source, unused] : sources) {
    if (n++ % shards == (index.empty() ? 0 : std::stoi(index))) chosen.insert(source);
  }
  ::unsetenv("GTEST_TOTAL_SHARDS");
  ::unsetenv("GTEST_SHARD_INDEX");
  return chosen;
}

// A filter of all tests that the program's rule and its part leave.
std::string Chosen() {
  std::set<std::string> files;
  std::istringstream words(Variable("FSDP_TRAIN_TEST_FILES"));
  for (std::string word; words >> word;) files.insert(word);
  if (!Variable("FSDP_TRAIN_SHARD_BY_FILE").empty()) files = ShardOfSources();
  std::string left_out = Variable("FSDP_TRAIN_TEST_WITHOUT") + ":";
  if (kSanitizer && !Everything()) left_out += Variable("FSDP_TRAIN_TEST_OPTIMISED") + ":";
  ForEachTest([&](const auto& suite, const auto& test) {
    const bool of_another_file = !files.empty() && !files.contains(SourceOf(test));
    if (of_another_file || IsOfAnotherPart(suite, test)) left_out += NameOf(suite, test) + ":";
  });
  return "*-" + left_out;
}

bool IsOfATest(const std::string& pattern) {
  bool found = false;
  ForEachTest([&](const auto& suite, const auto& test) {
    found = found || ::fnmatch(pattern.c_str(), NameOf(suite, test).c_str(), 0) == 0;
  });
  return found;
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

std::set<std::string> WholeSources() {
  std::set<std::string> whole;
  ForEachTest([&](const auto&, const auto& test) { whole.insert(SourceOf(test)); });
  ForEachTest([&](const auto&, const auto& test) {
    if (!test.should_run()) whole.erase(SourceOf(test));
  });
  return whole;
}

}  // namespace fsdp::testing

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  const std::string filter = testing::GTEST_FLAG(filter);
  if (std::getenv("FSDP_TRAIN_TEST_EVERY_PATTERN") != nullptr &&
      !fsdp::testing::EachIsOfATest(filter)) {
    return 1;
  }
  if (filter == "*") testing::GTEST_FLAG(filter) = fsdp::testing::Chosen();
  return RUN_ALL_TESTS();
}
