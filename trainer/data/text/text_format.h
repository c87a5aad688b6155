// How a file of text is read: by what it holds, whatever its name.
// Tests: tests/trainer/data/text/text_format_test.cc
#ifndef FSDP_TRAIN_TRAINER_DATA_TEXT_TEXT_FORMAT_H_
#define FSDP_TRAIN_TRAINER_DATA_TEXT_TEXT_FORMAT_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace fsdp {

enum class TextFormat {
  kText,   // A document, byte for byte.
  kLines,  // JSON, an object a line.
  kValues  // JSON: a list of objects, or objects one behind the other, with line ends anywhere.
};

// The format of `contents`, all of a file or at least its first 64 KiB, decompressed. JSON is what
// begins with an object, or with a list of them, and has nothing else in these 64 KiB; a file named
// .json, .jsonl or .ndjson is JSON whatever it holds.
TextFormat FormatOf(const std::string& path, std::string_view contents);
// Opens the file, and decompresses the first 64 KiB. Throws DataError.
TextFormat FormatOf(const std::string& path);

// The end of `path` that names its format, in small letters, without .gz or .zst: ".json", or "".
std::string FormatName(const std::string& path);

// The most bytes that an object of a JSON file may have. Longer ones are damage, or a file's hole.
inline constexpr size_t kMostRecordBytes = size_t{1} << 28;

// The records of a JSON file, in order.
class JsonRecords {
 public:
  // `text`: the file, or a part of it that begins behind a record; `is_list`: the file
  // BeginsList().
  JsonRecords(TextFormat format, std::string_view text, bool is_begin, bool is_list)
      : format_(format), text_(text), is_begin_(is_begin), is_list_(is_list) {}
  static bool BeginsList(std::string_view file);

  // The next record: a line, which may be blank, or a value. Empty: there is none. Throws
  // DataError, without a place, for a list that has something else between its elements or does not
  // end, and for a record of more than kMostRecordBytes.
  std::optional<std::string_view> Next();
  size_t end() const { return at_; }  // Where the last one has ended, with its line's end.

 private:
  std::optional<std::string_view> NextLine();
  std::optional<std::string_view> NextValue();

  const TextFormat format_;
  const std::string_view text_;
  bool is_begin_;
  const bool is_list_;
  size_t at_ = 0;
};

// "line 3", and in a kValues file "line 3, element 2", of the record that lies at byte `at`.
std::string PlaceOfRecord(TextFormat format, std::string_view file, size_t at);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_DATA_TEXT_TEXT_FORMAT_H_
