// This program's prices of collectives are held to what OpenXLA has measured and published
// (tools/paper/openxla_collectives.json), at the numbers of the committed hardware files.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <iostream>
#include <numeric>
#include <string>
#include <vector>

#include "tests/testing/json.h"
#include "trainer/comm/communicator.h"
#include "trainer/comm/rank_group.h"
#include "trainer/core/atomic_file.h"
#include "trainer/recipe/hardware.h"
#include "trainer/simulate/network.h"

namespace fsdp {
namespace {

constexpr int kRanks = 8;
constexpr int64_t kLeastBytes = int64_t{1} << 20;  // Below, NCCL has other protocols.

// A row is [collective, ranks, bytes, microseconds]; the bytes are the longer side's.
double PredictedSeconds(const testing::Json& row, const Network& network) {
  const auto op = row[0].get<std::string>();
  const auto ranks = row[1].get<int>();
  CollectiveCall call;
  call.kind = op == "all-gather"       ? Collective::kAllGather
              : op == "reduce-scatter" ? Collective::kReduceScatter
              : op == "all-reduce"     ? Collective::kAllReduce
                                       : Collective::kAllToAll;
  call.n = row[2].get<int64_t>() / (op == "all-reduce" ? 1 : ranks) / 4;
  std::vector<int> members(ranks);
  std::iota(members.begin(), members.end(), 0);
  return network.WorkOf(network.ReachOf(RankGroup(members, 0)), call).seconds;
}

struct Published {
  const char* gpu;
  // As tools/paper/parts.py prints it of its copy of the price: the two are one.
  double median;
};

class PublishedCollectives : public ::testing::TestWithParam<Published> {};

TEST_P(PublishedCollectives, HalfAreWithin15Percent) {
  const std::string name = GetParam().gpu;
  const auto text = ReadWholeFile("tools/paper/openxla_collectives.json");
  const auto rows = testing::Json::parse(text)["gpus"][name]["rows"];
  const Hardware gpu = ReadHardware("configs/hardware/" + name + ".yaml");
  const Network network(gpu, kRanks, kRanks);
  std::vector<double> errors;
  for (const testing::Json& row : rows) {
    if (row[2].get<int64_t>() < kLeastBytes) continue;
    errors.push_back(std::abs(PredictedSeconds(row, network) / (row[3].get<double>() * 1e-6) - 1));
  }
  ASSERT_EQ(errors.size(), 144);
  std::sort(errors.begin(), errors.end());
  const double error = (errors[71] + errors[72]) / 2;
  std::cout << name << ": median " << 100 * error << " %\n";
  EXPECT_LT(error, 0.15);
  EXPECT_NEAR(error, GetParam().median, 0.0005);
}

INSTANTIATE_TEST_SUITE_P(Gpus, PublishedCollectives,
                         ::testing::Values(Published{"h100-80gb", 0.115},
                                           Published{"b200", 0.1255}),
                         [](const auto& info) {
                           std::string name = info.param.gpu;
                           std::erase(name, '-');
                           return name;
                         });

}  // namespace
}  // namespace fsdp
