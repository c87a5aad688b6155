// Where a poll loop writes without ever blocking on a slow reader: a terminal that was stopped, a
// pager, a pipe.
#ifndef FSDP_TRAIN_TRAINER_LAUNCH_SINK_H_
#define FSDP_TRAIN_TRAINER_LAUNCH_SINK_H_

#include <cstddef>
#include <string>
#include <string_view>

namespace fsdp {

// A queue in front of a file descriptor, which it borrows and whose flags it leaves alone: others
// may share the open file. SIGPIPE must be ignored. Not thread-safe.
class Sink {
 public:
  explicit Sink(int fd) : fd_(fd) {}

  int fd() const { return fd_; }
  // Queues the text. Once a write has failed (no reader, no space), text is dropped: the program
  // outlives its watcher.
  void Write(std::string_view text);
  size_t bytes() const { return queue_.size() - begin_; }  // That have not been written yet.
  bool empty() const { return bytes() == 0; }
  bool full() const { return bytes() >= kFull; }  // Produce no more for now.
  // To be called when poll() reports anything for fd(): writes until the queue is empty or the next
  // write could block.
  void Drain();

 private:
  static constexpr size_t kFull = 1 << 20;

  int fd_;
  bool failed_ = false;
  std::string queue_;  // From begin_ on.
  size_t begin_ = 0;
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_LAUNCH_SINK_H_
