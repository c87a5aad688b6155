// A conversation with a model on a terminal.
#ifndef FSDP_TRAIN_CMD_GENERATE_CHAT_H_
#define FSDP_TRAIN_CMD_GENERATE_CHAT_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "trainer/data/tokenizers/tokenizer.h"
#include "trainer/generate/chat_format.h"
#include "trainer/generate/sampler.h"

namespace fsdp {

struct Talk {
  const Tokenizer& tokenizer;
  const ChatFormat& format;
  std::string end_text;  // Ends an answer; "": only tokens end one.
  GenerateOptions how;   // `first` counts the answers.
  int64_t most_tokens;   // Limit of a conversation without the next answer.
  std::string model;     // The model's name, to show to the person.
  // A prompt's tokens. Throws ConfigError.
  std::function<std::vector<int32_t>(const std::string& text)> encode;
};

// Asks for a line, streams an answer, until the input ends. /new begins another conversation.
// Blocks. Throws what Generate() does.
void RunTalk(const Talk& talk, LogitsSource& model);

}  // namespace fsdp

#endif  // FSDP_TRAIN_CMD_GENERATE_CHAT_H_
