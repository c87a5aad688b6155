// Formats that are no text, known by their first bytes.
// Tests: tests/trainer/data/text/file_format_test.cc
#ifndef FSDP_TRAIN_TRAINER_DATA_TEXT_FILE_FORMAT_H_
#define FSDP_TRAIN_TRAINER_DATA_TEXT_FILE_FORMAT_H_

#include <optional>
#include <string>
#include <string_view>

namespace fsdp {

struct NoText {
  std::string what;  // "is Parquet", "is UTF-16", "has a zero byte, the first at byte 17".
  std::string cure;  // A line for a shell that makes text of it, or what reads it as it is.
};

// Empty where `contents`, all of a file or at least its first 64 KiB, may be text: they begin with
// the mark of no other format, no byte order mark of UTF-16 or UTF-32, and have no zero byte in
// their first 64 KiB. Nor is the name a table's, such as .csv, unless they are JSON
// (text_format.h). A mark of plain letters (PAR1) counts where such a format's end is there, too,
// or bytes that no text has. `path` is the file's, for the cure; of a compressed one (decompress.h)
// `contents` are decompressed.
std::optional<NoText> FindNoText(const std::string& path, std::string_view contents);

// Says what a file that is not `wanted` ("IDX") is: "is compressed by gzip, not IDX: rename it: mv
// a a.gz". Empty for a format that is not known, JSON and text among them.
std::string FindOtherFormat(const std::string& path, std::string_view contents,
                            const std::string& wanted);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_DATA_TEXT_FILE_FORMAT_H_
