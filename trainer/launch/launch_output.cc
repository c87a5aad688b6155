#include "trainer/launch/launch_output.h"

#include <sys/stat.h>
#include <unistd.h>

#include "trainer/core/terminal.h"

namespace fsdp {
namespace {

bool SameFile(int a, int b) {
  struct stat first, second;
  return fstat(a, &first) == 0 && fstat(b, &second) == 0 && first.st_dev == second.st_dev &&
         first.st_ino == second.st_ino;
}

}  // namespace

LaunchOutput::LaunchOutput()
    : output_(STDOUT_FILENO),
      errors_(STDERR_FILENO),
      one_file_(SameFile(STDOUT_FILENO, STDERR_FILENO)) {
  char name[256];
  if (IsTerminal(STDOUT_FILENO) && ttyname_r(STDOUT_FILENO, name, sizeof(name)) == 0) {
    terminal_ = name;
  }
}

void LaunchOutput::Line(Sink& sink, std::initializer_list<std::string_view> parts) {
  if (&sink == &output_) HideBar();
  for (const std::string_view part : parts) sink.Write(part);
  sink.Write("\n");
}

void LaunchOutput::SetBar(std::string_view bar) {
  if (terminal_.empty()) return;
  bar_ = bar;
  if (bar_.empty()) HideBar();
}

void LaunchOutput::ShowBar() {
  if (bar_ == shown_ || !output_.empty()) return;
  const std::string erase = EraseBar(shown_, TerminalWidth(STDOUT_FILENO));
  output_.Write(erase + bar_);
  output_.Drain();
  shown_ = bar_;
}

void LaunchOutput::HideBar() {
  if (shown_.empty()) return;
  output_.Write(EraseBar(shown_, TerminalWidth(STDOUT_FILENO)));
  shown_.clear();
}

}  // namespace fsdp
