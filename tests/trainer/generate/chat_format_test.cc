#include "trainer/generate/chat_format.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "trainer/core/errors.h"
#include "trainer/data/tokenizers/tokenizer.h"

namespace fsdp {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kTemplate =
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|endoftext|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}";

ChatFormat Format(const std::string& source, const std::string& tokenizer) {
  return {ChatTemplate("t", source, {}), *OpenTokenizer(tokenizer), std::nullopt};
}
const std::string kGpt2 = "tests/fixtures/tokenizers/gpt2.json";

TEST(ChatFormat, AsksForAnAnswer) {
  const ChatFormat format = Format(kTemplate, "bytes");
  const Json talk = {{"messages", Json::array({{{"role", "user"}, {"content", "hi"}}})}};
  EXPECT_EQ(format.PromptOf(talk), "<|user|>hi<|endoftext|>\n<|assistant|>");
  EXPECT_THROW(format.PromptOf({{"messages", Json::array({{{"content", "hi"}}})}}), DataError);
}

TEST(ChatFormat, FindsWhereAnswersEnd) {
  const auto gpt2 = OpenTokenizer(kGpt2);
  EXPECT_EQ(Format(kTemplate, kGpt2).end_token(), gpt2->IdOf("<|endoftext|>"));
  EXPECT_EQ(Format(kTemplate, kGpt2).end_text(), "");
  EXPECT_EQ(Format(kTemplate, "bytes").end_token(), std::nullopt);
  EXPECT_EQ(Format(kTemplate, "bytes").end_text(), "<|endoftext|>");
  // Nothing behind it, or but white space.
  for (const char* tail : {"", "\n\n"}) {
    const ChatFormat format = Format(
        "{% for m in messages %}{{ m.content }}" + std::string(tail) + "{% endfor %}", kGpt2);
    EXPECT_EQ(format.end_token(), std::nullopt);
    EXPECT_EQ(format.end_text(), "");
  }
  // A template that takes no such conversation, or shows no answers.
  for (const char* other : {"{{ raise_exception('no') }}", "hello"}) {
    EXPECT_EQ(Format(other, kGpt2).end_text(), "");
    EXPECT_EQ(Format(other, kGpt2).end_token(), std::nullopt);
  }
}

TEST(ChatFormat, WantsSpecialTokensWhole) {
  const auto tokenizer = OpenTokenizer("tests/fixtures/tokenizers/sp_bpe.model");
  EXPECT_THROW(ChatFormat(ChatTemplate("t", kTemplate, {{"eos_token", "</s>"}}), *tokenizer, {}),
               DataError);
}

std::string Streamed(const std::string& text, const std::string& end, std::string* finish) {
  const auto tokenizer = OpenTokenizer("bytes");
  AnswerStream stream(*tokenizer, end);
  std::string shown;
  for (const char byte : text) {
    if (stream.ended()) break;
    shown += stream.Add(static_cast<unsigned char>(byte));
    // Shown text is never taken back, and never begins the end.
    EXPECT_EQ(text.find(shown), 0u);
  }
  *finish = stream.Finish();
  return shown;
}

TEST(AnswerStream, ShowsAllButTheEnd) {
  std::string rest;
  EXPECT_EQ(Streamed("yes</s>no", "</s>", &rest), "yes");
  EXPECT_EQ(rest, "");
  EXPECT_EQ(Streamed("a <b> </s", "</s>", &rest), "a <b> ");
  EXPECT_EQ(rest, "</s");
  EXPECT_EQ(Streamed("aab", "ab", &rest), "a");
  EXPECT_EQ(rest, "");
  EXPECT_EQ(Streamed("abaabab", "abab", &rest), "aba");
  EXPECT_EQ(rest, "");
  EXPECT_EQ(Streamed("no end", "", &rest), "no end");
  EXPECT_EQ(rest, "");
  EXPECT_EQ(Streamed("\xc3\xa9\xc3", "</s>", &rest), "\xc3\xa9");
  EXPECT_EQ(rest, "\xc3");
}

}  // namespace
}  // namespace fsdp
