// The output of a launcher: queues that never block on a slow reader, in them its own lines, its
// ranks', and on a terminal rank 0's bar below them.
// Tests: tests/trainer/launch/sink_test.cc
#ifndef FSDP_TRAIN_TRAINER_LAUNCH_LAUNCH_OUTPUT_H_
#define FSDP_TRAIN_TRAINER_LAUNCH_LAUNCH_OUTPUT_H_

#include <cstddef>
#include <initializer_list>
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

// This process's stdout and stderr, one queue where both are one file: else a line could come
// inside another. Not thread-safe.
class LaunchOutput {
 public:
  LaunchOutput();

  Sink& output() { return output_; }
  Sink& errors() { return one_file_ ? output_ : errors_; }
  size_t bytes() const { return output_.bytes() + errors_.bytes(); }  // Not written yet.

  // One line, its end added.
  void Line(Sink& sink, std::initializer_list<std::string_view> parts);
  void Say(std::string_view text) { Line(errors(), {"launch: ", text}); }

  // Name of the terminal that stdout is; empty: it is none.
  const std::string& terminal() const { return terminal_; }
  // The next ShowBar() shows the bar; an empty one takes it away. Does nothing where there is no
  // terminal.
  void SetBar(std::string_view bar);
  // To be called before a wait. On a terminal that does not read nothing piles up.
  void ShowBar();

 private:
  void HideBar();

  Sink output_, errors_;
  const bool one_file_;
  std::string terminal_;
  std::string bar_, shown_;  // To be shown, and as it is now.
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_LAUNCH_LAUNCH_OUTPUT_H_
