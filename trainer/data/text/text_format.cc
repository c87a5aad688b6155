#include "trainer/data/text/text_format.h"

#include <algorithm>
#include <filesystem>

#include "trainer/core/errors.h"
#include "trainer/data/data_files.h"
#include "trainer/data/decompress.h"

namespace fsdp {
namespace {

constexpr size_t kLookedAt = FileContents::kBeginBytes, kNone = std::string_view::npos;
constexpr std::string_view kSpace = " \t\r\n";

size_t SkipSpace(std::string_view text, size_t at) {
  return std::min(text.find_first_not_of(kSpace, at), text.size());
}

// The first byte of a file behind a byte order mark and white space.
size_t BeginOf(std::string_view file) {
  return SkipSpace(file, file.starts_with("\xef\xbb\xbf") ? 3 : 0);
}

// The end of the string whose quote is at `at`, or kNone.
size_t StringEnd(std::string_view text, size_t at) {
  for (at = text.find_first_of("\"\\", at + 1); at != kNone;
       at = text.find_first_of("\"\\", at + 2)) {
    if (text[at] == '"') return at + 1;
  }
  return kNone;
}

// The end of the JSON value at `at`, by its brackets and quotes alone; kNone: `text` ends before.
size_t ValueEnd(std::string_view text, size_t at) {
  if (text[at] == '"') return StringEnd(text, at);
  if (text[at] != '{' && text[at] != '[') {
    return std::min(text.find_first_of(",]} \t\r\n", at + 1), text.size());
  }
  int64_t depth = 0;
  for (at = text.find_first_of("{}[]\"", at); at != kNone; at = text.find_first_of("{}[]\"", at)) {
    const char c = text[at];
    if (c == '"') {
      at = StringEnd(text, at);
      if (at == kNone) return kNone;
      continue;
    }
    depth += c == '{' || c == '[' ? 1 : -1;
    ++at;
    if (depth == 0) return at;
  }
  return kNone;
}

// Whether an object begins at `at`: `{}`, or a brace, a quoted key and a colon.
bool IsObjectAt(std::string_view text, size_t at) {
  if (at >= text.size() || text[at] != '{') return false;
  at = SkipSpace(text, at + 1);
  if (at < text.size() && text[at] == '}') return true;
  const size_t end = at < text.size() && text[at] == '"' ? StringEnd(text, at) : kNone;
  if (end == kNone) return false;
  at = SkipSpace(text, end);
  return at < text.size() && text[at] == ':';
}

// Whether every line from `at` on is blank or an object; the last one may be cut off.
bool AreObjects(std::string_view text, size_t at, bool cut_off) {
  while (at < text.size()) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const std::string_view line = text.substr(0, end);
    const size_t begin = SkipSpace(line, at);
    if (begin < end) {
      if (end == text.size() && cut_off) return line[begin] == '{';
      if (!IsObjectAt(line, begin)) return false;
      const size_t value = ValueEnd(line, begin);
      if (value == kNone || SkipSpace(line, value) < end) return false;
    }
    at = end + 1;
  }
  return true;
}

}  // namespace

std::string FormatName(const std::string& path) {
  std::string name = std::filesystem::path(WithoutCompression(path)).extension();
  for (char& c : name) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return name;
}

TextFormat FormatOf(const std::string& path, std::string_view contents) {
  const std::string name = FormatName(path);
  const bool named = name == ".json" || name == ".jsonl" || name == ".ndjson";
  const TextFormat other = named ? TextFormat::kLines : TextFormat::kText;
  const bool cut_off = contents.size() >= kLookedAt;
  const std::string_view text = contents.substr(0, kLookedAt);
  const size_t begin = BeginOf(text);
  if (begin == text.size()) return other;
  if (text[begin] == '[') {
    return named || IsObjectAt(text, SkipSpace(text, begin + 1)) ? TextFormat::kValues : other;
  }
  if (!IsObjectAt(text, begin)) return other;
  const size_t line = text.find('\n', begin), end = ValueEnd(text, begin);
  if (end == kNone) {  // A long one, or a broken one.
    if (!cut_off) return other;
    return line == kNone || name == ".jsonl" ? TextFormat::kLines : TextFormat::kValues;
  }
  if (line == kNone || end <= line) {
    return named || AreObjects(text, begin, cut_off) ? TextFormat::kLines : other;
  }
  const size_t next = SkipSpace(text, end);
  return next == text.size() || IsObjectAt(text, next) ? TextFormat::kValues : other;
}

TextFormat FormatOf(const std::string& path) {
  const FileContents file(path, FileContents::As::kBegin);
  const TextFormat format = FormatOf(path, file.bytes());
  file.CheckIntact();
  return format;
}

bool JsonRecords::BeginsList(std::string_view file) {
  const size_t begin = BeginOf(file.substr(0, kLookedAt));
  return begin < file.size() && file[begin] == '[';
}

std::optional<std::string_view> JsonRecords::Next() {
  std::optional<std::string_view> record = format_ == TextFormat::kLines ? NextLine() : NextValue();
  is_begin_ = false;
  if (record && record->size() > kMostRecordBytes) {
    throw DataError("has more than " + std::to_string(kMostRecordBytes) +
                    " bytes, which no record may have");
  }
  return record;
}

std::optional<std::string_view> JsonRecords::NextLine() {
  if (at_ == text_.size()) return std::nullopt;
  // A hole of a file may be longer than its memory.
  const std::string_view rest = text_.substr(at_, kMostRecordBytes + 2);
  const size_t end = std::min(rest.find('\n'), rest.size());
  at_ += std::min(end + 1, rest.size());
  return rest.substr(0, end);
}

std::optional<std::string_view> JsonRecords::NextValue() {
  size_t at = is_begin_ ? BeginOf(text_) : SkipSpace(text_, at_);
  bool first = is_begin_;
  if (is_list_ && first) at = SkipSpace(text_, at + 1);
  if (is_list_ && at < text_.size()) {
    const bool ends = text_[at] == ']';
    if (ends) {
      at = SkipSpace(text_, at + 1);
      if (at < text_.size()) throw DataError("has text behind the end of its list");
      at_ = at;
      return std::nullopt;
    }
    if (!first) {
      if (text_[at] != ',') throw DataError("has no comma behind an element of its list");
      at = SkipSpace(text_, at + 1);
    }
  }
  if (at == text_.size()) {
    if (is_list_ && at > 0) throw DataError("is cut off: its list does not end");
    at_ = at;
    return std::nullopt;
  }
  const std::string_view rest = text_.substr(at, kMostRecordBytes + 2);
  const size_t end = ValueEnd(rest, 0);
  if (end == kNone && rest.size() <= kMostRecordBytes) {
    throw DataError("is cut off: an element does not end");
  }
  at_ = at + std::min(end, rest.size());
  return rest.substr(0, end);
}

std::string PlaceOfRecord(TextFormat format, std::string_view file, size_t at) {
  const std::string_view before = file.substr(0, at);
  std::string place = "line " + std::to_string(1 + std::count(before.begin(), before.end(), '\n'));
  if (format != TextFormat::kValues) return place;
  JsonRecords records(format, file, /*is_begin=*/true, JsonRecords::BeginsList(file));
  int64_t element = 1;
  try {
    while (records.Next() && records.end() <= at) ++element;
  } catch (const DataError&) {
  }
  return place + ", element " + std::to_string(element);
}

}  // namespace fsdp
