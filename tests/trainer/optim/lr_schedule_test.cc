#include "trainer/optim/lr_schedule.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

namespace fsdp {
namespace {

TEST(LrSchedule, CosineAtItsBorders) {
  const LrSchedule s{LrShape::kCosine, 2.0, 5, 25, 0.25};
  EXPECT_DOUBLE_EQ(s.At(1), 2.0 / 5);
  EXPECT_DOUBLE_EQ(s.At(4), 2.0 * 4 / 5);
  EXPECT_DOUBLE_EQ(s.At(5), 2.0);
  EXPECT_LT(s.At(6), 2.0);
  EXPECT_DOUBLE_EQ(s.At(15), (2.0 + 0.5) / 2);                       // Half way.
  EXPECT_DOUBLE_EQ(s.At(10), 0.5 + 1.5 * (1 + std::sqrt(0.5)) / 2);  // A quarter.
  EXPECT_DOUBLE_EQ(s.At(25), 0.5);
}

TEST(LrSchedule, CosineFallsEverywhereAfterWarmUp) {
  const LrSchedule s{LrShape::kCosine, 1.0, 3, 40, 0.1};
  for (int64_t step = 2; step <= 3; ++step) EXPECT_GT(s.At(step), s.At(step - 1));
  for (int64_t step = 4; step <= 40; ++step) EXPECT_LT(s.At(step), s.At(step - 1));
}

TEST(LrSchedule, WithoutWarmUpTheFirstStepIsNearThePeak) {
  const LrSchedule s{LrShape::kCosine, 1.0, 0, 100, 0.0};
  EXPECT_DOUBLE_EQ(s.At(1), (1 + std::cos(M_PI / 100)) / 2);
  EXPECT_NEAR(s.At(100), 0, 1e-16);
}

TEST(LrSchedule, WarmUpMayLastTheWholeRun) {
  for (const LrShape shape :
       {LrShape::kCosine, LrShape::kLinear, LrShape::kWsd, LrShape::kConstant}) {
    const LrSchedule s{shape, 3.0, 4, 4, 0.1};
    EXPECT_DOUBLE_EQ(s.At(2), 1.5);
    EXPECT_DOUBLE_EQ(s.At(4), 3.0);
  }
}

TEST(LrSchedule, ARunOfOneStep) {
  EXPECT_DOUBLE_EQ((LrSchedule{LrShape::kCosine, 3.0, 0, 1, 0.5}.At(1)), 1.5);
  EXPECT_DOUBLE_EQ((LrSchedule{LrShape::kCosine, 3.0, 1, 1, 0.5}.At(1)), 3.0);
}

TEST(LrSchedule, ConstantStaysAfterWarmUp) {
  const LrSchedule s{LrShape::kConstant, 3.0, 2, 10, 0.1};
  EXPECT_DOUBLE_EQ(s.At(1), 1.5);
  for (int64_t step = 2; step <= 10; ++step) EXPECT_DOUBLE_EQ(s.At(step), 3.0);
}

TEST(LrSchedule, LinearAtItsBorders) {
  const LrSchedule s{LrShape::kLinear, 2.0, 5, 25, 0.25};
  EXPECT_DOUBLE_EQ(s.At(5), 2.0);
  EXPECT_DOUBLE_EQ(s.At(6), 2.0 - 1.5 / 20);
  EXPECT_DOUBLE_EQ(s.At(15), 1.25);
  EXPECT_DOUBLE_EQ(s.At(25), 0.5);
}

TEST(LrSchedule, WsdStaysAndThenDecays) {
  LrSchedule s{LrShape::kWsd, 2.0, 5, 100, 0.25, 16, LrDecay::kSqrt};
  EXPECT_DOUBLE_EQ(s.At(2), 2.0 * 2 / 5);
  for (int64_t step = 5; step <= 84; ++step) EXPECT_DOUBLE_EQ(s.At(step), 2.0) << step;
  EXPECT_DOUBLE_EQ(s.At(88), 2.0 - 1.5 * 0.5);  // The root of a quarter.
  EXPECT_DOUBLE_EQ(s.At(100), 0.5);
  s.decay = LrDecay::kLinear;
  EXPECT_DOUBLE_EQ(s.At(88), 2.0 - 1.5 * 0.25);
  EXPECT_DOUBLE_EQ(s.At(100), 0.5);
  s.decay = LrDecay::kCosine;
  EXPECT_DOUBLE_EQ(s.At(92), 1.25);
  EXPECT_DOUBLE_EQ(s.At(100), 0.5);
  s.decay_steps = 0;
  EXPECT_DOUBLE_EQ(s.At(100), 2.0);
}

TEST(LrSchedule, PastTheEndTheLastRateStays) {
  for (const LrShape shape : {LrShape::kCosine, LrShape::kLinear, LrShape::kWsd}) {
    const LrSchedule s{shape, 1.0, 3, 10, 0.25, 4};
    EXPECT_DOUBLE_EQ(s.At(11), 0.25);
    EXPECT_DOUBLE_EQ(s.At(1000), 0.25);
  }
  EXPECT_DOUBLE_EQ((LrSchedule{LrShape::kCosine, 1.0, 4, 4, 0.1}.At(5)), 1.0);  // Nothing falls.
}

// Its table: the settings are in the sentence before it.
TEST(LrSchedule, IsAsDocsTrainingSays) {
  std::ifstream page("docs/training.md");
  std::vector<int64_t> steps;
  int rows = 0;
  for (std::string line; std::getline(page, line);) {
    if (!line.starts_with("| ")) continue;
    std::vector<std::string> cells;
    std::istringstream row(line.substr(2));
    for (std::string cell; std::getline(row, cell, '|');) {
      const size_t begin = cell.find_first_not_of(' ');
      cells.push_back(begin == std::string::npos
                          ? ""
                          : cell.substr(begin, cell.find_last_not_of(' ') + 1 - begin));
    }
    if (cells[0] == "schedule") {
      for (size_t i = 2; i < cells.size(); ++i) {
        steps.push_back(std::stoll(cells[i].substr(cells[i].find_first_of("0123456789"))));
      }
      continue;
    }
    LrSchedule s{LrShape::kConstant, 1.0, 10, 100, 0.1, 10};
    if (cells[0] == "cosine") {
      s.shape = LrShape::kCosine;
    } else if (cells[0] == "linear") {
      s.shape = LrShape::kLinear;
    } else if (cells[0] == "wsd") {
      s.shape = LrShape::kWsd;
      s.decay = cells[1] == "sqrt"     ? LrDecay::kSqrt
                : cells[1] == "linear" ? LrDecay::kLinear
                                       : LrDecay::kCosine;
    } else if (cells[0] != "constant") {
      continue;
    }
    ++rows;
    ASSERT_EQ(cells.size(), steps.size() + 2) << line;
    for (size_t i = 0; i < steps.size(); ++i) {
      EXPECT_NEAR(s.At(steps[i]), std::stod(cells[i + 2]), 0.5001e-4) << line;
    }
  }
  EXPECT_EQ(rows, 6);
  EXPECT_EQ(steps.size(), 7u);
}

}  // namespace
}  // namespace fsdp
