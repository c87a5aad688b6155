// Files of text in chunks that threads encode each by itself, and that come out in order. The end
// of a chunk depends only on the file's contents and on the chunk's begin, so threads and restarts
// change nothing. tokenize.h describes the files.
// Tests: tests/trainer/data/text/tokenize_test.cc
#ifndef FSDP_TRAIN_TRAINER_DATA_TEXT_TEXT_CHUNKS_H_
#define FSDP_TRAIN_TRAINER_DATA_TEXT_TEXT_CHUNKS_H_

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "trainer/data/data_files.h"
#include "trainer/data/text/text_format.h"
#include "trainer/data/tokenizers/tokenizer.h"

namespace fsdp {

struct TextChunk {
  std::shared_ptr<const FileContents> contents;
  TextFormat format = TextFormat::kText;
  size_t file = 0, begin = 0, end = 0;
  std::string too_invalid = {};  // TooInvalid::refusal (text_check.h) of a file, in its first.

  std::string_view rest() const { return contents->bytes().substr(begin); }
  bool is_last() const { return end == contents->bytes().size(); }
};

class TextChunker {
 public:
  // From byte `offset` of paths[file] on, where a chunk has begun before.
  TextChunker(const Tokenizer& tokenizer, std::span<const std::string> paths, size_t chunk_bytes,
              size_t file, size_t offset)
      : tokenizer_(tokenizer), paths_(paths), bytes_(chunk_bytes), file_(file), offset_(offset) {}

  std::optional<TextChunk> Next();  // Throws DataError, for what is no text, too (CheckFormat()).

 private:
  const Tokenizer& tokenizer_;
  std::span<const std::string> paths_;
  size_t bytes_, file_, offset_;
  std::shared_ptr<const FileContents> contents_;
  TextFormat format_ = TextFormat::kText;
};

struct TextCounts {
  int64_t documents = 0, empty = 0, invalid = 0;
  std::string first_invalid, too_invalid;  // As in TokenManifest.

  void operator+=(const TextCounts& more) {
    documents += more.documents;
    empty += more.empty;
    invalid += more.invalid;
    if (first_invalid.empty()) first_invalid = more.first_invalid;
    if (too_invalid.empty()) too_invalid = more.too_invalid;
  }
};

struct EncodedText {
  std::vector<int32_t> ids;
  TextCounts counts;
  bool complete = true;  // False: a word reaches into the next chunk.
};

class TextEncoder {
 public:
  // `column`: the field of a record.
  TextEncoder(const Tokenizer& tokenizer, std::optional<int32_t> eot, std::string column)
      : tokenizer_(tokenizer), eot_(eot), column_(std::move(column)) {}

  // Throws DataError that names file and line, or says that the file has become shorter; the
  // tokenizer sees no byte of such a file. From any thread.
  EncodedText Encode(const TextChunk& chunk) const;

 private:
  void Begin(EncodedText& out) const;
  void End(EncodedText& out) const;
  void EncodeRecords(const TextChunk& chunk, std::string_view text, EncodedText& out) const;

  const Tokenizer& tokenizer_;
  std::optional<int32_t> eot_;
  std::string column_;
};

// Chunks encoded by threads, handed out in order.
class EncoderPool {
 public:
  EncoderPool(const TextEncoder& encoder, int threads);
  ~EncoderPool();

  bool full() const { return tasks_.size() >= 2 * threads_.size() + 2; }
  bool empty() const { return tasks_.empty(); }

  void Push(TextChunk chunk);
  // The oldest chunk's result: blocks until it is done. Throws its encoding's error.
  std::pair<TextChunk, EncodedText> Pop();

 private:
  struct Task {
    TextChunk chunk;
    EncodedText encoded;
    std::exception_ptr error;
    bool done = false;
  };
  void Work();
  void End();

  const TextEncoder& encoder_;
  std::deque<std::shared_ptr<Task>> tasks_;  // All, in order. The owner's alone.
  std::mutex mutex_;
  std::condition_variable work_, done_;
  std::deque<std::shared_ptr<Task>> waiting_;
  bool ending_ = false;
  std::vector<std::jthread> threads_;  // Last: they use all above.
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_DATA_TEXT_TEXT_CHUNKS_H_
