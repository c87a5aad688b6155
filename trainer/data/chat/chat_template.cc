#include "trainer/data/chat/chat_template.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <tuple>

#include "trainer/core/errors.h"
#include "trainer/core/json_reader.h"
#include "trainer/core/philox.h"
#include "trainer/core/read_file.h"

namespace fsdp {
namespace {

using Json = nlohmann::ordered_json;
using Ranges = std::vector<std::pair<size_t, size_t>>;

constexpr JsonErrors kErrors{.raise = [](const std::string& message) { throw DataError(message); },
                             .separator = " ",
                             .key_quote = "`",
                             .text = "is no text",
                             .list = "is no list"};

// SPECIAL_TOKENS_ATTRIBUTES of transformers.
constexpr const char* kSpecialTokens[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                          "pad_token", "cls_token", "mask_token"};
constexpr const char* kReasoning[] = {"reasoning_content", "thinking", "reasoning"};

// --- Files ---

std::string ReadText(const std::string& path) {
  FileText file = ReadFileText(path, kMostTextBytes);
  if (!file.why.empty()) throw DataError("chat template: " + path + ": " + file.why);
  return std::move(file.text);
}

// None: there is no such file.
std::optional<JsonValue> ReadJson(const std::string& path) {
  if (!PathExists(path)) return std::nullopt;
  return ParseJson(ReadText(path), "chat template: " + path, kErrors);
}

// A token is a text, or an object with its `content`.
void AddTokens(const JsonValue& config, std::map<std::string, std::string>& tokens) {
  const auto add = [&](const std::string& name, const JsonValue& token) {
    tokens[name] = token.IsObject() ? token.At("content").Text() : token.Text();
  };
  for (const char* name : kSpecialTokens) {
    if (const auto token = config.Find(name)) add(name, *token);
  }
  if (const auto extra = config.Find("extra_special_tokens"); extra && extra->IsObject()) {
    for (const auto& [name, token] : extra->Members()) add(name, token);
  }
}

// The template of a tokenizer_config.json.
std::optional<std::string> TemplateOf(const JsonValue& config) {
  const auto found = config.Find("chat_template");
  if (!found || found->IsText()) return found ? std::optional(found->Text()) : std::nullopt;
  std::string names;
  for (const JsonValue& one : found->Elements()) {
    const std::string& name = one.At("name").Text();
    if (name == "default") return one.At("template").Text();
    names += (names.empty() ? "`" : ", `") + name + "`";
  }
  found->Refuse("has no `default` among its templates" + (names.empty() ? "" : ": " + names));
}

// --- Conversations ---

struct Message {
  bool assistant = false;
  bool trained = true;
};

// As transformers' _normalize_chat_messages() and _alias_reasoning_fields() leave them, and what
// only we look at.
std::pair<Json, std::vector<Message>> ReadMessages(const Json& line) {
  const auto given = line.find("messages");
  if (given == line.end() || !given->is_array()) {
    throw DataError(
        std::string("has no list of `messages`") +
        (line.contains("instruction") ? "; `instruction` is read by source `pairs`" : ""));
  }
  if (given->empty()) throw DataError("`messages` is empty");
  Json messages = Json::array();
  std::vector<Message> read;
  for (const Json& message : *given) {
    const std::string place = "messages[" + std::to_string(read.size()) + "]";
    if (!message.is_object()) throw DataError(place + " is no object");
    const auto role = message.find("role");
    if (role == message.end() || !role->is_string()) throw DataError(place + " has no `role`");
    Message one;
    one.assistant = *role == "assistant";
    Json shown = Json::object();
    for (const auto& [key, value] : message.items()) {
      if (key != "weight") {
        if (!value.is_null()) shown[key] = value;
        continue;
      }
      if (!one.assistant) throw DataError(place + " has a `weight`, but is not the assistant's");
      if (value != 0 && value != 1) throw DataError(place + ".weight is neither 0 nor 1");
      one.trained = value == 1;
    }
    for (const char* name : kReasoning) {
      const auto reasoning = shown.find(name);
      if (reasoning == shown.end()) continue;
      const Json text = *reasoning;
      Json all = {{"thinking", text}};  // A member that is there already comes to stand first.
      all.update(shown);
      all["reasoning_content"] = text;
      shown = std::move(all);
      break;
    }
    messages.push_back(std::move(shown));
    read.push_back(one);
  }
  return {std::move(messages), std::move(read)};
}

// One conversation, rendered whole and up to some message.
class Rendering {
 public:
  Rendering(const JinjaTemplate& of, const std::map<std::string, std::string>& tokens,
            const Json& line, const ChatOptions& options)
      : template_(of), options_(options), variables_(Json::object()) {
    if (!line.is_object()) throw DataError("is no object with `messages`");
    for (const auto& [name, token] : tokens) variables_[name] = token;
    variables_["tools"] = nullptr;
    variables_["documents"] = nullptr;
    for (const auto& [key, value] : line.items()) {
      if (key != "messages") variables_[key] = value;
    }
    std::tie(messages_, read_) = ReadMessages(line);
  }

  ChatText Run() {
    variables_["messages"] = messages_;
    variables_["add_generation_prompt"] = options_.add_generation_prompt;
    JinjaText whole = template_.Render(variables_, {.date = options_.date});
    ChatText chat{std::move(whole.text), {}};
    const Ranges said = template_.has_generation() ? MatchedTo(whole.generation)
                        : NeedsRanges()            ? ByPrefix(chat.text)
                                                   : Ranges();
    chat.targets = Targets(chat.text.size(), said);
    return chat;
  }

 private:
  std::vector<size_t> Assistants() const {
    std::vector<size_t> all;
    for (size_t i = 0; i < read_.size(); ++i) {
      if (read_[i].assistant) all.push_back(i);
    }
    return all;
  }
  // Whether it matters which message says what.
  bool NeedsOwners() const {
    return options_.train_on == TrainOn::kLast ||
           std::any_of(read_.begin(), read_.end(), [](const Message& m) { return !m.trained; });
  }
  bool NeedsRanges() const { return options_.train_on != TrainOn::kAll || NeedsOwners(); }

  // Ranges that {% generation %} has marked: one for each assistant's message, where that matters.
  Ranges MatchedTo(const Ranges& marked) const {
    const size_t messages = Assistants().size();
    if (NeedsOwners() && marked.size() != messages) {
      throw DataError("{% generation %} of " + template_.name() + " marks " +
                      std::to_string(marked.size()) + " parts for " + std::to_string(messages) +
                      " messages of the assistant: cannot tell which part is of which message");
    }
    return marked;
  }

  Ranges ByPrefix(const std::string& whole) {
    Ranges ranges;
    JinjaPrefixes first(template_, variables_, "messages", "add_generation_prompt",
                        {.date = options_.date});
    for (const size_t i : Assistants()) {
      const std::string before = first.Render(i, true), with = first.Render(i + 1, false);
      if (!with.starts_with(before) || !whole.starts_with(with)) {
        throw DataError(
            "messages[" + std::to_string(i) + "]: " + template_.name() +
            " writes the first messages otherwise when others follow, so what the assistant says "
            "cannot be told from the rest: mark it by {% generation %} in a template of your own");
      }
      ranges.emplace_back(before.size(), with.size());
    }
    return ranges;
  }

  Ranges Targets(size_t bytes, const Ranges& said) const {
    Ranges targets;
    const auto add = [&](size_t begin, size_t end) {
      if (begin >= end) return;
      if (!targets.empty() && targets.back().second == begin) {
        targets.back().second = end;
      } else {
        targets.emplace_back(begin, end);
      }
    };
    const std::vector<size_t> owners = NeedsOwners() ? Assistants() : std::vector<size_t>();
    const auto trained = [&](size_t i) { return owners.empty() || read_[owners[i]].trained; };
    switch (options_.train_on) {
      case TrainOn::kAssistant:
        for (size_t i = 0; i < said.size(); ++i) {
          if (trained(i)) add(said[i].first, said[i].second);
        }
        break;
      case TrainOn::kLast:
        if (!said.empty() && trained(said.size() - 1)) add(said.back().first, said.back().second);
        break;
      case TrainOn::kAll: {
        size_t at = 0;
        for (size_t i = 0; i < said.size(); ++i) {
          if (trained(i)) continue;
          add(at, said[i].first);
          at = said[i].second;
        }
        add(at, bytes);
      }
    }
    return targets;
  }

  const JinjaTemplate& template_;
  const ChatOptions& options_;
  Json variables_, messages_;
  std::vector<Message> read_;
};

}  // namespace

Json ParseConversation(std::string_view json, const ReadsMember& reads) {
  constexpr int kMostDepth = 200;
  const auto parse = [](std::string_view text) {
    bool too_deep = false;
    Json parsed = Json::parse(
        text,
        [&](int depth, Json::parse_event_t, Json&) {
          too_deep |= depth > kMostDepth;
          return !too_deep;
        },
        /*allow_exceptions=*/false);
    if (too_deep) throw DataError("is nested more than " + std::to_string(kMostDepth) + " deep");
    return parsed;
  };
  Json parsed = parse(json);
  if (parsed.is_discarded()) parsed = parse(PlainJson(json, reads));
  if (parsed.is_discarded()) throw DataError("is no JSON");
  return parsed;
}

ChatTemplate::ChatTemplate(const std::string& name, std::string_view source,
                           std::map<std::string, std::string> special_tokens)
    : template_(name, source),
      special_tokens_(std::move(special_tokens)),
      source_(source),
      hash_(HashBytes(source)) {
  for (const auto& [token, text] : special_tokens_) hash_ = HashBytes(token + "=" + text, hash_);
}

ChatTemplate ChatTemplate::Open(const std::string& tokenizer, const std::string& file) {
  const bool bytes = tokenizer == "bytes";
  const std::filesystem::path folder = std::filesystem::path(tokenizer).parent_path();
  std::map<std::string, std::string> tokens;
  std::optional<std::string> own;
  const std::string config_path = (folder / "tokenizer_config.json").string();
  if (!bytes) {
    const std::optional<JsonValue> config = ReadJson(config_path);
    if (config) {
      AddTokens(*config, tokens);
      if (file.empty()) own = TemplateOf(*config);
    }
    // As in transformers, the older file counts where the newer one says nothing of added tokens.
    if (!config || !config->Has("added_tokens_decoder")) {
      if (const auto map = ReadJson((folder / "special_tokens_map.json").string())) {
        AddTokens(*map, tokens);
      }
    }
  }
  if (!file.empty()) return {file, ReadText(file), std::move(tokens)};
  const std::string beside = (folder / "chat_template.jinja").string();
  if (!bytes && PathExists(beside)) {
    return {beside, ReadText(beside), std::move(tokens)};
  }
  if (own) return {config_path + ":chat_template", *own, std::move(tokens)};
  throw DataError("chat template: the tokenizer " + tokenizer + " has none" +
                  (bytes ? "" : ", neither chat_template.jinja nor in tokenizer_config.json") +
                  ": give one of your own");
}

void RequireSpecialTokens(const Tokenizer& tokenizer, const ChatTemplate& chat_template) {
  for (const auto& [name, token] : chat_template.special_tokens()) {
    if (!tokenizer.IdOf(token) || tokenizer.Encode(token).size() == 1) continue;
    throw DataError("the tokenizer does not find its " + name + " `" + token +
                    "` in a text, as a SentencePiece model does not: give a tokenizer.json");
  }
}

EndOfTurn EndOfTurnOf(const ChatTemplate& chat_template, const Tokenizer& tokenizer,
                      std::optional<JinjaDate> date) {
  constexpr std::string_view kAnswer = "An answer.", kSpace = " \t\r\n";
  const Json question = {{"role", "user"}, {"content", "A question?"}};
  const Json answer = {{"role", "assistant"}, {"content", std::string(kAnswer)}};
  const Json line = {{"messages", Json::array({question, answer})}};
  EndOfTurn end;
  try {
    end.text = chat_template.Render(line, {.train_on = TrainOn::kAll, .date = date}).text;
  } catch (const DataError&) {
    return {};
  }
  const size_t at = end.text.rfind(kAnswer);
  const size_t begin =
      at == std::string::npos ? at : end.text.find_first_not_of(kSpace, at + kAnswer.size());
  if (begin == std::string::npos) return {};
  end.text = end.text.substr(begin, end.text.find_last_not_of(kSpace) + 1 - begin);
  const std::vector<int32_t> ids = tokenizer.Encode(end.text);
  if (ids.size() == 1) return {ids[0], ""};
  return end;
}

ChatText ChatTemplate::Render(const Json& line, const ChatOptions& options) const {
  return Rendering(template_, special_tokens_, line, options).Run();
}

}  // namespace fsdp
