// The lines of a file of records as a crash may have left it.
#ifndef FSDP_TRAIN_TRAINER_OBSERVE_RECORD_LINES_H_
#define FSDP_TRAIN_TRAINER_OBSERVE_RECORD_LINES_H_

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace fsdp {

// One line, or zero bytes in place of lines, which a power cut leaves: zeros end a line as a line's
// end does, and so does the line's end behind them.
struct RecordLine {
  std::string_view text;  // Without its end. Cut where it is too long for a record.
  int64_t zeros = 0;      // So many zero bytes; `text` is empty then.
  bool ended = false;     // False: the file ends in it.
  int64_t number = 1;     // The number of the line it stands in.
};

// The longest line that is taken for a record, bytes; the longest that is kept of one.
inline constexpr int64_t kLongestRecord = int64_t{16} << 20;

// Calls `take` for each in the file's order; a view is valid during the call. Memory is that of the
// longest record, whatever the file's size; holes cost no time. Throws CheckpointError: no regular
// file, or the disk.
void ReadRecordLines(const std::string& path, const std::function<void(const RecordLine&)>& take);

// The last 64 KiB of the file; empty where it is no regular file or cannot be read. Never throws.
std::string EndOfRecords(const std::string& path);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OBSERVE_RECORD_LINES_H_
