// Conversations with a model: what it is asked, and where its answers end.
// Tests: tests/trainer/generate/chat_format_test.cc
#ifndef FSDP_TRAIN_TRAINER_GENERATE_CHAT_FORMAT_H_
#define FSDP_TRAIN_TRAINER_GENERATE_CHAT_FORMAT_H_

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "trainer/data/chat/chat_template.h"
#include "trainer/data/tokenizers/tokenizer.h"

namespace fsdp {

class ChatFormat {
 public:
  // `date`: today, to the template. Throws as RequireSpecialTokens().
  ChatFormat(ChatTemplate chat_template, const Tokenizer& tokenizer, std::optional<JinjaDate> date);

  // The text that an answer to `conversation` follows: an object with `messages` as in
  // ChatTemplate::Render(), or of ShareGPT's form (FromShareGpt()), or a list of the turns of
  // either. Throws DataError.
  std::string PromptOf(nlohmann::ordered_json conversation) const;

  // The token, or else the text, that the template puts behind an answer, white space apart.
  // Neither where it puts nothing there, or refuses an answer to a user's message.
  std::optional<int32_t> end_token() const { return end_token_; }
  const std::string& end_text() const { return end_text_; }

 private:
  ChatTemplate template_;
  ChatOptions options_;
  std::optional<int32_t> end_token_;
  std::string end_text_;
};

// The text of an answer as its tokens come, up to `end_text`.
class AnswerStream {
 public:
  AnswerStream(const Tokenizer& tokenizer, std::string end_text)
      : text_(tokenizer, /*first=*/false), end_text_(std::move(end_text)) {}

  // Returns the text that can be shown now: all but an end that may yet become `end_text` or a
  // character.
  std::string Add(int32_t id);
  std::string Finish();  // The rest of the text.
  bool ended() const { return ended_; }

 private:
  TextStream text_;
  std::string end_text_;
  std::string held_;
  bool ended_ = false;
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_GENERATE_CHAT_FORMAT_H_
