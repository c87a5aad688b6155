#include "trainer/data/samples/fitted_samples.h"

#include <gtest/gtest.h>

#include <fstream>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/testing/fresh_directory.h"
#include "trainer/core/errors.h"
#include "trainer/data/samples/document_store.h"
#include "trainer/data/text/text_source.h"
#include "trainer/data/tokens/token_source.h"

namespace fsdp {
namespace {

// Bytes of text whose documents end at a full stop.
std::shared_ptr<const TokenSource> Text(const std::string& text) {
  const std::string path = testing::FreshDirectory("documents") + "/a.txt";
  std::ofstream(path, std::ios::binary) << text;
  return WithEot(std::make_shared<TextSource>(std::vector<std::string>{path}), '.');
}

FittedSamples Fit(const std::shared_ptr<const TokenSource>& source, int64_t seq_len,
                  TooLong too_long) {
  return {std::make_shared<DocumentStore>(source), seq_len, too_long};
}

std::vector<std::string> Contents(const SampleSource& samples) {
  std::vector<std::string> all;
  for (int64_t i = 0; i < samples.size(); ++i) {
    const auto n = static_cast<size_t>(samples.Length(i));
    std::vector<int32_t> tokens(n, -1);
    std::vector<float> weights(n, -1);
    samples.Read(i, tokens, weights);
    all.emplace_back(tokens.begin(), tokens.end());
    std::vector<float> want(n, 1);
    want.back() = 0;
    EXPECT_EQ(weights, want) << all.back();
    EXPECT_EQ(samples.Targets(i), n - 1) << all.back();
  }
  return all;
}

using Strings = std::vector<std::string>;

std::string WhatOf(const std::function<void()>& call) {
  try {
    call();
  } catch (const DataError& error) {
    return error.what();
  }
  return "no error";
}

TEST(FittedSamples, EndBehindTheirEot) {
  const FittedSamples all = Fit(Text("ab.c.defg.hi"), 5, TooLong::kError);
  EXPECT_EQ(Contents(all), (Strings{"ab.", "c.", "defg.", "hi"}));
  EXPECT_TRUE(all.Describe().ends_with("a.txt"));
  EXPECT_TRUE(all.PlaceOf(2, 1).where.ends_with("a.txt, byte 6"));
  // Across the pieces in which the source is read.
  const std::string longer = std::string(40'000, 'x') + "." + std::string(32'766, 'y') + ".z";
  const FittedSamples two = Fit(Text(longer + "z."), 1 << 16, TooLong::kError);
  ASSERT_EQ(two.size(), 3);
  EXPECT_EQ(two.Length(0), 40'001);
  EXPECT_EQ(two.Length(1), 32'767);
  EXPECT_EQ(Contents(two)[2], "zz.");
}

TEST(FittedSamples, OfOneTokenAreLeftOut) {
  const FittedSamples all = Fit(Text("..ab..c."), 5, TooLong::kError);
  EXPECT_EQ(Contents(all), (Strings{"ab.", "c."}));
  EXPECT_EQ(all.counts().samples, 5);
  EXPECT_EQ(all.counts().untrained, 3);
  EXPECT_EQ(all.counts().longer, 0);
  EXPECT_EQ(WhatOf([] { Fit(Text("..."), 5, TooLong::kCut); }),
            "data: " + ::testing::TempDir() +
                "documents/a.txt: of 3 documents 0 are longer than data.seq_len = 5 and the others "
                "have no target, so nothing is left: give more data, another data.*.eot or a "
                "longer data.seq_len");
}

TEST(FittedSamples, LongerThanARowAreAnErrorOrCutOrDropped) {
  const std::string text = "ab.cdefgh.ij.klmnopqrs.tu.";
  const std::string file = "data: " + ::testing::TempDir() + "documents/a.txt";
  try {
    Fit(Text(text), 5, TooLong::kError);
    FAIL();
  } catch (const DataError& error) {
    EXPECT_EQ(error.code(), ExitCode::kData);
    EXPECT_EQ(error.what(),
              file +
                  ", byte 3: a document of 7 tokens, but a row has data.seq_len = 5 (the first "
                  "of 2 that do not fit; the longest has 10): give data.too_long: cut or drop, "
                  "or a longer data.seq_len");
  }
  EXPECT_EQ(WhatOf([] { Fit(Text("abcdefgh"), 5, TooLong::kError); }),
            file +
                ", byte 0: a document of 8 tokens, but a row has data.seq_len = 5: give the "
                "right data.*.eot, data.too_long: cut or drop, or a longer data.seq_len");
  EXPECT_EQ(WhatOf([&] { Fit(Text(text), 10, TooLong::kError); }), "no error");

  const FittedSamples cut = Fit(Text(text), 5, TooLong::kCut);
  EXPECT_EQ(Contents(cut), (Strings{"ab.", "cdefg", "ij.", "klmno", "tu."}));
  EXPECT_EQ(cut.counts().longer, 2);
  EXPECT_EQ(cut.counts().lost_tokens, 2 + 5);
  const FittedSamples dropped = Fit(Text(text), 5, TooLong::kDrop);
  EXPECT_EQ(Contents(dropped), (Strings{"ab.", "ij.", "tu."}));
  EXPECT_EQ(dropped.counts().longer, 2);
  EXPECT_EQ(dropped.counts().lost_tokens, 7 + 10);
  EXPECT_EQ(dropped.counts().samples, 5);
  EXPECT_THROW(Fit(Text(text), 2, TooLong::kDrop), DataError);
  EXPECT_THROW(Fit(Text(text), 1, TooLong::kCut), DataError);
}

TEST(FittedSamples, HeldOutOnesAreWhole) {
  // 20 tokens, documents at 0, 5, 10 and 15.
  const FittedSamples all = Fit(Text("abcd.efgh.ijkl.mnop."), 5, TooLong::kError);
  const auto held = [&](double fraction) {
    const FittedSamples::Parts parts = all.HoldOut(fraction);
    Strings both = Contents(*parts.train), valid = Contents(*parts.valid);
    both.insert(both.end(), valid.begin(), valid.end());
    EXPECT_EQ(both, Contents(all));
    return valid;
  };
  EXPECT_EQ(held(0.25), (Strings{"mnop."}));
  EXPECT_EQ(held(0.26), (Strings{"mnop."}));  // 5.2 tokens.
  EXPECT_EQ(held(0.49), (Strings{"mnop."}));  // "ijkl." begins before, so it is trained on.
  EXPECT_EQ(held(0.5), (Strings{"ijkl.", "mnop."}));
  EXPECT_EQ(held(0.99), (Strings{"efgh.", "ijkl.", "mnop."}));
  const auto parts = all.HoldOut(0.5);
  EXPECT_TRUE(parts.valid->Describe().starts_with("documents [2, 4) of ")) << "not told apart";
  EXPECT_TRUE(parts.valid->PlaceOf(0, 1).where.ends_with("a.txt, byte 11"));
  EXPECT_EQ(WhatOf([&] { all.HoldOut(0.2); }),
            "data: a fraction of 0.2 of the 20 tokens of " + ::testing::TempDir() +
                "documents/a.txt leaves no whole document on one side: give more data or another "
                "data.valid");
  EXPECT_THROW(all.HoldOut(1), std::invalid_argument);
}

TEST(FittedSamples, RefusesWhatMakesNoSense) {
  const auto text = Text("ab.cd.");
  EXPECT_THROW(Fit(text, 0, TooLong::kError), std::invalid_argument);
  const std::vector<std::string> paths = {::testing::TempDir() + "documents/a.txt"};
  EXPECT_THROW(Fit(std::make_shared<TextSource>(paths), 9, TooLong::kError), std::invalid_argument);
  const FittedSamples all = Fit(text, 5, TooLong::kError);
  std::vector<int32_t> tokens(4);
  std::vector<float> weights(4);
  EXPECT_THROW(all.Read(0, tokens, weights), std::invalid_argument);
  EXPECT_THROW(all.Read(2, tokens, weights), std::invalid_argument);
}

}  // namespace
}  // namespace fsdp
