#include "trainer/data/samples/line_samples.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/testing/fresh_directory.h"
#include "trainer/core/errors.h"
#include "trainer/data/samples/fitted_samples.h"
#include "trainer/data/text/token_cache.h"
#include "trainer/data/tokenizers/tokenizer.h"

namespace fsdp {
namespace {

namespace fs = std::filesystem;
using Strings = std::vector<std::string>;

// A turn of role `a` with text `b` is "a:b;".
constexpr const char* kTemplate =
    "{% for m in messages %}{{ m.role + ':' + m.content + ';' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant:' }}{% endif %}";

std::string WhatOf(const auto& call) {
  try {
    call();
  } catch (const DataError& error) {
    return error.what();
  }
  return "no error";
}

std::string Read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

std::string Line(const Strings& user_assistant) {
  nlohmann::ordered_json messages = nlohmann::ordered_json::array();
  for (size_t i = 0; i < user_assistant.size(); ++i) {
    messages.push_back(
        {{"role", i % 2 == 0 ? "user" : "assistant"}, {"content", user_assistant[i]}});
  }
  return nlohmann::ordered_json{{"messages", messages}}.dump() + "\n";
}

class LineSamples : public ::testing::Test {
 protected:
  std::string Write(const std::string& name, const std::string& text) {
    const std::string path = dir_ + "/" + name;
    std::ofstream(path, std::ios::binary) << text;
    return path;
  }
  static std::shared_ptr<const LineEncoder> Chat(TrainOn train_on = TrainOn::kAssistant,
                                                 const std::string& source = kTemplate) {
    ChatOptions options;
    options.train_on = train_on;
    return Conversations(OpenTokenizer("bytes"), {"t.jinja", source, {}}, options);
  }
  std::shared_ptr<const SampleFile> Open(const LineEncoder& encoder, const Strings& files,
                                         int threads = 1, bool allow_invalid = false) {
    LineOptions options;
    options.files = files;
    options.tokenizer = "bytes";
    options.threads = threads;
    options.allow_invalid_text = allow_invalid;
    return OpenLineSamples(cache_, encoder, options);
  }
  // Each sample's text, its targets in capitals and between brackets.
  static Strings Contents(const SampleStore& store) {
    Strings all;
    for (int64_t i = 0; i < store.size(); ++i) {
      const auto n = static_cast<size_t>(store.Length(i));
      std::vector<int32_t> tokens(n);
      std::vector<float> weights(n);
      store.Read(i, tokens, weights);
      EXPECT_EQ(weights.back(), 0);
      std::string text;
      int64_t targets = 0;
      for (size_t k = 0; k < n; ++k) {
        const bool target = k > 0 && weights[k - 1] == 1;
        targets += target;
        if (target && (k == 1 || weights[k - 2] == 0)) text += '[';
        text += static_cast<char>(tokens[k]);
        if (target && weights[k] == 0) text += ']';
        EXPECT_EQ(store.Targets(i, static_cast<int64_t>(k) + 1), targets);
      }
      all.push_back(text);
    }
    return all;
  }

  const std::string dir_ = testing::FreshDirectory("lines");
  const std::string cache_ = dir_ + "/cache";
};

TEST_F(LineSamples, TargetsAreWhatTheAssistantSays) {
  const std::string file =
      Write("a.jsonl", Line({"hi", "ho"}) + "\n  \r\n" + Line({"a", "b", "c", "d"}) + Line({"x"}));
  const auto samples = Open(*Chat(), {file});
  EXPECT_EQ(Contents(*samples), (Strings{"user:hi;assistant:[ho;]",
                                         "user:a;assistant:[b;]user:c;assistant:[d;]", "user:x;"}));
  EXPECT_EQ(samples->Where(1), file + ", line 4");
  EXPECT_EQ(samples->PlaceOf(2, 3).where, file + ", line 5, token 3");
  EXPECT_EQ(samples->Describe(), file);
  EXPECT_EQ(samples->Noun(), "conversation");
  EXPECT_EQ(Contents(*Open(*Chat(TrainOn::kLast), {file}))[1],
            "user:a;assistant:b;user:c;assistant:[d;]");
  EXPECT_EQ(Contents(*Open(*Chat(TrainOn::kAll), {file}))[2], "u[ser:x;]");
}

TEST_F(LineSamples, ATokenIsATargetWhereItsFirstCharacterIs) {
  // GPT-2's tokens: "Ġ" belongs to the word behind it, and the template's blank to what is not
  // said.
  const auto tokenizer = OpenTokenizer("tests/fixtures/tokenizers/gpt2.json");
  const char* source =
      "{% for m in messages %}{{ m.role }}: {% if m.role == 'assistant' %}{% generation %}"
      "{{ m.content }}<|endoftext|>{% endgeneration %}{% else %}{{ m.content }}. {% endif %}"
      "{% endfor %}";
  const auto encoder = Conversations(tokenizer, {"t.jinja", source, {}}, {});
  const auto samples = Open(*encoder, {Write("a.jsonl", Line({"to be", "or not \xc3\xa9"}))});
  const std::string text = "user: to be. assistant: or not \xc3\xa9<|endoftext|>";
  const PlacedIds placed = tokenizer->EncodePlaced(text);
  const auto n = placed.ids.size();
  std::vector<int32_t> tokens(n);
  std::vector<float> weights(n);
  ASSERT_EQ(samples->Length(0), n);
  samples->Read(0, tokens, weights);
  EXPECT_EQ(tokens, placed.ids);
  EXPECT_EQ(tokens.back(), tokenizer->IdOf("<|endoftext|>"));
  const size_t said = text.find("or not");
  bool inside = false;  // Some token begins in front of what is said and ends in it.
  for (size_t k = 1; k < n; ++k) {
    EXPECT_EQ(weights[k - 1], placed.begins[k] >= said ? 1 : 0) << k;
    inside |= placed.begins[k] < said && (k + 1 == n || placed.begins[k + 1] > said);
  }
  EXPECT_TRUE(inside);
}

TEST_F(LineSamples, TokensAndTargetsAreThoseOfTransformers) {
  const std::string fixtures = "tests/fixtures/chat/";
  const auto expected = nlohmann::json::parse(Read(fixtures + "expected.json"));
  ASSERT_EQ(expected.size(), 2u);
  for (const auto& [name, want] : expected.items()) {
    const auto encoder = Conversations(OpenTokenizer("tests/fixtures/tokenizers/gpt2.json"),
                                       {name, Read(fixtures + name), {}}, {});
    const auto samples = Open(*encoder, {fixtures + "conversations.jsonl"});
    ASSERT_EQ(samples->size(), want["ids"].size());
    for (int64_t i = 0; i < samples->size(); ++i) {
      std::vector<int32_t> tokens(static_cast<size_t>(samples->Length(i)));
      std::vector<float> weights(tokens.size());
      samples->Read(i, tokens, weights);
      EXPECT_EQ(tokens, want["ids"][i]) << name << i;
      std::vector<size_t> trained_on;
      for (size_t k = 1; k < tokens.size(); ++k) {
        if (weights[k - 1] == 1) trained_on.push_back(k);
      }
      EXPECT_EQ(trained_on, want["trained_on"][i]) << name << i;
    }
  }
}

TEST_F(LineSamples, PairsGoOnWhereThePromptEnds) {
  const std::string file = Write("a.jsonl",
                                 "{\"q\": \"2+2=\", \"a\": \"4\", \"id\": 7}\n"
                                 "{\"a\": \"\", \"q\": \"say nothing\"}\n");
  const auto encoder = Pairs(OpenTokenizer("bytes"), {"q", "a"}, '.');
  const auto samples = Open(*encoder, {file});
  EXPECT_EQ(Contents(*samples), (Strings{"2+2=[4.]", "say nothing[.]"}));
  EXPECT_EQ(samples->Noun(), "pair");
  EXPECT_NE(Pairs(OpenTokenizer("bytes"), {"q", "a"}, ';')->hash(), encoder->hash());
  EXPECT_NE(Pairs(OpenTokenizer("bytes"), {"a", "q"}, '.')->hash(), encoder->hash());
  EXPECT_EQ(
      WhatOf([&] {
        Open(*Pairs(OpenTokenizer("bytes"), {"q", "b"}, '.'), {file});
      }),
      "data: " + file + ", line 1: has no field `b`: `completion` of the recipe's source names it");
  EXPECT_EQ(WhatOf([&] {
              Open(*Pairs(OpenTokenizer("bytes"), {"id", "a"}, '.'), {file});
            }),
            "data: " + file + ", line 1: its field `id` is no text");
  // With a beginning, where the tokenizer has one.
  const auto llama3 = OpenTokenizer("tests/fixtures/tokenizers/llama3.json");
  std::vector<uint32_t> tokens;
  Pairs(llama3, {"q", "a"}, 5)->Encode({{"q", "x"}, {"a", "y"}}, tokens);
  EXPECT_EQ(tokens.front(), llama3->bos());
  EXPECT_EQ(tokens.back(), 5 | kTargetBit);
}

TEST_F(LineSamples, PairsApartAreBothEnded) {
  const std::string file = Write("a.jsonl",
                                 "{\"q\": \"2+2=\", \"a\": \"4\"}\n"
                                 "{\"a\": \"\", \"q\": \"say nothing\"}\n"
                                 "{\"a\": \"x\", \"q\": \"\"}\n");
  const auto encoder = PairsApart(OpenTokenizer("bytes"), {"q", "a"}, '.');
  const auto samples = Open(*encoder, {file});
  EXPECT_EQ(Contents(*samples), (Strings{"2+2=.[4.]", "say nothing.[.]", ".[x.]"}));
  EXPECT_EQ(samples->Noun(), "pair");
  EXPECT_NE(Pairs(OpenTokenizer("bytes"), {"q", "a"}, '.')->hash(), encoder->hash());
  EXPECT_NE(PairsApart(OpenTokenizer("bytes"), {"q", "a"}, ';')->hash(), encoder->hash());
  // Without a beginning, which the input of an encoder has not.
  const auto llama3 = OpenTokenizer("tests/fixtures/tokenizers/llama3.json");
  std::vector<uint32_t> tokens;
  PairsApart(llama3, {"q", "a"}, 5)->Encode({{"q", "x"}, {"a", "y"}}, tokens);
  EXPECT_NE(tokens.front(), llama3->bos());
  EXPECT_EQ(tokens.back(), 5 | kTargetBit);
}

TEST_F(LineSamples, ShareGptIsReadAsMessages) {
  const std::string turns =
      R"([{"from": "human", "value": "hi"}, {"from": "gpt", "value": "ho", "weight": 0},)"
      R"( {"from": "user", "value": "a"}, {"from": "assistant", "value": "b"}])";
  const std::string file = Write(
      "a.jsonl", R"({"conversations": )" + turns + "}\n" + R"({"system": "be", )" +
                     R"("conversations": [{"from": "tool", "value": "t"}]})" + "\n" +
                     R"({"system": "be", "conversations": [{"from": "system", "value": "s"},)" +
                     R"( {"role": "gpt", "content": "x"}]})" + "\n" + Line({"a", "b"}));
  const Strings want = {"user:hi;assistant:ho;user:a;assistant:[b;]", "system:be;tool:t;",
                        "system:s;assistant:[x;]", "user:a;assistant:[b;]"};
  for (int opens = 0; opens < 2; ++opens) {  // Once from the cache.
    const auto samples = Open(*Chat(), {file});
    EXPECT_EQ(Contents(*samples), want);
    EXPECT_EQ(
        samples->read_as(),
        "3 conversations read as ShareGPT's `conversations`: human is the user, gpt the assistant");
  }
  EXPECT_EQ(Open(*Chat(), {Write("b.jsonl", Line({"a", "b"}))})->read_as(), "");
  const auto mistake = [&](const std::string& line) {
    const std::string path = Write("c.jsonl", Line({"a", "b"}) + line + "\n");
    const std::string what = WhatOf([&] { Open(*Chat(), {path}); });
    return what.substr(std::min(what.size(), what.find(", line")));
  };
  EXPECT_EQ(mistake(R"({"conversations": [{"from": "bing", "value": "x"}]})"),
            ", line 2: conversations[0].from is `bing`: want human, user, gpt, assistant, system "
            "or tool");
  EXPECT_EQ(mistake(R"({"conversations": [{"from": "gpt"}]})"),
            ", line 2: conversations[0] has no text `value`");
  EXPECT_EQ(mistake(R"({"conversations": [{"from": 1, "value": "x"}]})"),
            ", line 2: conversations[0] has no text `from`");
  EXPECT_EQ(mistake(R"({"conversations": ["x"]})"), ", line 2: conversations[0] is no object");
  EXPECT_EQ(mistake(R"({"conversations": []})"), ", line 2: `conversations` is empty");
  EXPECT_EQ(mistake(R"({"conversations": "x"})"), ", line 2: has no list of `messages`");
  EXPECT_EQ(mistake(R"({"instruction": "x", "output": "y"})"),
            ", line 2: has no list of `messages`; `instruction` is read by source `pairs`");
}

// The prompts are those of stanford_alpaca's train.py.
TEST_F(LineSamples, AlpacaIsReadAsAPromptAndItsCompletion) {
  const std::string file =
      Write("a.jsonl", R"({"instruction": "Add.", "input": "1 2", "output": "3"})"
                       "\n"
                       R"({"instruction": "Say.", "input": "", "output": "ho"})"
                       "\n"
                       R"({"instruction": "Say.", "output": "hi"})"
                       "\n"
                       R"({"instruction": "i", "prompt": "p", "completion": "c", "output": "o"})");
  const std::string begin =
      "Below is an instruction that describes a task. Write a response that appropriately "
      "completes the request.\n\n### Instruction:\nSay.\n\n### Response:";
  const Strings want = {
      "Below is an instruction that describes a task, paired with an input that provides further "
      "context. Write a response that appropriately completes the request.\n\n### Instruction:\n"
      "Add.\n\n### Input:\n1 2\n\n### Response:[3.]",
      begin + "[ho.]", begin + "[hi.]", "p[c.]"};
  const PairFields fields{"prompt", "completion", /*or_alpaca=*/true};
  const auto samples = Open(*Pairs(OpenTokenizer("bytes"), fields, '.'), {file});
  EXPECT_EQ(Contents(*samples), want);
  EXPECT_EQ(samples->read_as(),
            "3 pairs read as Alpaca's `instruction`, `input` and `output`, in the prompt of "
            "stanford_alpaca");
  const std::string whole = Contents(
      *Open(*PairsApart(OpenTokenizer("bytes"), {"input", "target", true}, '.'), {file}))[1];
  EXPECT_EQ(whole, begin + ".[ho.]");
  const auto mistake = [&](const std::string& line, bool or_alpaca) {
    const std::string path = Write("c.jsonl", line + "\n");
    const PairFields of{"prompt", "completion", or_alpaca};
    const std::string what = WhatOf([&] { Open(*Pairs(OpenTokenizer("bytes"), of, '.'), {path}); });
    return what.substr(std::min(what.size(), what.find(", line 1: ") + 10));
  };
  const std::string missing = "has no field `prompt`: `prompt` of the recipe's source names it";
  EXPECT_EQ(mistake(R"({"instruction": "x", "output": "y"})", false), missing);
  EXPECT_EQ(mistake(R"({"instruction": "x"})", true), missing);
  EXPECT_EQ(mistake(Line({"a", "b"}), true),
            missing + "; a line of messages is read by source `chat`");
  EXPECT_EQ(mistake(R"({"instruction": "x", "input": 5, "output": "y"})", true),
            "its field `input` is no text");
  EXPECT_EQ(mistake(R"({"instruction": ["x"], "output": "y"})", true),
            "its field `instruction` is no text");
}

TEST_F(LineSamples, ThreadsAndFilesChangeNothing) {
  std::string text;
  for (int i = 0; i < 1000; ++i) {
    text += Line({"question " + std::to_string(i), std::string(static_cast<size_t>(i % 97), 'x')});
  }
  const std::string a = Write("a.jsonl", text), b = Write("b.jsonl", text);
  const auto one = Open(*Chat(), {a}, 1);
  const std::string first = fs::directory_iterator(cache_)->path();
  const std::string kept = first.substr(0, cache_.size() + 17) + "/samples.bin";
  const std::string bytes = Read(kept);
  ASSERT_GT(bytes.size(), 100'000u);
  fs::remove_all(cache_);
  const auto three = Open(*Chat(), {a}, 3);
  EXPECT_EQ(Read(kept), bytes);
  EXPECT_EQ(Contents(*one), Contents(*three));
  const auto both = Open(*Chat(), {a, b}, 2);
  EXPECT_EQ(both->size(), 2000);
  EXPECT_EQ(both->Where(1000), b + ", line 1");
  EXPECT_EQ(both->Describe(), a + " and 1 more file");
}

TEST_F(LineSamples, EmptyLinesAreNoEnd) {
  const std::string file =
      Write("a.jsonl", Line({"a", "b"}) + std::string(9 << 20, '\n') + Line({"c", "d"}));
  const auto samples = Open(*Chat(), {file});
  EXPECT_EQ(Contents(*samples), (Strings{"user:a;assistant:[b;]", "user:c;assistant:[d;]"}));
  EXPECT_EQ(samples->Where(1), file + ", line " + std::to_string((9 << 20) + 2));
}

TEST_F(LineSamples, AreMadeOnceForAllWhoAsk) {
  const std::string file = Write("a.jsonl", Line({"a", "b"}));
  std::vector<std::string> said;
  LineOptions options;
  options.files = {file};
  options.keep.say = [&](const std::string& line) { said.push_back(line); };
  const auto encoder = Chat();
  OpenLineSamples(cache_, *encoder, options);
  ASSERT_EQ(said.size(), 1u);
  EXPECT_TRUE(said[0].starts_with("tokenising " + file + " into " + cache_)) << said[0];
  OpenLineSamples(cache_, *encoder, options);
  EXPECT_EQ(said.size(), 1u);
  OpenLineSamples(cache_, *Chat(TrainOn::kAll), options);
  EXPECT_EQ(said.size(), 2u) << "other targets are other samples";
  OpenLineSamples(cache_, *Chat(TrainOn::kAssistant, "!" + std::string(kTemplate)), options);
  EXPECT_EQ(said.size(), 3u);
  Write("a.jsonl", Line({"a", "c"}));
  OpenLineSamples(cache_, *encoder, options);
  EXPECT_EQ(said.size(), 4u);
  const std::vector<TokenSet> kept = ListTokenSets(cache_);
  ASSERT_EQ(kept.size(), 4u);
  EXPECT_EQ(kept[0].inputs, file);
  EXPECT_GT(kept[0].tokens, 10);

  // Many at once, of one thing that nobody has made.
  fs::remove_all(cache_);
  std::vector<std::shared_ptr<const SampleFile>> all(4);
  {
    std::vector<std::jthread> threads;
    for (auto& one : all) {
      threads.emplace_back([&] { one = Open(*encoder, {file}); });
    }
  }
  for (const auto& one : all) EXPECT_EQ(Contents(*one), (Strings{"user:a;assistant:[c;]"}));
}

TEST_F(LineSamples, MistakesHaveAPlace) {
  const auto of = [&](const std::string& lines) {
    const std::string file = Write("a.jsonl", lines);
    const std::string what = WhatOf([&] { Open(*Chat(), {file}, 2); });
    const std::string begin = "data: " + file;
    EXPECT_TRUE(what.starts_with(begin)) << what;
    return what.substr(std::min(begin.size(), what.size()));
  };
  const std::string good = Line({"a", "b"});
  EXPECT_EQ(of(good + "{\"messages\":"),
            ", line 2: column 13: want a value, got the end of the text");
  EXPECT_EQ(of(good + "[1]\n" + good), ", line 2: is no object with `messages`");
  EXPECT_EQ(of(good + "\n" + R"({"text": "a"})"), ", line 3: has no list of `messages`");
  EXPECT_EQ(of(R"({"messages": [{"role": "user", "content": "a"}, {"content": "b"}]})"),
            ", line 1: messages[1] has no `role`");
  EXPECT_EQ(of(good + R"({"messages": )" + std::string(100'000, '[')),
            ", line 2: is nested more than 200 deep");
  EXPECT_EQ(of("\n \n"), ": no conversation in it");
  EXPECT_TRUE(of("PAR1" + std::string(100, '\0')).find("Parquet") != std::string::npos);
  EXPECT_TRUE(of(good + std::string(50, '\xff') + "\n").find("are no UTF-8") != std::string::npos);
  // The first of several, whoever finds it first.
  std::string many;
  for (int i = 0; i < 500; ++i) many += i < 77 ? good : "{}\n";
  EXPECT_EQ(of(many), ", line 78: has no list of `messages`");
  EXPECT_TRUE(ListTokenSets(cache_).empty() || ListTokenSets(cache_)[0].tokens == 0);

  const std::string text = Write("a.txt", "user: a\n");
  EXPECT_EQ(WhatOf([&] { Open(*Chat(), {text}); }),
            "data: " + text + ": is no .jsonl and no other JSON, whose objects are the samples");
  const std::string table = Write("a.csv", "prompt,completion\na,b\n");
  EXPECT_NE(
      WhatOf([&] { Open(*Chat(), {table}); }).find("is a table, not text: convert it: python3"),
      std::string::npos);
  const std::string list = Write("b.json", "[" + good.substr(0, good.size() - 1) + ",\n {}]");
  EXPECT_EQ(WhatOf([&] { Open(*Chat(), {list}); }),
            "data: " + list + ", line 2, element 2: has no list of `messages`");
}

// Whatever the name, the objects of JSON lines and of lists are the samples.
TEST_F(LineSamples, NamesDecideNothing) {
  const std::string one = Line({"hi", "ho"}), two = Line({"a", "b", "c", "d"});
  const Strings want = Contents(*Open(*Chat(), {Write("a.jsonl", one + two)}));
  ASSERT_EQ(want.size(), 2u);
  const std::string list = "[\n" + one + " , " + two + "]\n";
  for (const char* name : {"b.json", "b.ndjson", "b", "b.txt", "b.csv"}) {
    EXPECT_EQ(Contents(*Open(*Chat(), {Write(name, one + two)})), want) << name;
    const auto samples = Open(*Chat(), {Write(name, list)});
    EXPECT_EQ(Contents(*samples), want) << name;
    EXPECT_EQ(samples->Where(1), dir_ + "/" + name + ", line 3") << name;
  }
  EXPECT_EQ(Contents(*Open(*Chat(), {Write("c.json", one)})), Strings{want[0]});
}

TEST_F(LineSamples, InvalidTextIsReadWhereItIsAllowed) {
  const std::string bad = R"({"messages": [{"role": "user", "content": ")" + std::string("\xff") +
                          R"("}, {"role": "assistant", "content": "b"}]})" + "\n";
  const std::string file = Write("a.jsonl", bad);
  EXPECT_EQ(Contents(*Open(*Chat(), {file}, 1, true)),
            (Strings{"user:\xef\xbf\xbd;assistant:[b;]"}));
  EXPECT_NE(WhatOf([&] { Open(*Chat(), {file}); }), "no error") << "another run allowed it";
}

TEST_F(LineSamples, DamageIsSeen) {
  const std::string file = Write("a.jsonl", Line({"a", "b"}) + Line({"c", "d"}));
  const auto encoder = Chat();
  Open(*encoder, {file});
  const std::string path = ListTokenSets(cache_)[0].directory + "/samples.bin";
  const std::string good = Read(path);
  for (const size_t at : {0u, 9u, 17u, 64u, 100u}) {
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ 1);
    std::ofstream(path, std::ios::binary) << bad;
    const std::string what = WhatOf([&] { Open(*encoder, {file}); });
    EXPECT_NE(what.find("are damaged: delete that directory"), std::string::npos) << at << what;
  }
  std::ofstream(path, std::ios::binary) << good;
  EXPECT_EQ(Open(*encoder, {file})->size(), 2);
  // A file that no hash vouches for says of itself that it is wrong, or is read as it is.
  const std::string copy = dir_ + "/copy";
  const std::vector<DataFile> inputs = {{file, 1, 1}};
  for (size_t size = 0; size < good.size(); ++size) {
    std::ofstream(copy, std::ios::binary) << good.substr(0, size);
    EXPECT_THROW(SampleFile(copy, "conversation", inputs), DataError) << size;
  }
  for (size_t at = 0; at < good.size(); ++at) {
    for (const int bit : {0, 5, 7}) {
      std::string bad = good;
      bad[at] = static_cast<char>(bad[at] ^ 1 << bit);
      std::ofstream(copy, std::ios::binary) << bad;
      try {
        const SampleFile samples(copy, "conversation", inputs);
        for (int64_t i = 0; i < samples.size(); ++i) {
          std::vector<int32_t> tokens(static_cast<size_t>(samples.Length(i)));
          std::vector<float> weights(tokens.size());
          samples.Read(i, tokens, weights);
          EXPECT_FALSE(samples.Where(i).empty());
        }
      } catch (const DataError&) {
      }
    }
  }
}

TEST_F(LineSamples, OnesWithoutATargetAreLeftOut) {
  const std::string file = Write("a.jsonl", Line({"a"}) + Line({"aa", "b"}) + Line({"a", "bbbb"}));
  const auto samples = Open(*Chat(), {file});
  const auto fit = [&](int64_t seq_len, TooLong too_long) {
    return FittedSamples(samples, seq_len, too_long);
  };
  EXPECT_EQ(fit(100, TooLong::kError).size(), 2);
  EXPECT_EQ(fit(100, TooLong::kError).counts().untrained, 1);
  // "user:aa;assistant:b;" has 20 tokens, and 2 targets; "user:a;assistant:bbbb;" 22 and 5.
  const FittedSamples cut = fit(19, TooLong::kCut);
  EXPECT_EQ(cut.size(), 2);
  EXPECT_EQ(cut.Targets(0), 1);
  EXPECT_EQ(cut.Targets(1), 2);
  EXPECT_EQ(fit(18, TooLong::kCut).size(), 1) << "of the first nothing is left to learn";
  EXPECT_EQ(fit(18, TooLong::kCut).counts().lost_tokens, 20 + 4);
  EXPECT_EQ(fit(18, TooLong::kCut).counts().emptied, 1);
  EXPECT_EQ(fit(18, TooLong::kCut).counts().emptied_tokens, 20);
  EXPECT_EQ(fit(19, TooLong::kCut).counts().emptied, 0);
  EXPECT_EQ(WhatOf([&] { fit(21, TooLong::kError); }),
            "data: " + file +
                ", line 3: a conversation of 22 tokens, but a row has data.seq_len = 21: give "
                "data.too_long: cut or drop, or a longer data.seq_len");
  EXPECT_EQ(WhatOf([&] { fit(10, TooLong::kDrop); }),
            "data: " + file +
                ": of 3 conversations 2 are longer than data.seq_len = 10 and the others have no "
                "target, so nothing is left: give more data, another data.*.train_on or a longer "
                "data.seq_len");
}

TEST(Conversations, WantTheirSpecialTokensWhole) {
  const ChatOptions options;
  const auto open = [&](const std::string& tokenizer) {
    return WhatOf([&] {
      Conversations(OpenTokenizer("tests/fixtures/tokenizers/" + tokenizer),
                    {"t", kTemplate, {{"eos_token", "</s>"}}}, options);
    });
  };
  EXPECT_EQ(open("llama2.json"), "no error");
  EXPECT_EQ(open("sp_bpe.model"),
            "the tokenizer does not find its eos_token `</s>` in a text, as a SentencePiece model "
            "does not: give a tokenizer.json");
}

}  // namespace
}  // namespace fsdp
