#include <gtest/gtest.h>

#include "trainer/launch/launch_command.h"

namespace fsdp {
namespace {

TEST(StrayWord, SaysWhatToType) {
  EXPECT_EQ(MeantBy("tiny.yaml", "fsdp-train"),
            "a recipe is named by --config: fsdp-train --config tiny.yaml");
  EXPECT_EQ(MeantBy("my runs/a.yml", "fsdp-train launch --"),
            "a recipe is named by --config: fsdp-train launch -- --config 'my runs/a.yml'");
  EXPECT_EQ(MeantBy("it's.yaml", "f"), "a recipe is named by --config: f --config 'it'\\''s.yaml'");
  EXPECT_EQ(MeantBy("optimizer.lr=3", "fsdp-train"),
            "a key is set by --set: fsdp-train --set optimizer.lr=3");
  EXPECT_EQ(MeantBy("fsdp.cpu_offload={optimizer: true}", "fsdp-train"),
            "a key is set by --set: fsdp-train --set 'fsdp.cpu_offload={optimizer: true}'");
}

TEST(StrayWord, OfOthersSaysNothing) {
  for (const char* const word : {"", "train", "-x.yaml", "--lr=3", "=3", "LR=3", "a b=3", "yaml"}) {
    EXPECT_EQ(MeantBy(word, "fsdp-train"), "") << word;
  }
}

}  // namespace
}  // namespace fsdp
