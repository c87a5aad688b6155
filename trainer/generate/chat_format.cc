#include "trainer/generate/chat_format.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "trainer/core/errors.h"

namespace fsdp {
namespace {

using Json = nlohmann::ordered_json;

Json Message(const char* role, const char* content) {
  return {{"role", role}, {"content", content}};
}

// White space apart; "" where nothing is behind it.
std::string BehindAnAnswer(const ChatTemplate& chat, const ChatOptions& options) {
  constexpr const char* kAnswer = "An answer.";
  ChatOptions whole = options;
  whole.add_generation_prompt = false;
  whole.train_on = TrainOn::kAll;
  std::string text;
  try {
    const Json line = {
        {"messages", Json::array({Message("user", "A question?"), Message("assistant", kAnswer)})}};
    text = chat.Render(line, whole).text;
  } catch (const DataError&) {
    return "";
  }
  const size_t at = text.rfind(kAnswer);
  if (at == std::string::npos) return "";
  text.erase(0, at + std::string_view(kAnswer).size());
  constexpr const char* kSpace = " \t\r\n";
  const size_t begin = text.find_first_not_of(kSpace);
  if (begin == std::string::npos) return "";
  return text.substr(begin, text.find_last_not_of(kSpace) + 1 - begin);
}

}  // namespace

ChatFormat::ChatFormat(ChatTemplate chat_template, const Tokenizer& tokenizer,
                       std::optional<JinjaDate> date)
    : template_(std::move(chat_template)) {
  RequireSpecialTokens(tokenizer, template_);
  options_.add_generation_prompt = true;
  options_.train_on = TrainOn::kAll;
  options_.date = date;
  end_text_ = BehindAnAnswer(template_, options_);
  if (end_text_.empty()) return;
  const std::vector<int32_t> ids = tokenizer.Encode(end_text_);
  if (ids.size() != 1) return;
  end_token_ = ids[0];
  end_text_.clear();
}

std::string ChatFormat::PromptOf(const Json& conversation) const {
  return template_.Render(conversation, options_).text;
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
