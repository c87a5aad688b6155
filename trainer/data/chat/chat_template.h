// Turns conversations into the text that a model was trained on, by the chat template of its
// tokenizer, and marks the parts that are to be learnt.
#ifndef FSDP_TRAIN_TRAINER_DATA_CHAT_CHAT_TEMPLATE_H_
#define FSDP_TRAIN_TRAINER_DATA_CHAT_CHAT_TEMPLATE_H_

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "trainer/data/chat/jinja/template.h"
#include "trainer/data/chat/train_on.h"
#include "trainer/data/text/json_line.h"
#include "trainer/data/tokenizers/tokenizer.h"

namespace fsdp {

struct ChatOptions {
  bool add_generation_prompt = false;
  TrainOn train_on = TrainOn::kAssistant;
  std::optional<JinjaDate> date;  // The template's today. None: it has no strftime_now.
};

// Parses JSON for ChatTemplate::Render(). Members that are not read may hold what only Python's
// json takes (json_line.h). Throws DataError with column and reason for text that is no JSON, and
// for text that nests more than 200 deep, which no conversation does.
nlohmann::ordered_json ParseConversation(std::string_view json, const ReadsMember& reads = nullptr);

struct ChatText {
  std::string text;
  // [begin, end) in bytes, in order, none of them empty, none beside another.
  std::vector<std::pair<size_t, size_t>> targets;
};

class ChatTemplate {
 public:
  // The template `file`, or else the tokenizer's own: chat_template.jinja beside it, or
  // `chat_template` of its tokenizer_config.json, there the one called `default` of several.
  // `tokenizer`: as for OpenTokenizer(). Special tokens come from tokenizer_config.json and
  // special_tokens_map.json beside it. Throws DataError that names the file where it is missing, is
  // no JSON, or has a template with a mistake.
  static ChatTemplate Open(const std::string& tokenizer, const std::string& file = "");
  // Special tokens by the name that templates know them by: bos_token and others.
  ChatTemplate(const std::string& name, std::string_view source,
               std::map<std::string, std::string> special_tokens);

  // `line`: an object with `messages`, a list of objects that have a `role`. `tools`, `documents`
  // and all its other members are variables of the template, as keyword arguments of transformers'
  // apply_chat_template() are. As there, members of messages that are null are left out, and
  // reasoning goes by all its names.
  //
  // {% generation %} marks the assistant's text. In a template without it, the assistant's text is
  // what its message adds: the rendering of all messages up to it, less the rendering of those
  // before it with add_generation_prompt. A `weight` of 0 takes an assistant's message out of the
  // targets; `weight`, 0 or 1, is not shown to the template.
  //
  // Threads may render at once. Throws DataError, without the place of the line, for messages that
  // are none, for what the template refuses, and where the assistant's text cannot be told.
  ChatText Render(const nlohmann::ordered_json& line, const ChatOptions& options) const;

  const std::string& name() const { return template_.name(); }
  int64_t bytes() const { return std::ssize(source_); }  // The source's.
  // Whether the template can see this member of a line: its source has the name.
  bool Reads(const std::string& member) const {
    return member == "messages" || source_.find(member) != std::string::npos;
  }
  uint64_t hash() const { return hash_; }  // Equal hashes: equal texts.
  const std::map<std::string, std::string>& special_tokens() const { return special_tokens_; }

 private:
  JinjaTemplate template_;
  std::map<std::string, std::string> special_tokens_;
  std::string source_;
  uint64_t hash_;
};

// Throws DataError where `tokenizer` splits a special token of the template into several. A
// SentencePiece model does, because it does not look for special tokens in a text.
void RequireSpecialTokens(const Tokenizer& tokenizer, const ChatTemplate& chat_template);

// The token, or else the text, that a template puts behind an answer, white space apart. Neither
// where it puts nothing there, or refuses an answer to a user's message.
struct EndOfTurn {
  std::optional<int32_t> token;
  std::string text;
};
EndOfTurn EndOfTurnOf(const ChatTemplate& chat_template, const Tokenizer& tokenizer,
                      std::optional<JinjaDate> date);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_DATA_CHAT_CHAT_TEMPLATE_H_
