// The output of a launcher: its own lines, its ranks', and on a terminal rank 0's bar below them.
// Tests: tests/trainer/launch/supervisor_test.cc
#ifndef FSDP_TRAIN_TRAINER_LAUNCH_LAUNCH_OUTPUT_H_
#define FSDP_TRAIN_TRAINER_LAUNCH_LAUNCH_OUTPUT_H_

#include <cstddef>
#include <initializer_list>
#include <string>
#include <string_view>

#include "trainer/launch/sink.h"

namespace fsdp {

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
