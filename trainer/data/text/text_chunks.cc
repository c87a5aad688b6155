#include "trainer/data/text/text_chunks.h"

#include <algorithm>

#include "trainer/core/errors.h"
#include "trainer/core/json_reader.h"
#include "trainer/core/start_thread.h"
#include "trainer/data/text/json_line.h"
#include "trainer/data/text/text_source.h"
#include "trainer/data/tokenizers/unicode.h"

namespace fsdp {

namespace {

// The size of the records from byte `begin` of a file on: as few as are more than `most` bytes, or
// all.
size_t SizeOfRecords(JsonRecords records, const FileContents& file, size_t begin, size_t most) {
  try {
    while (records.end() <= most && records.Next()) {
    }
  } catch (const DataError& error) {
    file.CheckIntact();
    throw DataError("tokenize: " + file.path() + ", behind byte " +
                    std::to_string(begin + records.end()) + ": " + error.what());
  }
  return records.end();
}

}  // namespace

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
    format_ = FormatOf(paths_[file_], contents_->bytes());
  }
  TextChunk chunk{contents_, format_, file_, offset_, 0};
  if (offset_ == 0) {
    if (auto found = FindTooInvalid(*contents_)) chunk.too_invalid = std::move(found->refusal);
  }
  const std::string_view rest = chunk.rest();
  size_t size = rest.size();
  if (format_ != TextFormat::kText) {
    const JsonRecords records(format_, rest, offset_ == 0,
                              JsonRecords::BeginsList(contents_->bytes()));
    size = SizeOfRecords(records, *contents_, offset_, bytes_);
  } else if (bytes_ < size) {
    size = tokenizer_.PartEnd(rest, bytes_);
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
  if (chunk.format != TextFormat::kText) {
    EncodeRecords(chunk, std::string_view(text).substr(0, size), out);
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

void TextEncoder::EncodeRecords(const TextChunk& chunk, std::string_view text,
                                EncodedText& out) const {
  std::string buffer;
  const std::string_view file = chunk.contents->bytes();
  JsonRecords records(chunk.format, text, chunk.begin == 0, JsonRecords::BeginsList(file));
  while (records.end() < text.size()) {
    const std::optional<std::string_view> record = records.Next();
    if (!record) break;
    const auto fail = [&](const std::string& what) {
      const auto at = static_cast<size_t>(record->data() - text.data());
      const std::string place = PlaceOfRecord(chunk.format, file, chunk.begin + at);
      chunk.contents->CheckIntact();  // The records before this one may be gone by now.
      throw DataError("tokenize: " + chunk.contents->path() + ", " + place + ": " + what);
    };
    if (record->find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const std::string_view well_formed = WellFormed(*record, buffer);
    std::optional<JsonValue> json = TryParseJson(well_formed);
    try {
      const auto reads = [&](const std::string& member) { return member == column_; };
      if (!json) json = TryParseJson(PlainJson(well_formed, reads));
    } catch (const DataError& error) {
      fail(error.what());
    }
    if (!json || !json->IsObject()) fail("is no JSON object");
    if (!json->Has(column_)) fail("has no field `" + column_ + "`: name it with --column");
    const JsonValue field = json->At(column_);
    if (!field.IsText()) fail("its field `" + column_ + "` is no text");
    const std::string& document = field.Text();
    if (document.empty()) {
      ++out.counts.empty;
    } else {
      Begin(out);
      tokenizer_.EncodePart(document, document.size(), /*first=*/true, out.ids);
      End(out);
    }
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
