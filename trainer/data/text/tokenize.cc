#include "trainer/data/text/tokenize.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <limits>
#include <memory>
#include <span>
#include <stdexcept>
#include <utility>

#include "trainer/core/errors.h"
#include "trainer/core/json_reader.h"
#include "trainer/core/json_tree.h"
#include "trainer/core/philox.h"
#include "trainer/core/process_limits.h"
#include "trainer/core/read_file.h"
#include "trainer/data/atomic_output.h"
#include "trainer/data/data_files.h"
#include "trainer/data/decompress.h"
#include "trainer/data/text/text_chunks.h"
#include "trainer/data/text/text_format.h"
#include "trainer/data/text/text_source.h"
#include "trainer/data/tokens/token_file.h"

namespace fsdp {
namespace {

constexpr const char* kProgressFile = "progress.json";

// --- Writing shards ---

// Where the next shard begins: `skip` ids into the chunk at `offset` of a file.
struct Position {
  size_t file = 0, offset = 0;
  int64_t skip = 0;
  TextCounts counts;  // Before that chunk.
};

class Shards {
 public:
  Shards(const std::string& directory, TokenDType dtype, int64_t shard_tokens,
         std::vector<TokenManifest::Shard> done)
      : directory_(directory), dtype_(dtype), shard_tokens_(shard_tokens), done_(std::move(done)) {}

  // Appends ids; on_shard(ids of these in whole shards) after each shard that they fill.
  template <typename OnShard>
  void Append(std::span<const int32_t> ids, const OnShard& on_shard) {
    for (size_t at = 0; at < ids.size();) {
      if (!output_) Open();
      const size_t n = std::min(ids.size() - at, static_cast<size_t>(shard_tokens_ - in_shard_));
      AppendIds(ids.subspan(at, n));
      at += n;
      if (in_shard_ < shard_tokens_) continue;
      Close();
      on_shard(static_cast<int64_t>(at));
    }
  }
  void Finish() {
    if (output_) Close();
  }
  const std::vector<TokenManifest::Shard>& done() const { return done_; }

 private:
  void Open() {
    char name[32];
    std::snprintf(name, sizeof(name), "tokens_%05zu.bin", done_.size());
    name_ = name;
    output_ = std::make_unique<AtomicOutput>(directory_ + "/" + name_);
    output_->Append(LlmcHeader(dtype_, 0));
    in_shard_ = 0;
  }
  void AppendIds(std::span<const int32_t> ids) {
    if (dtype_ == TokenDType::kUint16) {
      narrow_.assign(ids.begin(), ids.end());
      output_->Append({reinterpret_cast<const char*>(narrow_.data()), narrow_.size() * 2});
    } else {
      output_->Append({reinterpret_cast<const char*>(ids.data()), ids.size() * 4});
    }
    in_shard_ += std::ssize(ids);
  }
  void Close() {
    output_->Overwrite(0, LlmcHeader(dtype_, in_shard_));
    output_->Commit();
    output_.reset();
    done_.push_back({name_, in_shard_, DescribeFile(FileContents(directory_ + "/" + name_)).hash});
  }

  const std::string directory_;
  const TokenDType dtype_;
  const int64_t shard_tokens_;
  std::vector<TokenManifest::Shard> done_;
  std::unique_ptr<AtomicOutput> output_;
  std::string name_;
  int64_t in_shard_ = 0;
  std::vector<uint16_t> narrow_;
};

// --- progress.json ---

struct Progress {
  uint64_t key = 0;
  Position next;
  std::vector<TokenManifest::Shard> shards;
};

std::string ToJson(const Progress& progress) {
  JsonTree shards = JsonTree::List();
  for (const TokenManifest::Shard& shard : progress.shards) {
    shards.Append(JsonTree::Object(
        {{"file", shard.file}, {"tokens", shard.tokens}, {"hash", std::to_string(shard.hash)}}));
  }
  const JsonTree json = JsonTree::Object({{"key", std::to_string(progress.key)},
                                          {"file", progress.next.file},
                                          {"offset", progress.next.offset},
                                          {"skip", progress.next.skip},
                                          {"documents", progress.next.counts.documents},
                                          {"empty", progress.next.counts.empty},
                                          {"invalid", progress.next.counts.invalid},
                                          {"first_invalid", progress.next.counts.first_invalid},
                                          {"too_invalid", progress.next.counts.too_invalid},
                                          {"shards", shards}});
  // A path need not be UTF-8.
  return json.Dump(1, JsonTree::IllFormed::kReplaced) + "\n";
}

std::optional<Progress> ReadProgress(const std::string& path) {
  const FileText read = ReadFileText(path, kAnySize);
  if (read.error != 0) return std::nullopt;
  if (!read.why.empty()) throw DataError("tokenize: " + path + ": " + read.why);
  try {
    const JsonValue json = ParseJson(read.text, path, {});
    Progress p;
    p.key = std::stoull(json.At("key").Text());
    p.next = {
        json.At("file").Unsigned(),
        json.At("offset").Unsigned(),
        json.At("skip").Integer(),
        {json.At("documents").Integer(), json.At("empty").Integer(), json.At("invalid").Integer(),
         json.At("first_invalid").Text(), json.At("too_invalid").Text()}};
    for (const JsonValue& shard : json.At("shards").Elements()) {
      p.shards.push_back({shard.At("file").Text(), shard.At("tokens").Integer(),
                          std::stoull(shard.At("hash").Text())});
    }
    return p;
  } catch (const std::exception&) {
    throw DataError("tokenize: " + path + ": is damaged: remove the directory and start again");
  }
}

void WriteFile(const std::string& path, const std::string& text) {
  AtomicOutput output(path);
  output.Append(text);
  output.Commit();
}

void CheckShards(const std::string& directory, TokenDType dtype,
                 const std::vector<TokenManifest::Shard>& shards) {
  for (const TokenManifest::Shard& shard : shards) {
    struct stat info;
    const std::string path = directory + "/" + shard.file;
    if (::stat(path.c_str(), &info) != 0 ||
        info.st_size != kLlmcHeaderBytes + shard.tokens * SizeOf(dtype) ||
        shard.hash != DescribeFile(FileContents(path)).hash) {
      throw DataError("tokenize: " + path +
                      ": is not as it was written: remove the directory and start again");
    }
  }
}

void RefuseTooInvalid(const std::string& message, const TokenizeOptions& options) {
  if (!message.empty() && !options.allow_invalid_text) throw DataError(message);
}

}  // namespace

std::string Remarks(const TokenManifest& manifest) {
  const auto counted = [](int64_t n, const std::string& one, const std::string& many) {
    return std::to_string(n) + " " + (n == 1 ? one : many);
  };
  std::string text;
  if (manifest.empty_documents > 0) {
    text = counted(manifest.empty_documents, "empty document", "empty documents") + " left out";
  }
  if (manifest.invalid_utf8 > 0) {
    text += (text.empty() ? "" : "; ") +
            counted(manifest.invalid_utf8, "place that is", "places that are") + " no UTF-8, " +
            (manifest.tokenizer == "bytes" ? "kept as bytes" : "read as U+FFFD") +
            ": the first is " + manifest.first_invalid_utf8;
  }
  return text;
}

std::vector<DataFile> DescribeInputs(const std::vector<std::string>& files) {
  std::vector<DataFile> out;
  for (const std::string& path : ExpandTextPaths(files)) {
    out.push_back(DescribeFile(FileContents(path, FileContents::As::kStored)));
  }
  return out;
}

uint64_t TokensKey(const Tokenizer& tokenizer, const TokenizeOptions& options,
                   const std::vector<DataFile>& inputs) {
  const std::optional<int32_t> eot = options.eot ? options.eot : tokenizer.eot();
  // The number: builds that took anything for text have none.
  std::string text = "1 " + std::to_string(tokenizer.hash()) + " " +
                     std::to_string(eot.value_or(-1)) + " " + options.column + "\n";
  constexpr const char* kFormats[] = {"", " lines", " values"};
  for (const DataFile& input : inputs) {
    // How the file is read, which its name may decide.
    text += std::to_string(input.bytes) + " " + std::to_string(input.hash) +
            kFormats[static_cast<size_t>(FormatOf(input.path))] +
            (IsCompressed(input.path) ? input.path.substr(input.path.rfind('.')) : "");
    struct stat info;
    if (input.bytes > kHashedWhole && ::stat(input.path.c_str(), &info) == 0) {
      text +=
          " " + std::to_string(info.st_mtim.tv_sec) + "." + std::to_string(info.st_mtim.tv_nsec);
    }
    text += "\n";
  }
  return HashBytes(text);
}

TokenManifest Tokenize(const Tokenizer& tokenizer, const std::string& name,
                       const TokenizeOptions& options) {
  if (options.shard_tokens < 1 || options.shard_tokens > std::numeric_limits<int32_t>::max() ||
      options.threads < 0 || options.chunk_bytes < 1) {
    throw std::invalid_argument("[Tokenize] shard_tokens " + std::to_string(options.shard_tokens) +
                                ", threads " + std::to_string(options.threads) + ", chunk_bytes " +
                                std::to_string(options.chunk_bytes));
  }
  const std::optional<int32_t> eot = options.eot ? options.eot : tokenizer.eot();
  if (eot && (*eot < 0 || *eot >= tokenizer.vocab_size())) {
    throw DataError("tokenize: end-of-text token " + std::to_string(*eot) + " is none of the " +
                    std::to_string(tokenizer.vocab_size()) + " tokens of " + name);
  }
  const std::vector<DataFile> inputs = DescribeInputs(options.files);
  std::vector<std::string> paths;
  int64_t total = 0;
  for (const DataFile& input : inputs) {
    paths.push_back(input.path);
    total += input.bytes;
  }
  MakeDirectories(options.directory);
  FileLock lock(options.directory + "/.lock");
  if (!lock.Try()) {
    throw DataError("tokenize: " + options.directory + ": another process writes tokens there");
  }
  const TokenDType dtype =
      tokenizer.vocab_size() <= 1 << 16 ? TokenDType::kUint16 : TokenDType::kUint32;
  const std::string cure = ": name another directory, or remove this one";
  if (std::optional<TokenManifest> done = ReadTokenManifest(options.directory)) {
    if (done->key != TokensKey(tokenizer, options, inputs)) {
      throw DataError("tokenize: " + options.directory +
                      ": holds the tokens of another tokenizer (" + done->tokenizer +
                      ") or of other files, or with other options, or of an older build" + cure);
    }
    CheckShards(options.directory, dtype, done->shards);
    RefuseTooInvalid(done->too_invalid_utf8, options);
    return *done;
  }

  const std::string progress_path = options.directory + "/" + kProgressFile;
  const uint64_t key =
      HashBytes(std::to_string(options.shard_tokens) + " " + std::to_string(options.chunk_bytes),
                TokensKey(tokenizer, options, inputs));
  Progress state{key, {}, {}};
  TokenizeProgress report;
  if (std::optional<Progress> before = ReadProgress(progress_path)) {
    if (before->key != key) {
      throw DataError("tokenize: " + options.directory +
                      ": has begun to hold other tokens (other tokenizer, files or options)" +
                      cure);
    }
    CheckShards(options.directory, dtype, before->shards);
    state = *before;
    report.resumed = true;
  }
  CheckFormats(paths);  // Before hours are spent on those that come first.

  Shards shards(options.directory, dtype, options.shard_tokens, state.shards);
  for (const TokenManifest::Shard& shard : state.shards) report.tokens += shard.tokens;
  TextCounts counts = state.next.counts;
  RefuseTooInvalid(counts.too_invalid, options);
  const TextEncoder encoder(tokenizer, eot, options.column);
  EncoderPool pool(encoder, options.threads > 0 ? options.threads : AvailableCores());
  TextChunker chunker(tokenizer, paths, static_cast<size_t>(options.chunk_bytes), state.next.file,
                      state.next.offset);
  int64_t bytes_before = 0;  // Bytes of the files before the current one.
  size_t current = 0;
  bool more = true;
  int64_t skip = state.next.skip;
  while (true) {
    while (more && !pool.full()) {
      std::optional<TextChunk> next = chunker.Next();
      more = next.has_value();
      if (!next) break;
      RefuseTooInvalid(next->too_invalid, options);
      pool.Push(std::move(*next));
    }
    if (pool.empty()) break;
    auto [chunk, encoded] = pool.Pop();
    while (!encoded.complete) {
      // The last chunk of a file is always complete, so the next one is of the same file.
      if (pool.empty()) pool.Push(*chunker.Next());
      chunk.end = pool.Pop().first.end;
      encoded = encoder.Encode(chunk);
    }
    const std::span<const int32_t> ids(encoded.ids);
    const Position here{chunk.file, chunk.begin, 0, counts};
    shards.Append(ids.subspan(static_cast<size_t>(std::min<int64_t>(skip, std::ssize(ids)))),
                  [&](int64_t written) {
                    state.next = here;
                    state.next.skip = skip + written;
                    state.shards = shards.done();
                    WriteFile(progress_path, ToJson(state));
                  });
    report.tokens += std::ssize(ids) - skip;
    counts += encoded.counts;
    report.documents = counts.documents;
    skip = 0;
    while (current < chunk.file) bytes_before += inputs[current++].bytes;
    const double in_file = static_cast<double>(chunk.end) /
                           static_cast<double>(chunk.contents->bytes().size()) *
                           static_cast<double>(inputs[current].bytes);
    report.share = (static_cast<double>(bytes_before) + in_file) / static_cast<double>(total);
    if (options.progress) options.progress(report);
    if (options.stop && options.stop()) {
      throw Error(ExitCode::kStopped, "tokenize: " + options.directory +
                                          ": stopped; the same call goes on where it stopped");
    }
  }
  shards.Finish();
  // Read at one time and described at another: the key must be that of what was read.
  if (const std::vector<DataFile> after = DescribeInputs(options.files); after != inputs) {
    size_t changed = 0;
    while (changed < std::min(after.size(), inputs.size()) && after[changed] == inputs[changed]) {
      ++changed;
    }
    throw DataError("tokenize: " + inputs[std::min(changed, inputs.size() - 1)].path +
                    ": has changed while it was read: remove " + options.directory +
                    " and start again");
  }

  TokenManifest manifest;
  manifest.key = TokensKey(tokenizer, options, inputs);
  manifest.tokenizer = name;
  manifest.tokenizer_hash = tokenizer.hash();
  manifest.vocab_size = tokenizer.vocab_size();
  manifest.eot = eot;
  manifest.documents = counts.documents;
  manifest.empty_documents = counts.empty;
  manifest.invalid_utf8 = counts.invalid;
  manifest.first_invalid_utf8 = counts.first_invalid;
  manifest.too_invalid_utf8 = counts.too_invalid;
  manifest.tokens = report.tokens;
  manifest.inputs = inputs;
  manifest.shards = shards.done();
  if (manifest.tokens == 0) {
    throw DataError("tokenize: " + inputs[0].path + (inputs.size() > 1 ? " and the others" : "") +
                    ": no text, so no tokens");
  }
  WriteFile(options.directory + "/" + kTokenManifest, ToJson(manifest));
  ::unlink(progress_path.c_str());
  return manifest;
}

}  // namespace fsdp
