#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <functional>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "cmd/commands.h"
#include "cmd/shared_flags.h"
#include "models/shape.h"
#include "trainer/core/errors.h"
#include "trainer/core/json.h"
#include "trainer/core/process_limits.h"
#include "trainer/core/read_file.h"
#include "trainer/core/units.h"
#include "trainer/core/utf8.h"
#include "trainer/data/tokenizers/tokenizer.h"
#include "trainer/data/tokenizers/unicode.h"
#include "trainer/generate/chat_format.h"
#include "trainer/generate/generator.h"
#include "trainer/generate/sampler.h"
#include "trainer/weights/run_tokenizer.h"

namespace fsdp {
namespace {

// ---- A conversation with a model on a terminal.

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

// Asks for a line, streams an answer, until the input ends. /new begins another conversation, /exit
// ends.
// Blocks. Throws what Generate() does.
void RunTalk(const Talk& talk, LogitsSource& model) {
  const std::string how = "a line is a message, /new begins anew, /exit or Ctrl-D ends.\n";
  Show("Talk to " + talk.model + ": " + how);
  Json messages = Json::array();
  uint64_t number = 0;
  for (std::string line; Show("> "), std::getline(std::cin, line);) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    if (line == "/exit" || line == "/quit") return;
    if (line == "/new") messages.clear();
    if (line == "/help") Show(how);
    if (line == "/new" || line == "/help") continue;
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

// ---- The command.

// Tokens of a conversation on a terminal, at most: the cache has room for them from the start.
constexpr int64_t kMostOfATalk = 8192;

struct GenerateFlags {
  std::string checkpoint, tokenizer, chat_template;
  std::vector<std::string> prompts, prompt_files, prompt_ids, messages;
  int64_t samples = 1, batch = 8, max_tokens = 200;
  Sampling sampling;
  uint64_t seed = 0;
  int threads = 0;
  std::string device = "auto";
  bool latest = false, ignore_eot = false, json = false;
};

struct Prompt {
  std::string text;
  std::vector<int32_t> tokens;
  bool is_chat = false;   // The text is the template's.
  bool is_shown = false;  // The text is the begin of what is shown.
};

const char* Name(Continuation::End end) {
  switch (end) {
    case Continuation::End::kLength:
      return "length";
    case Continuation::End::kEndOfText:
      return "end_of_text";
    case Continuation::End::kContext:
      return "context";
  }
  return "";
}

// "1,2,3"
std::vector<int32_t> ParseIds(const std::string& text, int64_t vocab) {
  std::vector<int32_t> ids;
  std::istringstream in(text);
  for (std::string item; std::getline(in, item, ',');) {
    int64_t id = -1;
    size_t end = 0;
    try {
      id = std::stoll(item, &end);
    } catch (const std::exception&) {
      end = 0;
    }
    const bool whole = end > 0 && item.find_first_not_of(' ', end) == std::string::npos;
    if (!whole || id < 0 || id >= vocab) {
      throw ConfigError("--prompt-ids: `" + item +
                        "` is no token of the model: want ids from 0 to " +
                        std::to_string(vocab - 1) + ", as in 1,2,3");
    }
    ids.push_back(static_cast<int32_t>(id));
  }
  if (ids.empty()) throw ConfigError("--prompt-ids: is empty");
  return ids;
}

void CheckVocabulary(const std::vector<int32_t>& tokens, int64_t vocab) {
  for (const int32_t token : tokens) {
    if (token < vocab) continue;
    throw ConfigError("--tokenizer: token " + std::to_string(token) +
                      " of the prompt is outside the model's vocabulary of " +
                      std::to_string(vocab));
  }
}

std::vector<int32_t> Encoded(const std::string& text, const Tokenizer& tokenizer, int64_t vocab) {
  std::vector<int32_t> tokens;
  if (tokenizer.bos()) tokens.push_back(*tokenizer.bos());
  for (const int32_t token : tokenizer.Encode(text)) tokens.push_back(token);
  if (tokens.empty() && tokenizer.eot()) tokens.push_back(*tokenizer.eot());
  if (tokens.empty()) {
    throw ConfigError("--prompt: is empty, and the tokenizer has no token to begin with");
  }
  CheckVocabulary(tokens, vocab);
  return tokens;
}

// An encoder's input ends as a sample of training does.
std::vector<int32_t> EncodedInput(const std::string& text, const Tokenizer& tokenizer,
                                  const std::vector<int32_t>& eos, int64_t vocab) {
  std::vector<int32_t> tokens = tokenizer.Encode(text);
  if (!eos.empty()) tokens.push_back(eos.front());
  if (tokens.empty()) throw ConfigError("--prompt: is empty, and no token ends it");
  CheckVocabulary(tokens, vocab);
  return tokens;
}

// Adds no token at the begin: the template has written it.
std::vector<int32_t> EncodedChat(const std::string& text, const Tokenizer& tokenizer,
                                 int64_t vocab) {
  std::vector<int32_t> tokens = tokenizer.Encode(text);
  if (tokens.empty()) throw ConfigError("--messages: the chat template makes nothing of them");
  CheckVocabulary(tokens, vocab);
  return tokens;
}

// A file of --messages, through the template.
std::string PromptOfMessages(const std::string& file, const ChatFormat& format) {
  const FileText read = ReadFileText(file, kMostTextBytes, ReadFrom::kPipeToo);
  const std::string where = "--messages: " + file + ": ";
  if (!read.why.empty()) throw ConfigError(where + read.why);
  try {
    return format.PromptOf(ParseConversation(read.text));
  } catch (const DataError& error) {
    throw ConfigError(where + error.what());
  }
}

JinjaDate Today() {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  ::localtime_r(&now, &local);
  return {local.tm_year + 1900, local.tm_mon + 1, local.tm_mday};
}

// `format`: null where no messages are given. `encode`: from a text of --prompt. `encoded`: the
// model makes a target of a prompt, which is no part of it.
std::vector<Prompt> PromptsOf(
    const GenerateFlags& flags, const Tokenizer& tokenizer, const ChatFormat* format, int64_t vocab,
    int64_t positions, bool encoded,
    const std::function<std::vector<int32_t>(const std::string& text)>& encode) {
  std::vector<std::string> texts = flags.prompts;
  for (const std::string& file : flags.prompt_files) {
    const std::string path = file == "-" ? "/dev/stdin" : file;
    FileText read = ReadFileText(path, kMostTextBytes, ReadFrom::kPipeToo);
    if (!read.why.empty()) throw ConfigError("--prompt-file: " + file + ": " + read.why);
    texts.push_back(std::move(read.text));
  }
  std::vector<Prompt> prompts;
  const auto add = [&](const char* flag, const Prompt& prompt) {
    if (static_cast<int64_t>(prompt.tokens.size()) > positions) {
      throw ConfigError(std::string(flag) + ": has " + std::to_string(prompt.tokens.size()) +
                        " tokens, and the model has " + std::to_string(positions) + " positions");
    }
    for (int64_t i = 0; i < flags.samples; ++i) prompts.push_back(prompt);
  };
  for (const std::string& text : texts) {
    add("--prompt", {.text = text, .tokens = encode(text), .is_shown = !encoded});
  }
  for (const std::string& list : flags.prompt_ids) {
    const std::vector<int32_t> ids = ParseIds(list, vocab);
    add("--prompt-ids", {.text = tokenizer.Decode(ids), .tokens = ids, .is_shown = !encoded});
  }
  for (const std::string& file : flags.messages) {
    const std::string text = PromptOfMessages(file, *format);
    add("--messages",
        {.text = text, .tokens = EncodedChat(text, tokenizer, vocab), .is_chat = true});
  }
  return prompts;
}

// The tokenizer, extended to all ids of the model. A prompt of ids needs none.
std::shared_ptr<const Tokenizer> TokenizerFor(const GenerateFlags& flags,
                                              const StoredModel& stored) {
  const auto size = static_cast<int32_t>(VocabSize(stored.shape));
  if (!flags.tokenizer.empty()) return PaddedVocabulary(OpenTokenizer(flags.tokenizer), size);
  const bool ids_alone =
      flags.prompts.empty() && flags.prompt_files.empty() && !flags.prompt_ids.empty();
  if (stored.tokenizer.name.empty()) {
    if (ids_alone) return PaddedVocabulary(nullptr, size);
    throw ConfigError(stored.directory +
                      ": names no tokenizer; give --tokenizer (bytes, a tokenizer.json or a "
                      "SentencePiece model), or the prompt by --prompt-ids");
  }
  try {
    return PaddedVocabulary(OpenRunTokenizer(stored.tokenizer), size);
  } catch (const DataError& error) {
    if (!ids_alone) throw DataError(std::string(error.what()) + "; --tokenizer names another");
    std::fprintf(stderr, "warning: %s\n", Printable(error.what()).c_str());
    return PaddedVocabulary(nullptr, size);
  }
}

// Attention reaches back only so far, so that a text does not go on from its last tokens alone.
bool HasWindow(const ModelShape& shape) {
  return std::get<int64_t>(shape.Find("sliding_window").value_or(FieldValue(int64_t{0}))) > 0;
}

std::string IdList(const std::vector<int32_t>& ids) {
  std::string list;
  for (const int32_t id : ids) list += (list.empty() ? "" : ", ") + std::to_string(id);
  return "[" + list + "]";
}

ChatFormat FormatFor(const GenerateFlags& flags, const StoredModel& stored,
                     const Tokenizer& tokenizer) {
  const bool own = flags.tokenizer.empty();
  std::string file = flags.chat_template;
  if (file.empty() && own) file = stored.tokenizer.chat_template;
  try {
    ChatTemplate chat = ChatTemplate::Open(own ? stored.tokenizer.name : flags.tokenizer, file);
    return {std::move(chat), tokenizer, Today()};
  } catch (const DataError& error) {
    throw DataError(std::string(error.what()) + "; --template names one");
  }
}

void Run(const GenerateFlags& flags) {
  const bool asks = !(flags.prompts.empty() && flags.prompt_files.empty() &&
                      flags.prompt_ids.empty() && flags.messages.empty());
  if (!asks && ::isatty(STDIN_FILENO) == 0) {
    throw ConfigError(
        "generate: needs --prompt, --prompt-file (- is the standard input), --prompt-ids or "
        "--messages; only on a terminal it talks without them");
  }
  if (!asks && (flags.json || flags.samples > 1)) {
    throw ConfigError(std::string(flags.json ? "--json" : "--samples") +
                      ": belongs to a prompt or to --messages: on a terminal it talks");
  }
  if (asks && flags.messages.empty() && !flags.chat_template.empty()) {
    throw ConfigError("--template: belongs to --messages, or to talking on a terminal");
  }
  StoredModel stored = OpenStoredModel(CheckpointToRead(flags.checkpoint, flags.latest));
  for (const std::string& note : stored.notes)
    std::fprintf(stderr, "%s\n", Printable(stored.directory + ": " + note).c_str());
  const bool encodes = stored.shape.family().TargetDecoder(stored.shape).has_value();
  if (encodes && (!asks || !flags.messages.empty())) {
    throw ConfigError(std::string(asks ? "--messages" : "generate") + ": a `" +
                      std::string(FamilyOf(stored.shape)) +
                      "` makes a text of a text, and is in no conversation: give --prompt");
  }
  const std::shared_ptr<const Tokenizer> tokenizer = TokenizerFor(flags, stored);
  const int64_t vocab = VocabSize(stored.shape), limit = MaxPositions(stored.shape);
  std::optional<ChatFormat> format;
  if (!asks || !flags.messages.empty()) format = FormatFor(flags, stored, *tokenizer);
  std::vector<int32_t> eos = stored.eos;
  if (eos.empty() && tokenizer->eot()) eos.push_back(*tokenizer->eot());
  const std::vector<Prompt> prompts =
      PromptsOf(flags, *tokenizer, format ? &*format : nullptr, vocab, limit, encodes,
                [&](const std::string& text) {
                  return encodes ? EncodedInput(text, *tokenizer, eos, vocab)
                                 : Encoded(text, *tokenizer, vocab);
                });

  GenerateOptions how;
  how.max_tokens = encodes ? std::min(flags.max_tokens, limit) : flags.max_tokens;
  how.sampling = flags.sampling;
  how.seed = flags.seed;
  how.vocab = static_cast<int32_t>(vocab);
  how.never = tokenizer->Lacks(vocab);
  for (const int32_t id : stored.own) std::erase(how.never, id);
  if (!flags.ignore_eot) {
    how.eos = eos;
    how.eos.insert(how.eos.end(), stored.other_ends.begin(), stored.other_ends.end());
    if (format && format->end_token()) how.eos.push_back(*format->end_token());
  }
  size_t longest = 0;
  for (const Prompt& prompt : prompts) longest = std::max(longest, prompt.tokens.size());
  const int64_t wanted = static_cast<int64_t>(longest) + (asks ? 0 : 1) + flags.max_tokens;
  if (HasWindow(stored.shape) && wanted > limit) {
    throw ConfigError("--max-tokens: up to " + std::to_string(wanted) +
                      " tokens, and the model's sliding_window is " + std::to_string(limit));
  }
  GeneratorOptions options;
  options.rows = std::min<int64_t>(flags.batch, static_cast<int64_t>(prompts.size()));
  options.capacity = std::min(limit, static_cast<int64_t>(longest) + flags.max_tokens);
  if (encodes) {
    options.input = static_cast<int64_t>(longest);
    options.capacity = how.max_tokens;
  }
  const int64_t answer = HasWindow(stored.shape) ? flags.max_tokens : 0;
  const int64_t talk = std::min(limit - answer, kMostOfATalk);
  if (!asks) {
    options.rows = 1;
    options.capacity = std::min(limit, talk + flags.max_tokens);
  }
  options.threads = flags.threads > 0 ? flags.threads : AvailableCores();
  options.device = DeviceHere(flags.device);
  Generator generator(std::move(stored), options);
  SlidingRows rows(generator);
  if (!asks) {
    const auto encode = [&](const std::string& text) {
      return EncodedChat(text, *tokenizer, vocab);
    };
    RunTalk({*tokenizer, *format, flags.ignore_eot ? "" : format->end_text(), how, talk,
             flags.checkpoint, encode},
            rows);
    return;
  }

  // One text is shown as it comes, several when they are whole.
  const bool live = prompts.size() == 1 && !flags.json;
  const auto stream_of = [&](const Prompt& prompt) {
    const bool ends = prompt.is_chat && !flags.ignore_eot;
    return AnswerStream(*tokenizer, ends ? format->end_text() : "");
  };
  if (live && prompts[0].is_shown) Show(prompts[0].text);
  for (size_t first = 0; first < prompts.size(); first += static_cast<size_t>(options.rows)) {
    const size_t end = std::min(prompts.size(), first + static_cast<size_t>(options.rows));
    std::vector<std::vector<int32_t>> tokens;
    for (size_t p = first; p < end; ++p) tokens.push_back(prompts[p].tokens);
    how.first = first;
    std::vector<AnswerStream> streams;
    for (size_t p = first; p < end; ++p) streams.push_back(stream_of(prompts[p]));
    std::vector<std::string> texts(streams.size());
    how.ends = [&](size_t p, std::span<const int32_t>) { return streams[p].ended(); };
    const auto take = [&](size_t p, const std::string& text) {
      live ? Show(text) : void(texts[p] += text);
    };
    const std::vector<Continuation> all = Generate(
        rows, tokens, how, [&](size_t p, int32_t token) { take(p, streams[p].Add(token)); });
    for (size_t p = 0; p < streams.size(); ++p) take(p, streams[p].Finish());
    for (size_t i = 0; i < all.size() && !live; ++i) {
      const Prompt& prompt = prompts[first + i];
      const std::string& text = texts[i];
      if (flags.json) {
        std::printf("%s\n", JsonObject()
                                .Add("prompt", prompt.text)
                                .Add("text", text)
                                .AddRaw("prompt_tokens", IdList(prompt.tokens))
                                .AddRaw("tokens", IdList(all[i].tokens))
                                .Add("end", Name(all[i].end))
                                .Text()
                                .c_str());
      } else {
        std::printf("%s--- %zu of %zu\n%s%s\n", first + i == 0 ? "" : "\n", first + i + 1,
                    prompts.size(), prompt.is_shown ? Printable(prompt.text).c_str() : "",
                    Printable(text).c_str());
      }
    }
    if (live) std::printf("\n");
  }
  if (rows.slid()) {
    std::fprintf(stderr,
                 "generate: the model has %s: tokens behind them were each computed from the last "
                 "%lld alone\n",
                 Counted(limit, "position").c_str(), static_cast<long long>(limit));
  }
}

}  // namespace

Command GenerateCommand() {
  const auto flags = std::make_shared<GenerateFlags>();
  Command command{"generate", "Continue a text with a checkpoint's model, or talk to it"};
  command.flags = {
      CheckpointFlag(&flags->checkpoint),
      LatestFlag(&flags->latest),
      {"--prompt", &flags->prompts, "A text to continue; may be given several times",
       FlagRules{.value = "TEXT", .one_each = true}},
      {"--prompt-file", &flags->prompt_files,
       "A file with a text to continue; -: what comes in by a pipe",
       FlagRules{.value = "FILE", .one_each = true}},
      {"--prompt-ids", &flags->prompt_ids,
       "A text to continue as token ids, such as 1,2,3; needs no tokenizer",
       FlagRules{.value = "IDS", .one_each = true}},
      {"--messages", &flags->messages,
       "A conversation to answer: a JSON list of objects with role and content, or an object with "
       "such `messages`, or ShareGPT's `conversations`. Without a prompt, on a terminal, generate "
       "talks",
       FlagRules{.value = "FILE", .one_each = true}},
      {"--template", &flags->chat_template,
       "The chat template of conversations, in place of the model's own",
       FlagRules{.value = "FILE"}},
      {"--tokenizer", &flags->tokenizer,
       "bytes, a tokenizer.json or a SentencePiece model, in place of the model's own",
       FlagRules{.value = "PATH"}},
      {"--max-tokens", &flags->max_tokens,
       "Most new tokens; beyond the model's positions its window slides",
       FlagRules{.range = {1, int64_t{1} << 31}, .shows_default = true}},
      {"--temperature", &flags->sampling.temperature,
       "Divides the logits; 0: always the likeliest token",
       FlagRules{.range = {0, 1e9}, .shows_default = true}},
      {"--top-k", &flags->sampling.top_k, "Draw from the k likeliest tokens; 0: from all",
       FlagRules{.range = {0, int64_t{1} << 31}, .shows_default = true}},
      {"--top-p", &flags->sampling.top_p,
       "Draw from the likeliest tokens that together have this probability",
       FlagRules{.range = {1e-9, 1}, .shows_default = true}},
      {"--seed", &flags->seed, "Seed of the draws", kShowsDefault},
      {"--samples", &flags->samples, "Continuations of each prompt",
       FlagRules{.range = {1, 1 << 20}, .shows_default = true}},
      {"--batch", &flags->batch, "Continuations at a time",
       FlagRules{.range = {1, 1 << 16}, .shows_default = true}},
      {"--threads", &flags->threads, "CPU threads; 0: one per core",
       FlagRules{.range = {0, 1 << 16}, .shows_default = true}},
      {"--device", &flags->device, "The device. auto: a GPU if one can be used, otherwise the CPU",
       FlagRules{.choices = kDevices, .shows_default = true}},
      {"--ignore-eot", &flags->ignore_eot, "Go on after an end-of-text token"},
      {"--json", &flags->json, "One JSON object per continuation, with the token ids"},
  };
  command.run = [flags] { Run(*flags); };
  return command;
}

}  // namespace fsdp
