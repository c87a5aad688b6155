// Event files for TensorBoard, written without protobuf:
// events.out.tfevents.<time>.<host>.<pid>.<n> in the run directory, where `tensorboard --logdir
// runs` finds them. Rank 0 writes them.
//
// A file is a sequence of TFRecords (u64 length, masked CRC-32C of the length, payload, masked
// CRC-32C of the payload; tensorflow/core/lib/io/record_writer.h) of Event messages
// (tensorflow/core/util/event.proto). A start of the run is a file of its own, and begins with a
// version and a SessionLog START of the first step that it may hold.
//
// A resume goes back, and what was recorded past its step must not be seen twice. Two things see to
// it. TrimTensorBoard() cuts the old files where those records begin, so that any reader finds each
// step once. For a TensorBoard that is looking on and has them already, there is the START: its
// Python reader (file version 2 and up) drops all it holds from the step of a second START on, and
// only then, whatever the steps do; its data server drops, tag by tag, what a step that is no
// greater replaces, and needs neither.
#ifndef FSDP_TRAIN_TRAINER_OBSERVE_TENSORBOARD_H_
#define FSDP_TRAIN_TRAINER_OBSERVE_TENSORBOARD_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "trainer/core/append_file.h"
#include "trainer/observe/metrics.h"

namespace fsdp {

// Paths of the directory's event files, oldest first; empty where there is no directory.
std::vector<std::string> TensorBoardFiles(const std::string& directory);

// Cuts each event file at the first record that is past `step` or broken by a crash, and removes
// files in which nothing to show is left. Shortening is one call of the system: a crash meanwhile
// loses nothing. Throws CheckpointError.
void TrimTensorBoard(const std::string& directory, int64_t step);

// Throws CheckpointError for all that the disk refuses.
class TensorBoardWriter {
 public:
  // A new file, behind all others in name, for the records of steps past `step`.
  TensorBoardWriter(const std::string& directory, int64_t step);

  // The scalars of a step or an evaluation, the text of a sample, each step's in one event; other
  // records have nothing to show. With the kernel when it returns, like a line of metrics.jsonl.
  void Write(const MetricsRecord& record);
  // Shown as it is, in a fixed-width font; bytes that are no UTF-8 as \xNN.
  void Text(std::string_view tag, int64_t step, std::string_view text);

  void Sync() { file_.Sync(); }  // Blocks until all is on the disk.

 private:
  AppendFile file_;
};

// CRC-32C, Castagnoli's polynomial 0x1EDC6F41 reflected (RFC 3720, appendix B.4).

uint32_t Crc32c(std::string_view bytes);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OBSERVE_TENSORBOARD_H_
