#include "trainer/core/utf8.h"

#include <gtest/gtest.h>

namespace fsdp {
namespace {

using std::string_literals::operator""s;

// Unicode 15, table 3-7, at its edges.
TEST(Utf8, LengthFollowsTheTableOfWellFormedSequences) {
  for (const std::string& good :
       {"a"s, "\x7f"s, "\0"s, "\xc2\x80"s, "\xdf\xbf"s, "\xe0\xa0\x80"s, "\xed\x9f\xbf"s,
        "\xee\x80\x80"s, "\xef\xbf\xbf"s, "\xf0\x90\x80\x80"s, "\xf4\x8f\xbf\xbf"s}) {
    EXPECT_EQ(Utf8Length(good), good.size());
    EXPECT_EQ(Utf8Length(good + "\x80"), good.size());
    // Cut off, it is none.
    for (size_t n = 0; n < good.size(); ++n) EXPECT_EQ(Utf8Length(good.substr(0, n)), 0u);
  }
  for (const std::string& bad :
       {"\x80"s, "\xbf"s, "\xc0\x80"s, "\xc1\xbf"s, "\xc3("s, "\xe0\x9f\xbf"s, "\xed\xa0\x80"s,
        "\xe2\x82("s, "\xf0\x8f\xbf\xbf"s, "\xf4\x90\x80\x80"s, "\xf5\x80\x80\x80"s, "\xff"s}) {
    EXPECT_EQ(Utf8Length(bad), 0u);
  }
}

TEST(WithShortNumbers, CutsWhatNobodyReads) {
  const std::string most(40, '1');
  EXPECT_EQ(WithShortNumbers("a 12 b " + most + "x7"), "a 12 b " + most + "x7");
  EXPECT_EQ(WithShortNumbers("-" + most + "2.5 and " + most + "3"),
            "-" + std::string(20, '1') + "....5 and " + std::string(20, '1') + "...");
  EXPECT_EQ(WithShortNumbers(""), "");
}

TEST(Printable, KeepsTextAndShowsTheRest) {
  EXPECT_EQ(Printable("a\tb\nçé ═ ‘x’ \xf0\x9f\x98\x80 \\"), "a\tb\nçé ═ ‘x’ \xf0\x9f\x98\x80 \\");
  EXPECT_EQ(Printable("\x1b[31m\r\0\x7f"s), "\\x1b[31m\\x0d\\x00\\x7f");
  EXPECT_EQ(Printable("\xc2\x9b"
                      "31m"),
            "\\xc2\\x9b31m");  // A one-character escape.
  EXPECT_EQ(Printable("a\xe2\x82z\xff"), "a\\xe2\\x82z\\xff");
  EXPECT_EQ(Printable(""), "");
  EXPECT_EQ(PrintableName("a\tb\nçé\x1b[2J"), "a\\x09b\\x0açé\\x1b[2J");
}

}  // namespace
}  // namespace fsdp
