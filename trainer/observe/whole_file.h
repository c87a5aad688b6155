// Small files of the run directory, complete or not there.
#ifndef FSDP_TRAIN_TRAINER_OBSERVE_WHOLE_FILE_H_
#define FSDP_TRAIN_TRAINER_OBSERVE_WHOLE_FILE_H_

#include <string>
#include <string_view>

namespace fsdp {

// Replaces `path` by a file of these contents: written under path + ".tmp", synced, renamed, the
// directory synced. After a crash at any point the old or the new file is there, whole. Blocks on
// the disk. Throws CheckpointError that names the path and the system's reason.
void WriteWholeFile(const std::string& path, std::string_view contents);

// Throws CheckpointError.
std::string ReadWholeFile(const std::string& path);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OBSERVE_WHOLE_FILE_H_
