// Samples from the objects of JSON files (text_format.h): conversations, through the chat template
// of their tokenizer, and completions of prompts. They are tokenised once, when a run first asks
// for them, and kept in a directory of the host, for its ranks and for later runs.
// Tests: tests/trainer/data/samples/line_samples_test.cc
#ifndef FSDP_TRAIN_TRAINER_DATA_SAMPLES_LINE_SAMPLES_H_
#define FSDP_TRAIN_TRAINER_DATA_SAMPLES_LINE_SAMPLES_H_

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "trainer/data/build_once.h"
#include "trainer/data/chat/chat_template.h"
#include "trainer/data/samples/sample_file.h"
#include "trainer/data/tokenizers/tokenizer.h"

namespace fsdp {

// Makes a sample of a line. Any number of threads may use one encoder.
class LineEncoder {
 public:
  explicit LineEncoder(std::shared_ptr<const Tokenizer> tokenizer)
      : tokenizer_(std::move(tokenizer)) {}
  virtual ~LineEncoder() = default;

  // Appends the line's tokens. A token has kTargetBit, is a target, if its first character is
  // trained on. Returns in words the form of another program that the line has, or "". Throws
  // DataError, without the place.
  virtual std::string_view Encode(const nlohmann::ordered_json& line,
                                  std::vector<uint32_t>& out) const = 0;
  virtual bool Reads(const std::string& member) const = 0;  // A member of the line.
  virtual std::string Noun() const = 0;                     // "conversation".
  virtual uint64_t hash() const = 0;                        // Equal hashes: equal samples.
  const Tokenizer& tokenizer() const { return *tokenizer_; }

 private:
  std::shared_ptr<const Tokenizer> tokenizer_;
};

// The object with `messages` made of ShareGPT's `conversations`: a list of `from` (human or user,
// gpt or assistant, system, tool) and `value`, which are role and content; `system` is then the
// first message, unless the list begins with one (as in axolotl's
// prompt_strategies/chat_template.py). Nullopt where it has `messages`, or no such list. Throws
// DataError, without the place.
std::optional<nlohmann::ordered_json> FromShareGpt(const nlohmann::ordered_json& line);

// An object with `messages`, as ChatTemplate::Render() takes it, or as FromShareGpt() does. The
// template writes what a conversation begins and ends with. Throws as RequireSpecialTokens().
std::shared_ptr<const LineEncoder> Conversations(std::shared_ptr<const Tokenizer> tokenizer,
                                                 ChatTemplate chat_template,
                                                 const ChatOptions& options);

// An object with two fields of text, the second of which goes on where the first ends. The
// tokenizer's bos comes before, where it has one, and `eot` behind; the second text and `eot` are
// the targets. `or_alpaca`: an object that lacks one of the two and has Alpaca's `instruction` and
// `output`, and perhaps `input`, is written out by the prompt of stanford_alpaca's train.py.
struct PairFields {
  std::string prompt, completion;
  bool or_alpaca = false;
};
std::shared_ptr<const LineEncoder> Pairs(std::shared_ptr<const Tokenizer> tokenizer,
                                         const PairFields& fields, int32_t eot);

// Two texts that are tokenised apart: `eot` ends each of them, and nothing comes before. The
// targets are the second text.
std::shared_ptr<const LineEncoder> PairsApart(std::shared_ptr<const Tokenizer> tokenizer,
                                              const PairFields& fields, int32_t eot);

struct LineOptions {
  std::vector<std::string> files;   // As in ExpandTextPaths(), of JSON.
  std::string tokenizer;            // As it was opened, for the record.
  bool allow_invalid_text = false;  // Files that are TooInvalid, too.
  int threads = 0;                  // 0: the cores that this process may use. They change no bit.
  BuildOnceOptions keep = {};
};

// The samples of all lines, in order, without empty lines, from a directory below `cache` that is
// named after encoder and contents of the files. Any number of processes may ask at once: one
// writes, the others wait. Blocks. Throws as BuildOnce(). Throws DataError that names file and
// line, as ParseConversation() and the encoder do, and DataError where no sample remains.
std::shared_ptr<const SampleFile> OpenLineSamples(const std::string& cache,
                                                  const LineEncoder& encoder,
                                                  const LineOptions& options);

// The files, checked only for other formats than JSON. Throws DataError.
std::vector<std::string> ExpandLinePaths(const std::vector<std::string>& files,
                                         const std::string& where = "data");

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_DATA_SAMPLES_LINE_SAMPLES_H_
