// TensorBoard's event files as another program reads them: a CRC by long division and a generic
// walk over the wire format, sharing nothing with the writer.
#ifndef FSDP_TRAIN_TESTS_TRAINER_OBSERVE_EVENT_READER_H_
#define FSDP_TRAIN_TESTS_TRAINER_OBSERVE_EVENT_READER_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace fsdp {

struct TensorBoardEvent {
  double wall_time = 0;
  int64_t step = 0;
  std::string file_version;                  // The first event's.
  bool session_start = false;                // SessionLog START.
  std::map<std::string, float> scalars;      // By tag.
  std::map<std::string, std::string> texts;  // The plugin "text"'s, one string each.
};

// Throws std::runtime_error where a CRC or the format is wrong or the file ends in half a record.
std::vector<TensorBoardEvent> ReadEvents(const std::string& path);

// The scalar of all files of a directory, in the order of their names: step and value.
std::vector<std::pair<int64_t, float>> ReadScalar(const std::string& directory,
                                                  const std::string& tag);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TESTS_TRAINER_OBSERVE_EVENT_READER_H_
