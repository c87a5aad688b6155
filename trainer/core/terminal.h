// Whether a person looks, and one line that is redrawn below all others.
#ifndef FSDP_TRAIN_TRAINER_CORE_TERMINAL_H_
#define FSDP_TRAIN_TRAINER_CORE_TERMINAL_H_

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>

namespace fsdp {

// Whether `fd` is a terminal that moves its cursor when told to: TERM is set and not "dumb". False
// below mpirun: Open MPI gives its ranks a terminal whatever its own output is.
bool IsTerminal(int fd);
// Columns of the terminal now; 80 where the width is unknown.
int TerminalWidth(int fd);

int Columns(std::string_view utf8);  // One a character, which holds for what we draw.
std::string WithoutColours(std::string_view text);
// The text that erases the bar written last, on a terminal that has `width` columns by now: a
// narrower terminal has wrapped the bar. Empty for an empty bar.
std::string EraseBar(std::string_view bar, int width);

// `launch` sets this variable for rank 0 to the name of the terminal that it writes to. A line of
// that rank's stdout that begins with kBarMark is then the bar to show from now on; an empty one
// removes the bar.
inline constexpr char kTerminalVariable[] = "FSDP_TRAIN_TERMINAL";
inline constexpr char kBarMark = '\r';

// How far a long job is, on stderr: on a terminal a line that is redrawn, and erased at the end;
// elsewhere a line every ten seconds. Nothing for a job that is done at once.
class ProgressLine {
 public:
  ProgressLine();
  // Says `doing` and the seconds so far, from `first_s` on; by default two seconds on a terminal. A
  // thread draws it, however long nobody calls Do().
  explicit ProgressLine(std::string doing, std::optional<double> first_s = std::nullopt);
  ~ProgressLine();
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  double Seconds() const;  // Since the job has begun, with this object.
  bool IsDue() const;      // Whether Show() would show its line.
  void Show(const std::string& line);
  void Do(std::string doing);  // In place of what the constructor got.
  void End();                  // Erases the line. Before others write to the terminal.

 private:
  void Draw(const std::string& line);
  void Watch();

  const bool terminal_;
  const double every_;  // Seconds.
  const std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  mutable std::mutex mutex_;  // For all that follow.
  std::condition_variable wake_;
  double next_;
  std::string drawn_;  // On a terminal.
  std::string doing_;
  bool ends_ = false;
  std::thread watch_;
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_CORE_TERMINAL_H_
