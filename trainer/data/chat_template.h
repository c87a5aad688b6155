// Conversations as the text that a model was trained on: by the chat template of its tokenizer,
// with the parts of the text that are to be learnt.
#ifndef FSDP_TRAIN_TRAINER_DATA_CHAT_TEMPLATE_H_
#define FSDP_TRAIN_TRAINER_DATA_CHAT_TEMPLATE_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "trainer/data/jinja/template.h"
#include "trainer/data/tokenizer.h"
#include "trainer/data/train_on.h"

namespace fsdp {

struct ChatOptions {
  bool add_generation_prompt = false;
  TrainOn train_on = TrainOn::kAssistant;
  std::optional<JinjaDate> date;  // Today, to the template. None: it has no strftime_now.
};

// What ChatTemplate::Render() takes, from its JSON. Throws DataError: no JSON, nested more than 200
// deep, which no conversation is.
nlohmann::ordered_json ParseConversation(std::string_view json);

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
  // special_tokens_map.json beside it. Throws DataError that names the file: missing, no JSON, a
  // template with a mistake.
  static ChatTemplate Open(const std::string& tokenizer, const std::string& file = "");
  // Special tokens by the name that templates know them by: bos_token and others.
  ChatTemplate(const std::string& name, std::string_view source,
               std::map<std::string, std::string> special_tokens);

  // `line`: an object with `messages`, a list of objects that have a `role`. `tools`, `documents`
  // and all its other members are variables of the template, as keyword arguments of transformers'
  // apply_chat_template() are. As there, members of messages that are null are left out, and
  // reasoning goes by all its names.
  //
  // What an assistant says is what {% generation %} marks. In a template without it, it is what
  // rendering the messages up to its own adds to rendering those before it with
  // add_generation_prompt. `weight` of an assistant's message, 0 or 1, takes it out of the targets,
  // and is not shown to the template.
  //
  // Threads may render at once. Throws DataError, without the place of the line: messages that are
  // none, what the template refuses, and where it cannot be told what the assistant says.
  ChatText Render(const nlohmann::ordered_json& line, const ChatOptions& options) const;

  const std::string& name() const { return template_.name(); }
  int64_t bytes() const { return bytes_; }  // Of the source.
  uint64_t hash() const { return hash_; }   // Of equal ones: equal texts.
  const std::map<std::string, std::string>& special_tokens() const { return special_tokens_; }

 private:
  JinjaTemplate template_;
  std::map<std::string, std::string> special_tokens_;
  int64_t bytes_;
  uint64_t hash_;
};

// Throws DataError where `tokenizer` makes several tokens of one of the template's special ones, as
// a SentencePiece model does, which does not look for them in a text.
void RequireSpecialTokens(const Tokenizer& tokenizer, const ChatTemplate& chat_template);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_DATA_CHAT_TEMPLATE_H_
