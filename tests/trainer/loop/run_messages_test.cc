#include "trainer/loop/run_messages.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "trainer/recipe/recipe.h"

namespace fsdp {
namespace {

TEST(RunWords, WhatTrains) {
  EXPECT_EQ(WhatTrains(366'000, 366'000), "366k parameters");
  EXPECT_EQ(WhatTrains(37'000, 1'600'000), "trains 37.0k of 1.60M parameters");
}

TEST(RunWords, WhatIsSaved) {
  const auto saved = [](std::optional<int64_t> every, int64_t keep_last) {
    CheckpointRecipe checkpoint;
    checkpoint.every = every;
    checkpoint.keep_last = keep_last;
    return WhatIsSaved(checkpoint);
  };
  EXPECT_EQ(saved(std::nullopt, 3), "saves nothing, unless a signal asks for it");
  EXPECT_EQ(saved(0, 3), "saves once, at the end");
  EXPECT_EQ(saved(200, 3), "saves every 200 steps and at the end, and keeps the newest 3");
  EXPECT_EQ(saved(200, 1), "saves every 200 steps and at the end, and keeps the newest");
  EXPECT_EQ(saved(1, 0), "saves every step");
  CheckpointRecipe checkpoint;
  checkpoint.every_minutes = 30;
  checkpoint.keep_best = 2;
  EXPECT_EQ(WhatIsSaved(checkpoint),
            "saves every 30 minutes and at the end, and keeps the newest 3 and the best 2");
  checkpoint.every = 5;
  checkpoint.every_minutes = 1;
  checkpoint.keep_best = 1;
  EXPECT_EQ(
      WhatIsSaved(checkpoint),
      "saves every 5 steps, every minute and at the end, and keeps the newest 3 and the best");
  checkpoint.every.reset();
  checkpoint.keep_last = 0;
  EXPECT_EQ(WhatIsSaved(checkpoint), "saves every minute");
}

TEST(RunWords, DescribeDataUse) {
  EXPECT_EQ(DescribeDataUse({{920, 1000, 64000}}, 64), "0.92 epochs of 64.0k tokens");
  EXPECT_EQ(DescribeDataUse({{920, 1000, 64000}, {31, 10, 640}}, 64),
            "0.92 epochs of 64.0k tokens, 3.1 of 640");
  EXPECT_EQ(DescribeDataUse({{2, 1000, 1000}}, 1), "0.002 epochs of 1.00k tokens");
  EXPECT_EQ(DescribeDataUse({{12345, 1, 8}}, 8), "12345 epochs of 8 tokens");
  // Never rounded up to full.
  EXPECT_EQ(DescribeDataUse({{2000, 1000, 63990, 4096, "document"}}, 64),
            "2 epochs of 64.0k tokens in 4.10k documents, which fill 99.9 % of 1.00k rows");
  EXPECT_EQ(DescribeDataUse({{1, 2, 100, 3}, {1, 1, 64, 1}}, 64),
            "0.5 epochs of 100 tokens in 3 documents, which fill 78.1 % of 2 rows, 1 of 64 in 1 "
            "document, which fill 100.0 % of 1 row");
}

TEST(RunWords, WhatIsLeftOut) {
  DataRecipe data;
  data.seq_len = 1024;
  data.too_long = TooLong::kCut;
  EXPECT_TRUE(WhatIsLeftOut("a", {.noun = "document", .samples = 9}, data).empty());
  EXPECT_EQ(WhatIsLeftOut("a", {"document", 10, 2, 1, 12}, data),
            (std::vector<std::string>{
                "data.too_long: 1 of the 10 documents of a is longer than data.seq_len = 1024: "
                "cut, 12 tokens less",
                "data: 2 of the 10 documents of a have one token, which predicts nothing: left "
                "out"}));
  // A cut that takes all targets away is none.
  EXPECT_EQ(WhatIsLeftOut("a", {"pair", 9, 0, 1, 205, 1, 205}, data),
            (std::vector<std::string>{"data.too_long: 1 of the 9 pairs of a is longer than "
                                      "data.seq_len = 1024: left out, because the cut leaves it no "
                                      "target, 205 tokens less"}));
  EXPECT_EQ(WhatIsLeftOut("a", {"pair", 9, 0, 5, 100, 2, 70}, data),
            (std::vector<std::string>{
                "data.too_long: 3 of the 9 pairs of a are longer than data.seq_len = 1024: cut, 30 "
                "tokens less",
                "data.too_long: 2 of the 9 pairs of a are longer than data.seq_len = 1024: left "
                "out, because the cut leaves them no target, 70 tokens less"}));
  data.too_long = TooLong::kDrop;
  EXPECT_EQ(WhatIsLeftOut("a", {"document", 12'345, 1, 678, 1'234'567}, data),
            (std::vector<std::string>{
                "data.too_long: 678 of the 12.3k documents of a are longer than data.seq_len = "
                "1024: dropped, 1.23M tokens less",
                "data: 1 of the 12.3k documents of a has one token, which predicts nothing: left "
                "out"}));
}

TEST(RunWords, NextCommands) {
  EXPECT_EQ(NextCommands("fsdp-train", "runs/a", "runs/a/checkpoints/step_5", Speech::kText, true),
            (std::vector<std::string>{
                "fsdp-train generate --checkpoint runs/a/checkpoints/step_5 --prompt TEXT",
                "fsdp-train checkpoint export runs/a/checkpoints/step_5 --out DIR",
                "fsdp-train report runs/a"}));
  EXPECT_EQ(NextCommands("f", "r", "c", Speech::kChat, true)[0], "f generate --checkpoint c");
  EXPECT_EQ(NextCommands("f", "r", "c", Speech::kNone, true)[0], "f checkpoint export c --out DIR");
  EXPECT_EQ(NextCommands("./f", "runs/a", "", Speech::kText, true),
            std::vector<std::string>{"./f report runs/a"});
  EXPECT_EQ(NextCommands("f", "r", "c", Speech::kNone, false),
            std::vector<std::string>{"f report r"});
  EXPECT_EQ(NextCommands("f", "my runs/a", "my runs/a/c", Speech::kChat, true),
            (std::vector<std::string>{"f generate --checkpoint 'my runs/a/c'",
                                      "f checkpoint export 'my runs/a/c' --out DIR",
                                      "f report 'my runs/a'"}));
}

TEST(RunWords, HowMany) {
  EXPECT_EQ(HowMany(48, 12'288), "12.3k tokens");
  EXPECT_EQ(HowMany(48, 48), "48 samples");
}

}  // namespace
}  // namespace fsdp
