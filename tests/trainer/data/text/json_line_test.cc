#include "trainer/data/text/json_line.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "tests/testing/error_of.h"
#include "trainer/core/errors.h"
#include "trainer/data/chat/chat_template.h"

namespace fsdp {
namespace {

std::string ErrorOf(const std::string& line, const ReadsMember& reads) {
  return testing::ErrorOf<DataError>([&] { PlainJson(line, reads); }, "none");
}

TEST(JsonLine, OnlyWhatIsReadMustBeJson) {
  const auto text = [](const std::string& member) { return member == "text"; };
  for (const char* odd : {"NaN", "-Infinity", "[1, Infinity]", R"("a\ud83dy")", "1e400"}) {
    const std::string beside = R"({"text": "a", "x": )" + std::string(odd) + "}";
    EXPECT_EQ(ErrorOf(beside, text), "none") << odd;
    EXPECT_NE(ErrorOf(beside, nullptr), "none") << odd;
  }
  EXPECT_EQ(ErrorOf(R"({"x": 1, "text": NaN})", text),
            "column 18: NaN is no number of JSON, and `text` is read");
  EXPECT_EQ(ErrorOf(R"({"text": "x\ud83dy"})", text),
            "column 12: \\ud83d is half of a character, and `text` is read");
  EXPECT_EQ(ErrorOf("{\"text\": \n NaN}", text),
            "line 2, column 2: NaN is no number of JSON, and `text` is read");
  EXPECT_EQ(ErrorOf(R"({"text": "a", "x": Nan})", text), "column 20: want a value, got 'N'");
}

// A template sees every member that its source names.
TEST(JsonLine, ATemplateReadsWhatItNames) {
  const ChatTemplate chat("t", "{% for m in messages %}{{ m.content }}{{ mood }}{% endfor %}", {});
  const auto reads = [&](const std::string& member) { return chat.Reads(member); };
  const auto error = [&](const std::string& line) {
    return testing::ErrorOf<DataError>([&] { ParseConversation(line, reads); }, "none");
  };
  const std::string good = R"({"messages": [{"role": "user", "content": "a"}], )";
  EXPECT_EQ(error(good + R"("score": NaN})"), "none");
  EXPECT_EQ(error(good + R"("mood": NaN})"),
            "column 58: NaN is no number of JSON, and `mood` is read");
  EXPECT_EQ(error(R"({"messages": [{"role": "user", "content": "\udead"}]})"),
            "column 44: \\udead is half of a character, and `messages` is read");
  EXPECT_EQ(error(good), "column 50: want a key in double quotes, got the end of the text");
}

}  // namespace
}  // namespace fsdp
