#include "cmd/generate_chat.h"

#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>

#include "trainer/core/errors.h"
#include "trainer/core/utf8.h"
#include "trainer/data/tokenizers/unicode.h"

namespace fsdp {
namespace {

using Json = nlohmann::ordered_json;

void Show(const std::string& text) {
  std::fputs(Printable(text).c_str(), stdout);
  std::fflush(stdout);
}

// Streams it to the terminal.
std::string Answer(const Talk& talk, LogitsSource& model, const std::vector<int32_t>& prompt,
                   uint64_t number) {
  AnswerStream stream(talk.tokenizer, talk.end_text);
  GenerateOptions how = talk.how;
  how.first = number;
  how.ends = [&](size_t, std::span<const int32_t>) { return stream.ended(); };
  std::string answer;
  const auto add = [&](const std::string& text) {
    answer += text;
    Show(text);
  };
  Generate(model, {prompt}, how, [&](size_t, int32_t token) { add(stream.Add(token)); });
  add(stream.Finish());
  Show("\n");
  return answer;
}

}  // namespace

void RunTalk(const Talk& talk, LogitsSource& model) {
  Show("Talk to " + talk.model + ": a line is a message, /new begins anew, Ctrl-D ends.\n");
  Json messages = Json::array();
  uint64_t number = 0;
  for (std::string line; Show("> "), std::getline(std::cin, line);) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    if (line == "/new") {
      messages.clear();
      continue;
    }
    std::string buffer;
    messages.push_back({{"role", "user"}, {"content", std::string(WellFormed(line, buffer))}});
    try {
      const std::vector<int32_t> prompt =
          talk.encode(talk.format.PromptOf({{"messages", messages}}));
      const auto tokens = static_cast<int64_t>(prompt.size());
      if (tokens > talk.most_tokens) {
        throw DataError("the conversation has " + std::to_string(tokens) +
                        " tokens, and there is room for " + std::to_string(talk.most_tokens) +
                        ": /new begins another");
      }
      std::string answer = Answer(talk, model, prompt, number++);
      messages.push_back(
          {{"role", "assistant"}, {"content", std::string(WellFormed(answer, buffer))}});
    } catch (const DataError& error) {
      Show(std::string(error.what()) + "\n");
      messages.erase(messages.size() - 1);
    }
  }
  Show("\n");
}

}  // namespace fsdp
