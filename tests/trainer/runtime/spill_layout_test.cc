#include "trainer/runtime/spill_layout.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <random>
#include <stdexcept>
#include <vector>

namespace fsdp {
namespace {

TEST(SpillLayout, LaysTheTensorsOfAUnitSideBySide) {
  const std::vector<SpillTensor> tensors = {{2, 1}, {0, 4096}, {2, 4097}, {0, 8191}, {2, 0}};
  const SpillLayout layout = LayOutSpill(tensors);
  EXPECT_EQ(layout.offsets, (std::vector<int64_t>{12288, 0, 16384, 4096, 24576}));
  ASSERT_EQ(layout.units.size(), 3);
  const int64_t borders[3][2] = {{0, 12288}, {12288, 12288}, {12288, 24576}};
  for (int unit = 0; unit < 3; ++unit) {
    EXPECT_EQ(layout.units[unit].begin, borders[unit][0]);
    EXPECT_EQ(layout.units[unit].end, borders[unit][1]);
  }
  EXPECT_EQ(layout.bytes, 24576);
}

TEST(SpillLayout, GivesEachTensorBytesOfItsOwn) {
  std::mt19937 random(1);
  for (int round = 0; round < 100; ++round) {
    std::vector<SpillTensor> tensors(random() % 20);
    for (SpillTensor& tensor : tensors) {
      tensor = {static_cast<int>(random() % 5), static_cast<int64_t>(random() % 20000)};
    }
    const SpillLayout layout = LayOutSpill(tensors);
    std::vector<int> owner(layout.bytes / kSpillAlignment, -1);
    for (size_t t = 0; t < tensors.size(); ++t) {
      const int64_t begin = layout.offsets[t];
      const SpillLayout::Range unit = layout.units[tensors[t].unit];
      ASSERT_EQ(begin % kSpillAlignment, 0);
      ASSERT_LE(unit.begin, begin);
      ASSERT_LE(begin + tensors[t].bytes, unit.end);
      for (int64_t at = begin; at < begin + tensors[t].bytes; at += kSpillAlignment) {
        int& block = owner[at / kSpillAlignment];
        ASSERT_EQ(block, -1);
        block = static_cast<int>(t);
      }
    }
    for (const int block : owner) EXPECT_NE(block, -1);  // Nothing is lost.
  }
}

TEST(SpillLayout, IsEmptyWithoutTensors) {
  const SpillLayout layout = LayOutSpill({});
  EXPECT_TRUE(layout.offsets.empty() && layout.units.empty());
  EXPECT_EQ(layout.bytes, 0);
}

TEST(SpillLayout, RefusesWhatIsNone) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  for (const std::vector<SpillTensor>& tensors : std::vector<std::vector<SpillTensor>>{
           {{-1, 1}}, {{0, -1}}, {{0, kMost}}, {{0, kMost / 2}, {1, kMost / 2 + 1}}}) {
    EXPECT_THROW(LayOutSpill(tensors), std::invalid_argument);
  }
}

}  // namespace
}  // namespace fsdp
