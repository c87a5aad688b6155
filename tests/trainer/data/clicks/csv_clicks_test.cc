#include "trainer/data/clicks/csv_clicks.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

#include "tests/testing/fresh_directory.h"
#include "trainer/core/atomic_file.h"
#include "trainer/core/errors.h"
#include "trainer/core/philox.h"

namespace fsdp::testing {
namespace {

using Strings = std::vector<std::string>;

// One number, one id, and up to three ids.
const char kHeader[] = "who,click,price,page,tags\n";

class CsvFiles : public ::testing::Test {
 protected:
  std::string Write(const std::string& name, const std::string& text) const {
    WriteAtomicFile(directory_ + "/" + name, text);
    return directory_ + "/" + name;
  }
  std::shared_ptr<const ClickStore> Open(const Strings& paths, const Strings& dense = {"price"},
                                         const Strings& categorical = {"page", "tags"}) const {
    return OpenCsvClicks({.paths = paths,
                          .label = "click",
                          .dense = dense,
                          .categorical = categorical,
                          .columns = {1, {1, 3}, {1000, 7}},
                          .where = "paths",
                          .where_label = "label",
                          .where_dense = "dense",
                          .where_categorical = "categorical"});
  }
  // The error about a file of that text, without its directory.
  std::string Refusal(const std::string& text, const Strings& dense = {"price"}) const {
    const std::string path = Write("a.csv", text);
    try {
      Open({path}, dense);
      return "";
    } catch (const DataError& error) {
      std::string what = error.what();
      for (size_t at; (at = what.find(directory_ + "/")) != std::string::npos;) {
        what.erase(at, directory_.size() + 1);
      }
      return what;
    }
  }

  const std::string directory_ = FreshDirectory("csv");
};

struct Click {
  float label = -1;
  std::vector<float> dense = {-1};
  std::vector<int32_t> ids = std::vector<int32_t>(8, -7);
};

Click Read(const ClickStore& store, int64_t i) {
  Click click;
  click.label = store.Read(i, click.dense, click.ids);
  return click;
}

TEST_F(CsvFiles, AreRowsOfNumbersIdsAndLabels) {
  const std::string a =
      Write("a.csv", std::string("\xef\xbb\xbf") + kHeader +
                         "x,1, 2.5e1 ,7,1|2|3\r\n"
                         "\n"
                         "\"y, \"\"z\"\"\",0,-3,0xFFFFFFFFFFFFFFFE,\"4294967296\"\n");
  const std::string b = Write("b.csv", "tags,page,price,click\n5|6,,,1");
  const auto store = Open({a, b});
  ASSERT_EQ(store->size(), 3);
  const Click first = Read(*store, 0), second = Read(*store, 1), third = Read(*store, 2);
  EXPECT_EQ(first.label, 1);
  EXPECT_EQ(first.dense[0], 25);
  EXPECT_EQ(first.ids, (std::vector<int32_t>{7, 0, 1, 0, 2, 0, 3, 0}));
  EXPECT_EQ(second.label, 0);
  EXPECT_EQ(second.dense[0], -3);
  EXPECT_EQ(second.ids, (std::vector<int32_t>{-2, -1, 0, 1, -1, -1, -1, -1}));
  EXPECT_EQ(third.label, 1);
  EXPECT_EQ(third.dense[0], 0);
  EXPECT_EQ(third.ids, (std::vector<int32_t>{-1, -1, 5, 0, 6, 0, -1, -1}));
  EXPECT_EQ(store->Describe(), a + " and 1 more file");
  EXPECT_EQ(store->Files().size(), 2u);
  EXPECT_FALSE(store->Probability(0));
}

// Each names its row, modulo 1000 and 7; none is an absent one.
TEST_F(CsvFiles, HaveIdsOfAll64Bits) {
  const std::pair<const char*, uint64_t> ids[] = {{"0", 0},
                                                  {"9223372036854775807", (uint64_t{1} << 63) - 1},
                                                  {"9223372036854775808", uint64_t{1} << 63},
                                                  {"18446744073709551614", ~uint64_t{1}},
                                                  {"18446744073709551615", ~uint64_t{0}},
                                                  {"0xffffffffffffffff", ~uint64_t{0}},
                                                  {"-1", ~uint64_t{0}},
                                                  {"-2", ~uint64_t{1}},
                                                  {"-9223372036854775808", uint64_t{1} << 63}};
  for (const auto& [text, want] : ids) {
    const auto store =
        Open({Write("ids.csv", kHeader + ("x,1,2," + std::string(text) + ",5|" + text + "\n"))});
    const Click click = Read(*store, 0);
    const auto id = [&](size_t slot) {
      return static_cast<uint32_t>(click.ids[2 * slot]) |
             uint64_t{static_cast<uint32_t>(click.ids[2 * slot + 1])} << 32;
    };
    EXPECT_NE(id(0), kNoId) << text;
    EXPECT_EQ(id(0) % 1000, want % 1000) << text;
    EXPECT_NE(id(2), kNoId) << text;
    EXPECT_EQ(id(2) % 7, want % 7) << text;
    EXPECT_EQ(id(3), kNoId);
  }
}

TEST_F(CsvFiles, SayWhatIsWrongAndWhere) {
  const std::string head = std::string(kHeader) + "x,1,2,3,4\n";
  EXPECT_EQ(Refusal(head), "");
  EXPECT_EQ(Refusal(head + "x,,2,3,4\n"), "data: a.csv:3: column `click`: has no label");
  EXPECT_EQ(Refusal(head + "x,2,2,3,4\n"),
            "data: a.csv:3: column `click`: `2` is no label, which is 0 or 1");
  EXPECT_EQ(Refusal(head + "\nx,1,many,3,4\n"),
            "data: a.csv:4: column `price`: `many` is no number");
  EXPECT_EQ(Refusal(head + "x,1,inf,3,4\n"), "data: a.csv:3: column `price`: `inf` is no number");
  for (const char* none : {"news", "18446744073709551616", "-9223372036854775809",
                           "0x10000000000000000", "-0x1", "1.5", "-", "0x"}) {
    EXPECT_EQ(Refusal(head + "x,1,2," + none + ",4\n"),
              std::string("data: a.csv:3: column `page`: `") + none +
                  "` is no id, which is a whole number of 64 bits");
  }
  EXPECT_EQ(Refusal(head + "x,1,2,3|4,5\n"),
            "data: a.csv:3: column `page`: has more than 1 id, which is what the model's bag of "
            "this column holds");
  EXPECT_EQ(Refusal(head + "x,1,2,3,5|\n"),
            "data: a.csv:3: column `tags`: `` is no id: the cell ends with `|`");
  EXPECT_EQ(Refusal(head + "x,1,2,3\n"),
            "data: a.csv:3: has 4 cells, and the file's first line names 5 columns");
  EXPECT_EQ(Refusal(head + "x,1,2,3,\"4\n"),
            "data: a.csv:3: column 5: a quoted cell does not end on its line");
  EXPECT_EQ(Refusal(head + "\"x\"y,1,2,3,4\n"),
            "data: a.csv:3: column 2: text follows a quoted cell");
  EXPECT_EQ(Refusal(head, {"prize"}),
            "dense: a.csv has no column `prize`: it has `who`, `click`, `price`, `page`, `tags`");
  EXPECT_EQ(Refusal("click,price,price,page,tags\n1,2,3,4,5\n"),
            "dense: a.csv has two columns `price`");
  EXPECT_EQ(Refusal(kHeader), "data: a.csv: holds no rows");
  EXPECT_EQ(Refusal("\n\n"), "data: a.csv: names no columns");
  EXPECT_EQ(Refusal("{\"click\": 1}\n"), "data: a.csv: is JSON, not a .csv: convert it");
  EXPECT_EQ(Refusal("PAR1\x15\x04\xe9PAR1"), "data: a.csv: is Parquet, not a .csv: convert it");
}

// Whatever stands in a file, its lines are clicks or the file is refused; the sanitizers see the
// rest.
TEST_F(CsvFiles, SurviveMutations) {
  std::string file = kHeader;
  for (int i = 0; i < 8; ++i) {
    file += "\"a \"\"quoted\"\" one\"," + std::to_string(i % 2) + ",1.5e-3,0x12ab,1|22|333\r\n";
  }
  const RandomStream random(3, "csv");
  int refused = 0;
  constexpr int kTimes = 600;
  const char kLikely[] = ",\"|\n\r01x\0-.e";
  for (uint64_t i = 0; i < kTimes; ++i) {
    std::string changed = file;
    for (uint64_t k = 0; k <= i % 4; ++k) {
      const uint64_t at = 8 * (4 * i + k);
      changed[random.Below(at, file.size())] =
          i % 2 == 0 ? kLikely[random.Below(at + 1, sizeof(kLikely) - 1)]
                     : static_cast<char>(random.Below(at + 1, 256));
    }
    if (i % 5 == 0) changed.resize(1 + random.Below(8 * 4 * kTimes + i, file.size() - 1));
    const std::string path = directory_ + "/m.csv";
    std::ofstream(path, std::ios::binary) << changed;
    try {
      const auto store = Open({path});
      for (int64_t row = 0; row < store->size(); ++row) {
        const Click click = Read(*store, row);
        ASSERT_TRUE(click.label == 0 || click.label == 1);
        for (const int32_t word : click.ids) ASSERT_NE(word, -7);
      }
    } catch (const DataError&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, kTimes / 10);
  EXPECT_LT(refused, kTimes);
}

}  // namespace
}  // namespace fsdp::testing
