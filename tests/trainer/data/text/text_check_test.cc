#include <gtest/gtest.h>
#include <zlib.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "tests/testing/fresh_directory.h"
#include "trainer/core/errors.h"
#include "trainer/data/text/text_source.h"

namespace fsdp {
namespace {

namespace fs = std::filesystem;

class TextCheckTest : public ::testing::Test {
 protected:
  std::string Write(const std::string& name, const std::string& contents) {
    const std::string path = dir_ / name;
    if (name.ends_with(".gz")) {
      const gzFile file = gzopen(path.c_str(), "wb");
      gzwrite(file, contents.data(), static_cast<unsigned>(contents.size()));
      gzclose(file);
    } else {
      std::ofstream(path, std::ios::binary) << contents;
    }
    return path;
  }

  std::string Invalid(const std::string& text, size_t most = std::string::npos) {
    const auto found = FindTooInvalid(FileContents(Write("a.txt", text)), most);
    if (!found) return "";
    EXPECT_EQ(found->refusal.find("data: " + found->what + ": convert it"), 0) << found->refusal;
    return found->what.substr((dir_ / "a.txt: ").string().size());
  }

  const fs::path dir_ =
      testing::FreshDirectory(::testing::UnitTest::GetInstance()->current_test_info()->name());
};

std::string MessageOf(const std::vector<std::string>& paths) {
  try {
    CheckFormats(paths);
  } catch (const DataError& error) {
    return error.what();
  }
  return "no error";
}

TEST_F(TextCheckTest, FormatsAreRefusedWhereverTheyHide) {
  const std::string text = Write("text.txt", "text"), more = Write("more.txt.gz", "more");
  const std::string parquet = "PAR1\x15\x04" + std::string(100, '\0') + "PAR1";
  EXPECT_EQ(MessageOf({text, more}), "no error");
  const std::string plain = Write("a.jsonl", parquet), packed = Write("a.gz", parquet);
  EXPECT_EQ(
      MessageOf({text, plain}).find("data: " + plain + ": is Parquet, not text: convert it: "), 0);
  EXPECT_EQ(MessageOf({more, packed})
                .find("data: " + packed + ": decompressed, it is Parquet, not text: convert it: " +
                      "gunzip -k " + packed + " && python3 "),
            0)
      << MessageOf({more, packed});
  EXPECT_THROW(CheckFormat(FileContents(packed)), DataError);
}

TEST_F(TextCheckTest, OnePlaceOfAThousandMayBeNoUtf8) {
  const std::string e = "\xc3\xa9";
  std::string text;
  for (int i = 0; i < 499; ++i) text += e + "a";  // 998 characters in 1497 bytes.
  EXPECT_EQ(Invalid(text), "");
  EXPECT_EQ(Invalid(text + "a\xff"), "");  // 1 of 1000.
  EXPECT_EQ(Invalid(text + "\xff"), "1 of 999 places is no UTF-8, the first at byte 1497");
  // Python's decode("utf-8", "replace") makes one U+FFFD of the first two bytes, one of the last.
  EXPECT_EQ(Invalid(text + "\xe2\x82\xff" + text),
            "2 of 1998 places are no UTF-8, the first at byte 1497");
  EXPECT_EQ(Invalid(text + text + "\xe2\x82" + text), "");
  EXPECT_EQ(Invalid("\xff"), "1 of 1 places is no UTF-8, the first at byte 0");
  EXPECT_EQ(Invalid("abc\xff", /*most=*/3), "");
}

TEST_F(TextCheckTest, SaysHowToConvertOrToGoOn) {
  const auto cure = [](const std::string& message) {
    return message.substr(message.find("another encoding: "));
  };
  const std::string plain = Write("a.txt", "\xe9"), packed = Write("a.jsonl.gz", "\xe9");
  const std::string all =
      "; data.allow_invalid_text: true (tokenize: --allow-invalid-text) goes on with it as it is";
  EXPECT_EQ(
      cure(FindTooInvalid(FileContents(plain))->refusal),
      "another encoding: iconv -f LATIN1 -t UTF-8 " + plain + " > " + plain + ".utf8.txt" + all);
  EXPECT_EQ(cure(FindTooInvalid(FileContents(packed))->refusal),
            "another encoding: zcat " + packed + " | iconv -f LATIN1 -t UTF-8 > " +
                packed.substr(0, packed.size() - 3) + ".utf8.jsonl" + all);
}

}  // namespace
}  // namespace fsdp
