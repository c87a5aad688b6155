#include "trainer/generate/chat_format.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "trainer/data/samples/line_samples.h"

namespace fsdp {

ChatFormat::ChatFormat(ChatTemplate chat_template, const Tokenizer& tokenizer,
                       std::optional<JinjaDate> date)
    : template_(std::move(chat_template)) {
  RequireSpecialTokens(tokenizer, template_);
  options_.add_generation_prompt = true;
  options_.train_on = TrainOn::kAll;
  options_.date = date;
  EndOfTurn end = EndOfTurnOf(template_, tokenizer, date);
  end_token_ = end.token;
  end_text_ = std::move(end.text);
}

std::string ChatFormat::PromptOf(nlohmann::ordered_json conversation) const {
  if (conversation.is_array()) {
    const bool theirs =
        !conversation.empty() && conversation[0].is_object() && conversation[0].contains("from");
    conversation = {{theirs ? "conversations" : "messages", std::move(conversation)}};
  }
  return template_.Render(FromShareGpt(conversation).value_or(conversation), options_).text;
}

std::string AnswerStream::Add(int32_t id) {
  held_ += text_.Add(id);
  if (end_text_.empty()) return std::exchange(held_, {});
  const size_t end = held_.find(end_text_);
  ended_ |= end != std::string::npos;
  size_t shown = end;
  if (!ended_) {
    // The longest end of it that `end_text` may begin with stays back.
    size_t back = std::min(held_.size(), end_text_.size() - 1);
    while (!end_text_.starts_with(std::string_view(held_).substr(held_.size() - back))) --back;
    shown = held_.size() - back;
  }
  std::string out = held_.substr(0, shown);
  held_.erase(0, shown);
  return out;
}

std::string AnswerStream::Finish() {
  return ended_ ? std::string() : std::exchange(held_, {}) + text_.Finish();
}

}  // namespace fsdp
