// Where a rank writes what people read. Whoever does not read holds it up, as with any stream,
// until it is asked to stop.
#ifndef FSDP_TRAIN_TRAINER_OBSERVE_STOPPABLE_OUTPUT_H_
#define FSDP_TRAIN_TRAINER_OBSERVE_STOPPABLE_OUTPUT_H_

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <mutex>
#include <optional>
#include <ostream>
#include <streambuf>
#include <string>
#include <string_view>

#include "trainer/core/unique_fd.h"

namespace fsdp {

// The buffer of an ostream in front of a file descriptor, which it borrows and whose flags it
// leaves alone: others may share the open file. Any number of threads may write. SIGPIPE must be
// ignored.
class StoppableOutput : public std::streambuf {
 public:
  // `stop_requested`: asked while nobody reads. From the moment when it is true text waits for
  // `patience` in all; then it is dropped, and so is all that follows.
  StoppableOutput(int fd, std::function<bool()> stop_requested,
                  std::chrono::milliseconds patience = std::chrono::seconds(1));
  ~StoppableOutput() override;  // Writes what is left.

  int error() const;  // errno of the write that failed, EAGAIN where text was dropped; 0: none.

 protected:
  int_type overflow(int_type c) override;
  std::streamsize xsputn(const char* text, std::streamsize count) override;
  int sync() override;  // -1: error(); the text is gone.

 private:
  bool WriteAll(std::string_view text);
  ssize_t WriteSome(std::string_view text) const;  // EAGAIN where it would block.
  bool WaitsOn();  // For a moment; false when there is no patience left.

  const int fd_;
  const std::function<bool()> stop_requested_;
  const std::chrono::milliseconds patience_;
  // The same pipe or terminal, which does not block. Not open: fd_ is another thing.
  UniqueFd own_;
  mutable std::mutex mutex_;
  std::string text_;                                            // Not written yet.
  std::optional<std::chrono::steady_clock::time_point> until_;  // Once there is a stop.
  int error_ = 0;
};

// While it lives `stream` writes to `buffer`.
class StreamInto {
 public:
  StreamInto(std::ostream& stream, std::streambuf& buffer)
      : stream_(stream), before_(stream.rdbuf(&buffer)) {}
  ~StreamInto() {
    stream_.flush();
    stream_.rdbuf(before_);
  }
  StreamInto(const StreamInto&) = delete;
  StreamInto& operator=(const StreamInto&) = delete;

 private:
  std::ostream& stream_;
  std::streambuf* const before_;
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OBSERVE_STOPPABLE_OUTPUT_H_
