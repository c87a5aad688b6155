#include "trainer/data/samples/line_samples.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>

#include "trainer/core/errors.h"
#include "trainer/core/philox.h"
#include "trainer/core/process_limits.h"
#include "trainer/core/start_thread.h"
#include "trainer/core/units.h"
#include "trainer/data/data_files.h"
#include "trainer/data/text/text_format.h"
#include "trainer/data/text/text_source.h"
#include "trainer/data/text/tokenize.h"
#include "trainer/data/tokenizers/unicode.h"
#include "trainer/data/tokens/token_manifest.h"

namespace fsdp {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kSamples = "samples.bin";

// --- Other programs' forms ---

constexpr std::string_view kShareGpt =
    "ShareGPT's `conversations`: human is the user, gpt the assistant";
constexpr std::string_view kAlpaca =
    "Alpaca's `instruction`, `input` and `output`, in the prompt of stanford_alpaca";

std::string_view RoleOf(std::string_view from) {
  if (from == "human") return "user";
  if (from == "gpt") return "assistant";
  const bool known = from == "user" || from == "assistant" || from == "system" || from == "tool";
  return known ? from : "";
}

Json MessageOf(const Json& turn, const std::string& place) {
  if (!turn.is_object()) throw DataError(place + " is no object");
  const bool own = turn.contains("role");
  const auto text = [&](const char* name) {
    const auto found = turn.find(name);
    if (found == turn.end() || !found->is_string()) {
      throw DataError(place + " has no text `" + name + "`");
    }
    return found->get<std::string>();
  };
  const std::string from = text(own ? "role" : "from");
  const std::string_view role = RoleOf(from);
  if (role.empty()) {
    throw DataError(place + (own ? ".role" : ".from") + " is `" + from +
                    "`: want human, user, gpt, assistant, system or tool");
  }
  Json message = {{"role", role}};
  if (!own) message["content"] = text("value");
  for (const auto& [key, value] : turn.items()) {
    if (key != "role" && key != "from" && key != "value") message[key] = value;
  }
  return message;
}

}  // namespace

std::optional<Json> FromShareGpt(const Json& line) {
  if (!line.is_object() || line.contains("messages")) return std::nullopt;
  const auto turns = line.find("conversations");
  if (turns == line.end() || !turns->is_array()) return std::nullopt;
  if (turns->empty()) throw DataError("`conversations` is empty");
  Json messages = Json::array();
  for (const Json& turn : *turns) {
    messages.push_back(MessageOf(turn, "conversations[" + std::to_string(messages.size()) + "]"));
  }
  Json made = line;
  made.erase("conversations");
  const auto system = line.find("system");
  if (system != line.end() && system->is_string() && *system != "" &&
      messages[0]["role"] != "system") {
    messages.insert(messages.begin(), Json{{"role", "system"}, {"content", *system}});
    made.erase("system");
  }
  made["messages"] = std::move(messages);
  return made;
}

namespace {

// --- Encoders ---

class ChatEncoder : public LineEncoder {
 public:
  ChatEncoder(std::shared_ptr<const Tokenizer> tokenizer, ChatTemplate chat_template,
              const ChatOptions& options)
      : LineEncoder(std::move(tokenizer)), template_(std::move(chat_template)), options_(options) {}

  std::string_view Encode(const Json& line, std::vector<uint32_t>& out) const override {
    const std::optional<Json> made = FromShareGpt(line);
    const ChatText chat = Render(made ? *made : line);
    const PlacedIds placed = tokenizer().EncodePlaced(chat.text);
    auto target = chat.targets.begin();
    for (size_t i = 0; i < placed.ids.size(); ++i) {
      const size_t begin = placed.begins[i];
      while (target != chat.targets.end() && target->second <= begin) ++target;
      const bool trained = target != chat.targets.end() && target->first <= begin;
      out.push_back(static_cast<uint32_t>(placed.ids[i]) | (trained ? kTargetBit : 0));
    }
    return made ? kShareGpt : "";
  }
  bool Reads(const std::string& member) const override {
    return template_.Reads(member) || member == "conversations" || member == "system";
  }
  std::string Noun() const override { return "conversation"; }
  uint64_t hash() const override {
    std::string text = "chat 1 " + std::to_string(template_.hash()) + " " +
                       std::to_string(static_cast<int>(options_.train_on));
    if (const auto& date = options_.date) {
      text += " " + std::to_string(date->year) + " " + std::to_string(date->month) + " " +
              std::to_string(date->day);
    }
    return HashBytes(text);
  }

 private:
  ChatText Render(const Json& line) const {
    try {
      return template_.Render(line, options_);
    } catch (const DataError& error) {
      const std::string what = error.what();
      if (options_.date || what.find("strftime_now") == std::string::npos) throw;
      throw DataError(what + ": data.*.date gives it a day");
    }
  }

  ChatTemplate template_;
  ChatOptions options_;
};

// The source that reads a line which is no pair.
std::string OtherSource(const Json& line) {
  if (!line.contains("messages") && !line.contains("conversations")) return "";
  return "; a line of messages is read by source `chat`";
}

// A field of text. `key`: what names it in a recipe.
const std::string& Field(const Json& line, const std::string& name, const char* key) {
  if (!line.is_object()) throw DataError("is no JSON object");
  const auto field = line.find(name);
  if (field == line.end()) {
    throw DataError("has no field `" + name + "`: `" + key + "` of the recipe's source names it" +
                    OtherSource(line));
  }
  if (!field->is_string()) throw DataError("its field `" + name + "` is no text");
  return field->get_ref<const std::string&>();
}

struct PairTexts {
  std::string prompt, completion;
  std::string_view form = {};
};

// Two texts of a line, for the next two.
class PairReader : public LineEncoder {
 public:
  PairReader(std::shared_ptr<const Tokenizer> tokenizer, PairFields fields, int32_t eot)
      : LineEncoder(std::move(tokenizer)), fields_(std::move(fields)), eot_(eot) {}

  bool Reads(const std::string& member) const override {
    const bool alpaca = member == "instruction" || member == "input" || member == "output";
    return member == fields_.prompt || member == fields_.completion ||
           (fields_.or_alpaca && alpaca);
  }
  std::string Noun() const override { return "pair"; }

 protected:
  PairTexts Read(const Json& line) const {
    const bool own = line.contains(fields_.prompt) && line.contains(fields_.completion);
    if (!fields_.or_alpaca || own || !line.contains("instruction") || !line.contains("output")) {
      return {Field(line, fields_.prompt, "prompt"), Field(line, fields_.completion, "completion")};
    }
    const bool has_input = line.contains("input") && !line["input"].is_null();
    const std::string input = has_input ? Field(line, "input", "prompt") : "";
    const std::string does = "Below is an instruction that describes a task";
    const std::string asks =
        "Write a response that appropriately completes the request.\n\n### Instruction:\n" +
        Field(line, "instruction", "prompt");
    const std::string prompt =
        input.empty() ? does + ". " + asks
                      : does + ", paired with an input that provides further context. " + asks +
                            "\n\n### Input:\n" + input;
    return {prompt + "\n\n### Response:", Field(line, "output", "completion"), kAlpaca};
  }
  const PairFields& fields() const { return fields_; }
  int32_t eot() const { return eot_; }

 private:
  PairFields fields_;
  int32_t eot_;
};

class PairEncoder : public PairReader {
 public:
  using PairReader::PairReader;

  std::string_view Encode(const Json& line, std::vector<uint32_t>& out) const override {
    const auto [prompt, completion, form] = Read(line);
    const std::string text = prompt + completion;
    if (tokenizer().bos()) out.push_back(static_cast<uint32_t>(*tokenizer().bos()));
    const PlacedIds placed = tokenizer().EncodePlaced(text);
    for (size_t i = 0; i < placed.ids.size(); ++i) {
      const bool trained = placed.begins[i] >= prompt.size();
      out.push_back(static_cast<uint32_t>(placed.ids[i]) | (trained ? kTargetBit : 0));
    }
    out.push_back(static_cast<uint32_t>(eot()) | kTargetBit);
    return form;
  }
  uint64_t hash() const override {
    // A field's name may hold anything.
    return HashBytes(Json{"pairs 1", fields().prompt, fields().completion, eot()}.dump(
        -1, ' ', false, Json::error_handler_t::replace));
  }
};

class ApartEncoder : public PairReader {
 public:
  using PairReader::PairReader;

  std::string_view Encode(const Json& line, std::vector<uint32_t>& out) const override {
    const auto [prompt, completion, form] = Read(line);
    Append(prompt, 0, out);
    Append(completion, kTargetBit, out);
    return form;
  }
  uint64_t hash() const override {
    return HashBytes(Json{"pairs apart 1", fields().prompt, fields().completion, eot()}.dump(
        -1, ' ', false, Json::error_handler_t::replace));
  }

 private:
  void Append(const std::string& text, uint32_t bit, std::vector<uint32_t>& out) const {
    for (const int32_t id : tokenizer().Encode(text))
      out.push_back(static_cast<uint32_t>(id) | bit);
    out.push_back(static_cast<uint32_t>(eot()) | bit);
  }
};

// --- Lines ---

struct Line {
  std::string text;
  size_t file;
  int64_t number;   // From 1, like the next.
  int64_t element;  // 0: the file has a record a line.
  std::vector<uint32_t> tokens = {};
  std::string_view form = {};
  std::exception_ptr error = nullptr;
};

void EncodeLine(const LineEncoder& encoder, const std::string& path, Line& line) {
  try {
    std::string buffer;
    const auto reads = [&](const std::string& member) { return encoder.Reads(member); };
    line.form =
        encoder.Encode(ParseConversation(WellFormed(line.text, buffer), reads), line.tokens);
  } catch (const DataError& error) {
    const std::string element = line.element > 0 ? ", element " + std::to_string(line.element) : "";
    line.error = std::make_exception_ptr(DataError(
        "data: " + path + ", line " + std::to_string(line.number) + element + ": " + error.what()));
  } catch (...) {
    line.error = std::current_exception();
  }
}

// The lines of files, some at a time.
class LineReader {
 public:
  explicit LineReader(const std::vector<std::string>& paths) : paths_(paths) {}

  // TooInvalid::refusal of the first of the files read so far that is; or "".
  const std::string& too_invalid() const { return too_invalid_; }

  // Up to `bytes` of them or a little more, without empty ones; none at the end. Throws DataError.
  std::vector<Line> Next(size_t bytes) {
    std::vector<Line> lines;
    for (size_t taken = 0; taken < bytes && (contents_ != nullptr || Open());) {
      const std::string_view file = contents_->bytes();
      const std::optional<std::string_view> record = NextRecord();
      if (record) {
        // A copy, of a file that is whole.
        std::string text(*record);
        const auto begin = static_cast<size_t>(record->data() - file.data());
        number_ += std::count(file.begin() + static_cast<ptrdiff_t>(counted_),
                              file.begin() + static_cast<ptrdiff_t>(begin), '\n');
        counted_ = begin;
        if (text.find_first_not_of(" \t\r") != std::string::npos) {
          taken += text.size();
          if (format_ == TextFormat::kValues) ++element_;
          lines.push_back({std::move(text), file_ - 1, number_, element_});
        }
      }
      if (!record || records_->end() == file.size()) {
        contents_->CheckIntact();
        contents_.reset();
      }
    }
    if (contents_ != nullptr) contents_->CheckIntact();
    return lines;
  }
  // The share that has been read of all files.
  double Share() const {
    const double here = contents_ == nullptr ? 0
                                             : static_cast<double>(records_->end()) /
                                                   static_cast<double>(contents_->bytes().size());
    const auto done = static_cast<double>(file_ - (contents_ == nullptr ? 0 : 1));
    return (done + here) / static_cast<double>(paths_.size());
  }

 private:
  bool Open() {
    if (file_ == paths_.size()) return false;
    contents_ = std::make_unique<const FileContents>(paths_[file_]);
    CheckFormat(*contents_);
    const auto found = FindTooInvalid(*contents_);
    if (found && too_invalid_.empty()) too_invalid_ = found->refusal;
    format_ = FormatOf(paths_[file_], contents_->bytes());
    records_.emplace(format_, contents_->bytes(), /*is_begin=*/true,
                     JsonRecords::BeginsList(contents_->bytes()));
    ++file_;
    counted_ = 0;
    number_ = 1;
    element_ = 0;
    return true;
  }
  std::optional<std::string_view> NextRecord() {
    try {
      return records_->Next();
    } catch (const DataError& error) {
      contents_->CheckIntact();
      throw DataError("data: " + contents_->path() + ", behind byte " +
                      std::to_string(records_->end()) + ": " + error.what());
    }
  }

  const std::vector<std::string>& paths_;
  std::string too_invalid_;
  size_t file_ = 0;  // The next one.
  std::unique_ptr<const FileContents> contents_;
  TextFormat format_ = TextFormat::kLines;
  std::optional<JsonRecords> records_;
  size_t counted_ = 0;  // The bytes whose line ends are in number_.
  int64_t number_ = 1, element_ = 0;
};

void EncodeAll(const LineEncoder& encoder, const std::vector<std::string>& paths, int threads,
               std::vector<Line>& lines) {
  std::atomic<size_t> next = 0, end = lines.size();
  const auto work = [&] {
    for (size_t i = next++; i < end; i = next++) {
      EncodeLine(encoder, paths[lines[i].file], lines[i]);
      if (lines[i].error) end = 0;  // All before it have been taken.
    }
  };
  std::vector<std::jthread> helpers;
  for (int i = 1; i < threads; ++i) {
    helpers.push_back(StartThread<std::jthread>("a thread that tokenises", work));
  }
  work();
}

TokenManifest Make(const LineEncoder& encoder, const LineOptions& options,
                   const std::vector<std::string>& paths, const std::string& directory,
                   const std::function<void(double share, int64_t tokens)>& progress) {
  constexpr size_t kBytes = 4 << 20;  // At a time.
  MakeDirectories(directory);
  const std::string path = directory + "/" + kSamples;
  SampleFileWriter writer(path);
  LineReader reader(paths);
  const int threads = options.threads > 0 ? options.threads : AvailableCores();
  TokenManifest manifest;
  int64_t of_others = 0;
  std::string form;
  for (std::vector<Line> lines = reader.Next(kBytes); !lines.empty(); lines = reader.Next(kBytes)) {
    if (!options.allow_invalid_text && !reader.too_invalid().empty()) {
      throw DataError(reader.too_invalid());
    }
    EncodeAll(encoder, paths, threads, lines);
    for (const Line& line : lines) {
      if (line.error) std::rethrow_exception(line.error);
      if (!line.form.empty()) ++of_others, form = line.form;
      if (line.tokens.empty()) {
        ++manifest.empty_documents;
      } else {
        writer.Append(line.tokens, line.file, line.number);
      }
    }
    progress(reader.Share(), writer.tokens());
    if (options.keep.stop && options.keep.stop()) {
      throw Error(ExitCode::kStopped, "stopped while " + paths[0] + " was tokenised");
    }
  }
  if (writer.samples() == 0) {
    throw DataError("data: " + AndMoreFiles(paths[0], paths.size()) + ": no " + encoder.Noun() +
                    " in it");
  }
  writer.Commit();
  manifest.documents = writer.samples();
  manifest.tokens = writer.tokens();
  manifest.too_invalid_utf8 = reader.too_invalid();
  if (of_others > 0) manifest.read_as = Counted(of_others, encoder.Noun()) + " read as " + form;
  manifest.shards = {{kSamples, manifest.tokens, DescribeFile(FileContents(path)).hash}};
  return manifest;
}

}  // namespace

std::shared_ptr<const LineEncoder> Conversations(std::shared_ptr<const Tokenizer> tokenizer,
                                                 ChatTemplate chat_template,
                                                 const ChatOptions& options) {
  RequireSpecialTokens(*tokenizer, chat_template);
  return std::make_shared<ChatEncoder>(std::move(tokenizer), std::move(chat_template), options);
}

std::shared_ptr<const LineEncoder> Pairs(std::shared_ptr<const Tokenizer> tokenizer,
                                         const PairFields& fields, int32_t eot) {
  return std::make_shared<PairEncoder>(std::move(tokenizer), fields, eot);
}

std::shared_ptr<const LineEncoder> PairsApart(std::shared_ptr<const Tokenizer> tokenizer,
                                              const PairFields& fields, int32_t eot) {
  return std::make_shared<ApartEncoder>(std::move(tokenizer), fields, eot);
}

std::vector<std::string> ExpandLinePaths(const std::vector<std::string>& files,
                                         const std::string& where) {
  std::vector<std::string> paths = ExpandTextPaths(files, where);
  for (const std::string& path : paths) {
    if (FormatOf(path) != TextFormat::kText) continue;
    CheckFormats({&path, 1});
    throw DataError(where + ": " + path +
                    ": is no .jsonl and no other JSON, whose objects are the samples");
  }
  return paths;
}

std::shared_ptr<const SampleFile> OpenLineSamples(const std::string& cache,
                                                  const LineEncoder& encoder,
                                                  const LineOptions& options) {
  const std::vector<std::string> paths = ExpandLinePaths(options.files);
  const std::vector<DataFile> inputs = DescribeInputs(paths);
  TokenizeOptions named;  // For the part of the key that texts have, too.
  const uint64_t key =
      HashBytes(std::to_string(encoder.hash()), TokensKey(encoder.tokenizer(), named, inputs));
  const std::string directory = BuiltDirectory(cache, key);
  const std::string what = AndMoreFiles(paths[0], paths.size());
  const auto from_cache = [&](const auto& read) { return ReadBuilt(directory, what, read); };
  BuildOnce(
      directory, what, options.keep,
      [&] { return from_cache([&] { return ReadTokenManifest(directory).has_value(); }); },
      [&](FileLock& lock) {
        TokeniseReport report(what, options.keep.say);
        TokenManifest manifest =
            Make(encoder, options, paths, directory, [&](double share, int64_t tokens) {
              lock.Touch();
              report(share, tokens);
            });
        if (DescribeInputs(paths) != inputs) {
          throw DataError("data: " + what + ": has changed while it was read: start again");
        }
        manifest.key = key;
        manifest.tokenizer = options.tokenizer;
        manifest.tokenizer_hash = encoder.tokenizer().hash();
        manifest.vocab_size = encoder.tokenizer().vocab_size();
        manifest.inputs = inputs;
        AtomicOutput output(directory + "/" + kTokenManifest);
        output.Append(ToJson(manifest));
        output.Commit();
      });
  const auto manifest = from_cache([&] { return ReadTokenManifest(directory); });
  if (manifest && !manifest->too_invalid_utf8.empty() && !options.allow_invalid_text) {
    throw DataError(manifest->too_invalid_utf8);  // Another run allowed it.
  }
  return from_cache([&] {
    const std::string path = directory + "/" + kSamples;
    const bool whole = manifest && manifest->shards.size() == 1 &&
                       manifest->shards[0].hash == DescribeFile(FileContents(path)).hash;
    if (!whole) throw DataError("data: " + path + ": is not as it was written");
    return std::make_shared<const SampleFile>(path, encoder.Noun(), inputs, manifest->read_as);
  });
}

}  // namespace fsdp
