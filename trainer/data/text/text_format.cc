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

// ValueEnd() of an object that may take several lines, or kNone where text follows on the last:
// then a quote that an earlier line lacks has ended it.
size_t SpanningEnd(std::string_view text, size_t at) {
  const size_t end = ValueEnd(text, at);
  const size_t next = text.find_first_not_of(" \t\r", end);
  const bool apart = end == kNone || next == kNone;
  return apart || std::string_view("\n,]{").find(text[next]) != kNone ? end : kNone;
}

// Contents of the first bytes of a file, from `at` on.
struct Held {
  size_t objects = 0, other = 0;  // Bytes.
  bool apart = false;             // The objects are not one a line.
};

// Looks for objects, and commas and brackets of a list between them, and passes over the lines that
// begin with something else. `cut_off`: the last object may be.
Held HeldFrom(std::string_view text, size_t at, bool cut_off) {
  Held held;
  held.apart = at < text.size() && text[at] == '[';
  at += held.apart ? 1 : 0;
  bool may_span = true;  // Looked for once in vain, objects are looked for in a line alone.
  size_t line = at;      // The last object ends on the line that begins here.
  for (at = SkipSpace(text, at); at < text.size(); at = SkipSpace(text, at)) {
    const bool anew = text[at] == '[' && text[at - 1] == '\n';  // Another list.
    if (text[at] == ',' || text[at] == ']' || (anew && IsObjectAt(text, SkipSpace(text, at + 1)))) {
      ++at;
      continue;
    }
    const size_t line_end = std::min(text.find('\n', at), text.size());
    size_t end = IsObjectAt(text, at) ? ValueEnd(text.substr(0, line_end), at) : kNone;
    if (end == kNone && may_span && IsObjectAt(text, at)) {
      end = SpanningEnd(text, at);
      const bool last = line_end == text.size() || held.objects == 0 || held.apart;
      if (end == kNone && cut_off && last) end = text.size();
      may_span = end != kNone;
    }
    if (end == kNone && cut_off && line_end == text.size() && text[at] == '{') end = line_end;
    if (end == kNone) {
      held.other += line_end - at;
      at = line_end;
      continue;
    }
    const bool alone = held.objects == 0 || text.substr(line, at - line).find('\n') != kNone;
    held.apart = held.apart || !alone || end > line_end;
    held.objects += end - at;
    line = at = end;
  }
  return held;
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
  const std::string_view text = contents.substr(0, kLookedAt);
  const size_t begin = BeginOf(text);
  // A .jsonl does not promise that its objects may take many lines.
  const bool cut_off = contents.size() >= kLookedAt && name != ".jsonl";
  const Held held = HeldFrom(text, begin, cut_off);
  if (!named && (held.objects == 0 || held.objects < 3 * held.other)) return TextFormat::kText;
  return held.apart ? TextFormat::kValues : TextFormat::kLines;
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
