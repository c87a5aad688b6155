// One rank of a TinyRun, and what it reports to the test's process.
#ifndef FSDP_TRAIN_TESTS_TESTING_TINY_RANK_H_
#define FSDP_TRAIN_TESTS_TESTING_TINY_RANK_H_

#include <map>
#include <string>
#include <vector>

#include "tests/testing/tiny_run.h"
#include "tests/trainer/comm/ranks.h"

namespace fsdp::testing {

// Trains and returns the report. `run` has its initial numbers and its samples.
std::string RunTinyRank(const TinyRun& run, Rank& rank);

// The reports of all ranks, put together.
class Collected {
 public:
  void Read(const std::string& report);
  std::vector<float> Values(const std::string& name) const;
  Tensors WithPrefix(const std::string& prefix) const;

 private:
  struct Entry {
    std::vector<float> values;
    std::vector<bool> seen;
  };
  std::map<std::string, Entry> entries_;
};

}  // namespace fsdp::testing

#endif  // FSDP_TRAIN_TESTS_TESTING_TINY_RANK_H_
