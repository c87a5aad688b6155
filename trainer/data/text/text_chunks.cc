#include "trainer/data/text/text_chunks.h"

#include <algorithm>

#include "trainer/core/errors.h"
#include "trainer/core/json_reader.h"
#include "trainer/core/start_thread.h"
#include "trainer/data/decompress.h"
#include "trainer/data/text/text_source.h"
#include "trainer/data/tokenizers/unicode.h"

namespace fsdp {

bool IsLines(const std::string& path) { return WithoutCompression(path).ends_with(".jsonl"); }

std::optional<TextChunk> TextChunker::Next() {
  while (contents_ == nullptr || offset_ >= contents_->bytes().size()) {
    if (contents_ != nullptr) {
      contents_.reset();
      ++file_;
      offset_ = 0;
    }
    if (file_ == paths_.size()) return std::nullopt;
    contents_ = std::make_shared<const FileContents>(paths_[file_]);
    if (offset_ > contents_->bytes().size()) {
      throw DataError("tokenize: " + paths_[file_] + ": is shorter than it was");
    }
    CheckFormat(*contents_);
  }
  TextChunk chunk{contents_, file_, offset_, 0};
  if (offset_ == 0) {
    if (auto found = FindTooInvalid(*contents_)) chunk.too_invalid = std::move(found->refusal);
  }
  const std::string_view rest = chunk.rest();
  size_t size = rest.size();
  if (bytes_ < size) {
    if (IsLines(paths_[file_])) {
      const size_t line = rest.find('\n', bytes_);
      if (line != std::string_view::npos) size = line + 1;
    } else {
      size = tokenizer_.PartEnd(rest, bytes_);
    }
  }
  chunk.end = offset_ += size;
  return chunk;
}

EncodedText TextEncoder::Encode(const TextChunk& chunk) const {
  EncodedText out;
  const IllFormed invalid = CountIllFormed(chunk.contents->bytes(), chunk.begin, chunk.end);
  out.counts.invalid = invalid.count;
  out.counts.too_invalid = chunk.too_invalid;
  if (invalid.count > 0) {
    out.counts.first_invalid = chunk.contents->path() + ", byte " + std::to_string(invalid.first);
  }
  // A copy, of a file that is whole: a mapped file that becomes shorter changes under its reader.
  const size_t size = chunk.end - chunk.begin;
  const std::string text(chunk.rest().substr(0, size + kLookAhead));
  chunk.contents->CheckIntact();
  if (IsLines(chunk.contents->path())) {
    EncodeLines(chunk, std::string_view(text).substr(0, size), out);
  } else {
    const bool first = chunk.begin == 0;
    if (first) Begin(out);
    out.complete = tokenizer_.EncodePart(text, size, first, out.ids);
    if (out.complete && chunk.is_last()) End(out);
  }
  return out;
}

void TextEncoder::Begin(EncodedText& out) const {
  if (tokenizer_.bos()) out.ids.push_back(*tokenizer_.bos());
}

void TextEncoder::End(EncodedText& out) const {
  if (eot_) out.ids.push_back(*eot_);
  ++out.counts.documents;
}

void TextEncoder::EncodeLines(const TextChunk& chunk, std::string_view rest,
                              EncodedText& out) const {
  std::string buffer;
  for (size_t line_begin = chunk.begin; !rest.empty();) {
    const size_t end = std::min(rest.find('\n'), rest.size());
    const std::string_view line = rest.substr(0, end);
    const auto fail = [&](const std::string& what) {
      const std::string_view before = chunk.contents->bytes().substr(0, line_begin);
      const int64_t number = 1 + std::count(before.begin(), before.end(), '\n');
      chunk.contents->CheckIntact();  // The lines before this one may be gone by now.
      throw DataError("tokenize: " + chunk.contents->path() + ", line " + std::to_string(number) +
                      ": " + what);
    };
    if (line.find_first_not_of(" \t\r") != std::string_view::npos) {
      const std::optional<JsonValue> json = TryParseJson(WellFormed(line, buffer));
      if (!json || !json->IsObject()) fail("is no JSON object");
      if (!json->Has(column_)) fail("has no field `" + column_ + "`: name it with --column");
      const JsonValue field = json->At(column_);
      if (!field.IsText()) fail("its field `" + column_ + "` is no text");
      const std::string& text = field.Text();
      if (text.empty()) {
        ++out.counts.empty;
      } else {
        Begin(out);
        tokenizer_.EncodePart(text, text.size(), /*first=*/true, out.ids);
        End(out);
      }
    }
    rest.remove_prefix(std::min(end + 1, rest.size()));
    line_begin += end + 1;
  }
}

EncoderPool::EncoderPool(const TextEncoder& encoder, int threads) : encoder_(encoder) {
  try {
    for (int i = 0; i < threads; ++i) {
      threads_.push_back(StartThread<std::jthread>("a thread that tokenises", [this] { Work(); }));
    }
  } catch (...) {
    End();
    throw;
  }
}

EncoderPool::~EncoderPool() { End(); }

void EncoderPool::End() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  work_.notify_all();
}

void EncoderPool::Push(TextChunk chunk) {
  auto task = std::make_shared<Task>();
  task->chunk = std::move(chunk);
  tasks_.push_back(task);
  {
    const std::lock_guard lock(mutex_);
    waiting_.push_back(std::move(task));
  }
  work_.notify_one();
}

std::pair<TextChunk, EncodedText> EncoderPool::Pop() {
  const std::shared_ptr<Task> task = std::move(tasks_.front());
  tasks_.pop_front();
  std::unique_lock lock(mutex_);
  done_.wait(lock, [&] { return task->done; });
  if (task->error) std::rethrow_exception(task->error);
  return {std::move(task->chunk), std::move(task->encoded)};
}

void EncoderPool::Work() {
  std::unique_lock lock(mutex_);
  while (true) {
    work_.wait(lock, [&] { return ending_ || !waiting_.empty(); });
    if (ending_) return;
    const std::shared_ptr<Task> task = std::move(waiting_.front());
    waiting_.pop_front();
    lock.unlock();
    try {
      task->encoded = encoder_.Encode(task->chunk);
    } catch (...) {
      task->error = std::current_exception();
    }
    lock.lock();
    task->done = true;
    done_.notify_all();
  }
}

}  // namespace fsdp
