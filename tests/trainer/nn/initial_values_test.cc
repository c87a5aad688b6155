#include "trainer/nn/initial_values.h"

#include <gtest/gtest.h>

#include <vector>

#include "trainer/core/philox.h"

namespace fsdp {
namespace {

std::vector<float> Initial(const Parameter& p, uint64_t seed) {
  std::vector<float> values(p.shape().NumElements());
  FillInitial(p, seed, 0, values);
  return values;
}

// Values belong to names in files: putting q, k and v into one matrix changes none of them.
TEST(FillInitial, SlicesAreWhatTheyWereAlone) {
  const Init normal{0.5f, 2}, ones{1, 0};
  const Parameter q("q", Shape{5, 3}, normal, true), k("k", Shape{2, 3}, ones, true),
      v("v", Shape{3, 3}, normal, true);
  std::vector<float> want;
  for (const Parameter* p : {&q, &k, &v}) {
    const std::vector<float> part = Initial(*p, 7);
    want.insert(want.end(), part.begin(), part.end());
  }
  const Parameter qkv("qkv", Shape{10, 3}, {{"q", 5, normal}, {"k", 2, ones}, {"v", 3, normal}});
  EXPECT_EQ(Initial(qkv, 7), want);
  EXPECT_NE(Initial(qkv, 8), want);
  EXPECT_NE(want[0], want[21]);
  // By the seed, the name and the element in its tensor, and nothing else.
  EXPECT_EQ(want[14], 0.5f + 2 * RandomStream(7, "q").Normal(14));
  EXPECT_EQ(want[21 + 8], 0.5f + 2 * RandomStream(7, "v").Normal(8));

  // In any pieces, as ranks fill them.
  for (int64_t begin = 0; begin <= 30; ++begin) {
    for (int64_t end = begin; end <= 30; ++end) {
      std::vector<float> part(end - begin);
      FillInitial(qkv, 7, begin, part);
      EXPECT_EQ(part, std::vector<float>(want.begin() + begin, want.begin() + end));
    }
  }
}

}  // namespace
}  // namespace fsdp
