#include "trainer/data/chat/chat_template.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "tests/testing/fresh_directory.h"
#include "trainer/core/errors.h"

namespace fsdp {
namespace {

using Json = nlohmann::ordered_json;
using Ranges = std::vector<std::pair<size_t, size_t>>;

const std::string kFixtures = "tests/fixtures/chat_templates/";
const std::map<std::string, std::string> kTokens = {
    {"bos_token", "<s>"}, {"eos_token", "</s>"}, {"pad_token", "<pad>"}};

std::string Read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file.is_open()) << path;
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

void Write(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

std::string Message(const auto& act) {
  try {
    act();
  } catch (const DataError& error) {
    return error.what();
  }
  return "";
}

// Without what is empty, and with neighbours as one.
Ranges Joined(const Ranges& ranges) {
  Ranges joined;
  for (const auto& [begin, end] : ranges) {
    if (begin == end) continue;
    if (!joined.empty() && joined.back().second == begin) {
      joined.back().second = end;
    } else {
      joined.emplace_back(begin, end);
    }
  }
  return joined;
}

std::vector<std::string> Parts(const ChatText& chat) {
  std::vector<std::string> parts;
  for (const auto& [begin, end] : chat.targets) {
    parts.push_back(chat.text.substr(begin, end - begin));
  }
  return parts;
}

// --- Against transformers ---

class ChatFixture : public ::testing::TestWithParam<const char*> {};

TEST_P(ChatFixture, TextsAndTargetsAreThoseOfTransformers) {
  const std::string path = kFixtures + GetParam();
  const ChatTemplate chat(GetParam(), Read(path + ".jinja"), kTokens);
  int texts = 0;
  for (const Json& one : Json::parse(Read(path + ".json"))) {
    Json line = {{"messages", one["messages"]}};
    for (const char* key : {"tools", "documents"}) {
      if (one.contains(key)) line[key] = one[key];
    }
    if (one.contains("extra")) line.update(one["extra"]);
    ChatOptions options{.add_generation_prompt = one["add_generation_prompt"],
                        .train_on = TrainOn::kAll,
                        .date = {}};
    if (one.contains("date")) options.date = {one["date"][0], one["date"][1], one["date"][2]};
    if (one["text"].is_null()) {
      EXPECT_THROW(chat.Render(line, options), DataError) << line;
      continue;
    }
    const ChatText all = chat.Render(line, options);
    EXPECT_EQ(all.text, one["text"].get<std::string>()) << line;
    EXPECT_EQ(all.targets, Joined({{0, all.text.size()}}));
    options.train_on = TrainOn::kAssistant;
    if (one["targets"].is_null()) {
      EXPECT_THROW(chat.Render(line, options), DataError) << line;
    } else {
      const ChatText said = chat.Render(line, options);
      EXPECT_EQ(said.text, all.text);
      EXPECT_EQ(said.targets, Joined(one["targets"].get<Ranges>())) << line;
    }
    ++texts;
  }
  EXPECT_GE(texts, 10);
}

INSTANTIATE_TEST_SUITE_P(EveryTemplate, ChatFixture,
                         ::testing::Values("chatml", "deepseek", "documents", "gemma", "harmony",
                                           "llama3", "macros", "mistral", "qwen3", "simple",
                                           "whitespace"),
                         [](const auto& test) { return std::string(test.param); });

// --- Targets ---

constexpr const char* kPlain =
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}</>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}";
constexpr const char* kMarked =
    "{% for m in messages %}<{{ m.role }}>{% if m.role == 'assistant' %}{% generation %}"
    "{{ m.content }}{% endgeneration %}{% else %}{{ m.content }}{% endif %}</>{% endfor %}";

Json Talk() {
  return Json::parse(R"({"messages": [{"role": "user", "content": "a"},
      {"role": "assistant", "content": "b\u00e9"}, {"role": "user", "content": "c"},
      {"role": "assistant", "content": "d"}]})");
}

TEST(ChatTemplate, TargetsAreWhatAMessageAddsToThePrompt) {
  const ChatTemplate plain("t", kPlain, {});
  EXPECT_EQ(Parts(plain.Render(Talk(), {})), (std::vector<std::string>{"b\u00e9</>", "d</>"}));
  EXPECT_EQ(Parts(plain.Render(Talk(), {.train_on = TrainOn::kLast, .date = {}})),
            (std::vector<std::string>{"d</>"}));
  const ChatText prompted = plain.Render(Talk(), {.add_generation_prompt = true, .date = {}});
  EXPECT_TRUE(prompted.text.ends_with("<assistant>"));
  EXPECT_EQ(Parts(prompted), (std::vector<std::string>{"b\u00e9</>", "d</>"}));
}

TEST(ChatTemplate, TargetsAreWhatTheTemplateMarks) {
  const ChatTemplate marked("t", kMarked, {});
  EXPECT_EQ(Parts(marked.Render(Talk(), {})), (std::vector<std::string>{"b\u00e9", "d"}));
  EXPECT_EQ(Parts(marked.Render(Talk(), {.train_on = TrainOn::kLast, .date = {}})),
            (std::vector<std::string>{"d"}));
  const ChatText all = marked.Render(Talk(), {.train_on = TrainOn::kAll, .date = {}});
  EXPECT_EQ(Parts(all), std::vector<std::string>{all.text});
}

TEST(ChatTemplate, AWeightOfZeroTakesAMessageOut) {
  for (const char* source : {kPlain, kMarked}) {
    const ChatTemplate chat("t", source, {});
    const std::string end = source == kPlain ? "</>" : "";
    Json line = Talk();
    line["messages"][1]["weight"] = 0;
    line["messages"][3]["weight"] = 1;
    EXPECT_EQ(Parts(chat.Render(line, {})), std::vector<std::string>{"d" + end});
    const ChatText all = chat.Render(line, {.train_on = TrainOn::kAll, .date = {}});
    ASSERT_EQ(all.targets.size(), 2u);
    EXPECT_EQ(all.text.substr(all.targets[0].second, all.targets[1].first - all.targets[0].second),
              "b\u00e9" + end);
    line["messages"][3]["weight"] = 0;
    EXPECT_EQ(Parts(chat.Render(line, {.train_on = TrainOn::kLast, .date = {}})),
              std::vector<std::string>{});
  }
}

TEST(ChatTemplate, TheTemplateSeesNoWeight) {
  const ChatTemplate chat("t", "{{ messages | tojson }}", {});
  Json line = Talk();
  line["messages"] = Json::array({line["messages"][3]});
  line["messages"][0]["weight"] = 1;
  line["messages"][0]["name"] = nullptr;
  EXPECT_EQ(chat.Render(line, {.train_on = TrainOn::kAll, .date = {}}).text,
            R"([{"role": "assistant", "content": "d"}])");
}

TEST(ChatTemplate, WhatCannotBeToldIsAnError) {
  // Earlier answers lose a part when others follow, as reasoning does.
  const ChatTemplate changes("its.jinja",
                             "{% for m in messages %}{{ m.content }}{{ '!' if loop.last }}"
                             "{% endfor %}",
                             {});
  const std::string why = Message([&] { changes.Render(Talk(), {}); });
  EXPECT_NE(why.find("messages[1]: its.jinja writes the first messages otherwise"),
            std::string::npos)
      << why;
  EXPECT_NE(why.find("{% generation %}"), std::string::npos);
  EXPECT_EQ(changes.Render(Talk(), {.train_on = TrainOn::kAll, .date = {}}).text, "ab\u00e9cd!");
  // One mark for two messages.
  const ChatTemplate once("t", "{% generation %}{{ messages | length }}{% endgeneration %}", {});
  EXPECT_EQ(Parts(once.Render(Talk(), {})), std::vector<std::string>{"4"});
  EXPECT_NE(Message([&] {
              once.Render(Talk(), {.train_on = TrainOn::kLast, .date = {}});
            }).find("marks 1 parts for 2 messages"),
            std::string::npos);
}

TEST(ChatTemplate, AMistakeOfALineIsNamed) {
  const ChatTemplate chat("t", kPlain, {});
  const std::vector<std::pair<const char*, const char*>> cases = {
      {R"([])", "is no object"},
      {R"({})", "has no list of `messages`"},
      {R"({"messages": {}})", "has no list of `messages`"},
      {R"({"messages": []})", "`messages` is empty"},
      {R"({"messages": ["a"]})", "messages[0] is no object"},
      {R"({"messages": [{"role": "user"}, {"content": "a"}]})", "messages[1] has no `role`"},
      {R"({"messages": [{"role": 1}]})", "messages[0] has no `role`"},
      {R"({"messages": [{"role": "user", "weight": 1}]})", "messages[0] has a `weight`"},
      {R"({"messages": [{"role": "assistant", "weight": 0.5}]})",
       "messages[0].weight is neither 0 nor 1"},
  };
  for (const auto& [line, words] : cases) {
    EXPECT_NE(Message([&] { chat.Render(Json::parse(line), {}); }).find(words), std::string::npos)
        << line;
  }
}

TEST(ChatTemplate, MembersOfALineAreVariables) {
  const ChatTemplate chat("t", "{{ tools }} {{ documents }} {{ bos_token }} {{ mood }}",
                          {{"bos_token", "<s>"}});
  Json line = Talk();
  const ChatOptions all{.train_on = TrainOn::kAll, .date = {}};
  EXPECT_EQ(chat.Render(line, all).text, "None None <s> ");
  line.update({{"tools", {1}}, {"mood", "calm"}, {"bos_token", "[B]"}});
  EXPECT_EQ(chat.Render(line, all).text, "[1] None [B] calm");
}

TEST(ChatTemplate, ADateIsTheCallers) {
  const ChatTemplate chat("t", "{{ strftime_now('%d %B %Y') }}", {});
  ChatOptions options{.train_on = TrainOn::kAll, .date = JinjaDate{2031, 5, 4}};
  EXPECT_EQ(chat.Render(Talk(), options).text, "04 May 2031");
  options.date.reset();
  EXPECT_NE(Message([&] { chat.Render(Talk(), options); }).find("t:1: `strftime_now` is undefined"),
            std::string::npos);
  EXPECT_NE(Message([&] { chat.Render(Talk(), options); }).find("`data.train.date`"),
            std::string::npos);
}

// --- Files ---

class ChatFiles : public ::testing::Test {
 protected:
  std::string Path(const std::string& name) const { return folder_ + "/" + name; }
  ChatTemplate Open(const std::string& file = "") const {
    return ChatTemplate::Open(Path("tokenizer.json"), file);
  }
  std::string Text(const ChatTemplate& chat) const {
    return chat.Render(Talk(), {.train_on = TrainOn::kAll, .date = {}}).text;
  }
  const std::string folder_ = testing::FreshDirectory("chat_files");
};

TEST_F(ChatFiles, TheFileBesideComesFirst) {
  EXPECT_NE(Message([&] { Open(); }).find("has none"), std::string::npos);
  Write(Path("tokenizer_config.json"), R"({"chat_template": "config {{ bos_token }}",
      "bos_token": {"content": "<b>", "lstrip": false}, "eos_token": null, "pad_token": "<p>",
      "model_max_length": 5, "extra_special_tokens": {"image_token": "<i>"}})");
  EXPECT_EQ(Text(Open()), "config <b>");
  EXPECT_EQ(Open().special_tokens(),
            (std::map<std::string, std::string>{
                {"bos_token", "<b>"}, {"pad_token", "<p>"}, {"image_token", "<i>"}}));
  Write(Path("chat_template.jinja"), "beside {{ bos_token }}\n");
  EXPECT_EQ(Text(Open()), "beside <b>");
  EXPECT_EQ(Open().name(), Path("chat_template.jinja"));
  Write(Path("mine.jinja"), "mine {{ bos_token }}");
  EXPECT_EQ(Text(Open(Path("mine.jinja"))), "mine <b>");
}

TEST_F(ChatFiles, ALinkThatLeadsNowhereIsNamed) {
  Write(Path("chat_template.jinja"), "beside");
  for (const char* name :
       {"tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja"}) {
    std::filesystem::remove(Path(name));
    std::filesystem::create_symlink("/gone/blob", Path(name));
    EXPECT_EQ(Message([&] { Open(); }),
              "chat template: " + Path(name) + ": No such file or directory");
    std::filesystem::remove(Path(name));
    Write(Path("chat_template.jinja"), "beside");
  }
}

TEST_F(ChatFiles, OfSeveralTheDefaultIsTaken) {
  Write(
      Path("tokenizer_config.json"),
      R"({"chat_template": [{"name": "rag", "template": "r"}, {"name": "default", "template": "d"}]})");
  EXPECT_EQ(Text(Open()), "d");
  Write(Path("tokenizer_config.json"), R"({"chat_template": [{"name": "rag", "template": "r"}]})");
  EXPECT_NE(Message([&] { Open(); }).find("has no `default` among its templates: `rag`"),
            std::string::npos);
}

TEST_F(ChatFiles, TheOlderMapOfTokensCountsWithoutAddedTokens) {
  Write(Path("special_tokens_map.json"),
        R"({"bos_token": "<old>", "eos_token": {"content": "<e>"}})");
  Write(Path("chat_template.jinja"), "{{ bos_token }}{{ eos_token }}");
  EXPECT_EQ(Text(Open()), "<old><e>");
  Write(Path("tokenizer_config.json"), R"({"bos_token": "<new>"})");
  EXPECT_EQ(Text(Open()), "<old><e>");
  Write(Path("tokenizer_config.json"), R"({"bos_token": "<new>", "added_tokens_decoder": {}})");
  EXPECT_EQ(Text(Open()), "<new>");
}

TEST_F(ChatFiles, AMistakeNamesTheFile) {
  Write(Path("tokenizer_config.json"), R"({"chat_template": "a\n{{ b"})");
  EXPECT_NE(Message([&] { Open(); }).find("tokenizer_config.json:chat_template:2: "),
            std::string::npos);
  Write(Path("tokenizer_config.json"), R"({"chat_template": 5})");
  EXPECT_NE(Message([&] { Open(); }).find("tokenizer_config.json: chat_template is no list"),
            std::string::npos)
      << Message([&] { Open(); });
  Write(Path("tokenizer_config.json"), "{");
  EXPECT_NE(Message([&] { Open(); }).find("tokenizer_config.json:1:"), std::string::npos);
  EXPECT_NE(Message([&] { Open(Path("gone.jinja")); }).find(Path("tokenizer_config.json")),
            std::string::npos);
  Write(Path("tokenizer_config.json"), "{}");
  EXPECT_NE(Message([&] { Open(Path("gone.jinja")); }).find(Path("gone.jinja") + ": "),
            std::string::npos);
  EXPECT_NE(Message([] { ChatTemplate::Open("bytes"); }).find("the tokenizer bytes has none"),
            std::string::npos);
}

}  // namespace
}  // namespace fsdp
