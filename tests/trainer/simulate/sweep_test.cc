#include "trainer/simulate/sweep.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/testing/error_of.h"
#include "trainer/core/errors.h"

namespace fsdp {
namespace {

using Strings = std::vector<std::string>;

std::string MistakeOf(const Strings& flags) {
  return testing::ErrorOf<ConfigError>([&] { SweptKeys(flags); });
}

TEST(Sweep, CommasInsideBracketsAndQuotesDoNotSplit) {
  const std::vector<SweptKey> keys =
      SweptKeys({"a.b= 1, [2, 3] ,{c: 4, d: [5, 6]},\"x,y\"", "world_size=8"});
  ASSERT_EQ(keys.size(), 2);
  EXPECT_EQ(keys[0].key, "a.b");
  EXPECT_EQ(keys[0].values, (Strings{"1", "[2, 3]", "{c: 4, d: [5, 6]}", "\"x,y\""}));
  EXPECT_EQ(keys[1].values, Strings{"8"});
}

TEST(Sweep, TheLastKeyChangesFastest) {
  EXPECT_EQ(SweptPoints(SweptKeys({"a=1,2", "b=x,y,z"})),
            (std::vector<Strings>{
                {"1", "x"}, {"1", "y"}, {"1", "z"}, {"2", "x"}, {"2", "y"}, {"2", "z"}}));
}

TEST(Sweep, WrongFlagsAreOneErrorEach) {
  EXPECT_EQ(MistakeOf({"=1,2"}), "--sweep =1,2: no key; want KEY=V1,V2");
  EXPECT_EQ(MistakeOf({"a"}), "--sweep a: a value is missing; want a=V1,V2");
  EXPECT_EQ(MistakeOf({"a="}), "--sweep a=: a value is missing; want a=V1,V2");
  EXPECT_EQ(MistakeOf({"a=1,,2"}), "--sweep a=1,,2: a value is missing; want a=V1,V2");
  EXPECT_EQ(MistakeOf({"a=1", "b=2", "a=3"}), "--sweep a: is swept twice");
  EXPECT_EQ(MistakeOf({"a=1", "b=2"}), "");
}

}  // namespace
}  // namespace fsdp
