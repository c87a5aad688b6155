#include "trainer/core/nearest.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace fsdp {
namespace {

TEST(EditDistance, CountsEdits) {
  EXPECT_EQ(EditDistance("", ""), 0);
  EXPECT_EQ(EditDistance("", "abc"), 3);
  EXPECT_EQ(EditDistance("steps", "step"), 1);
  EXPECT_EQ(EditDistance("hiden", "hidden"), 1);
  EXPECT_EQ(EditDistance("tarin", "train"), 1);  // A swap is one edit.
  EXPECT_EQ(EditDistance("kitten", "sitting"), 3);
  EXPECT_EQ(EditDistance("ca", "abc"), 3);  // No part is edited twice.
}

TEST(Nearest, FindsWhatWasMeant) {
  const std::vector<std::string> keys = {
      "hidden_size", "num_hidden_layers", "lr", "warmup_steps", "steps", "eps"};
  EXPECT_EQ(Nearest("hiden_size", keys), "hidden_size");
  EXPECT_EQ(Nearest("hidden-size", keys), "hidden_size");
  EXPECT_EQ(Nearest("HIDDEN_SIZE", keys), "hidden_size");
  EXPECT_EQ(Nearest("step", keys), "steps");
  EXPECT_EQ(Nearest("warmup", keys), "warmup_steps");  // A part of it.
  EXPECT_EQ(Nearest("the_steps_all", keys), "steps");  // It is a part.
  EXPECT_EQ(Nearest("hidden", keys), "hidden_size");   // The shortest of two.
  EXPECT_EQ(Nearest("lrr", keys), "lr");
  EXPECT_EQ(Nearest("x", keys), "");
  EXPECT_EQ(Nearest("l", keys), "");  // One letter away, but there is only one.
  EXPECT_EQ(Nearest("rl", keys), "lr");
  EXPECT_EQ(Nearest("", keys), "");
  EXPECT_EQ(Nearest("dropout", keys), "");
  EXPECT_EQ(Nearest(std::string(1000000, 's'), keys), "");
  EXPECT_EQ(NearestSpelling("hiden_size", keys), "hidden_size");
  EXPECT_EQ(NearestSpelling("warmup", keys), "");
}

}  // namespace
}  // namespace fsdp
