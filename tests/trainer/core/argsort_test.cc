#include "trainer/core/argsort.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

namespace fsdp {
namespace {

TEST(Argsort, IsStable) {
  std::mt19937 random(1);
  for (const size_t size : {size_t{0}, size_t{1}, size_t{17}, size_t{1000}}) {
    for (const int32_t vocab : {1, 3, 50257}) {
      std::vector<int32_t> ids(size), order(size, -1), want(size);
      for (int32_t& id : ids) id = static_cast<int32_t>(random() % static_cast<uint32_t>(vocab));
      Argsort(ids, order);
      std::iota(want.begin(), want.end(), 0);
      std::stable_sort(want.begin(), want.end(),
                       [&](int32_t a, int32_t b) { return ids[a] < ids[b]; });
      EXPECT_EQ(order, want) << size << " of " << vocab;
    }
  }
}

}  // namespace
}  // namespace fsdp
