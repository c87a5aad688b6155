// Whether a person looks, and one line that is redrawn below all others.
#ifndef FSDP_TRAIN_TRAINER_CORE_TERMINAL_H_
#define FSDP_TRAIN_TRAINER_CORE_TERMINAL_H_

#include <string>
#include <string_view>

namespace fsdp {

// A terminal that moves its cursor when told to: TERM is set and not "dumb". Open MPI gives its
// ranks a terminal whatever its own output is, so below mpirun there is none.
bool IsTerminal(int fd);
// Columns of the terminal now; 80 where nobody knows.
int TerminalWidth(int fd);

int Columns(std::string_view utf8);  // A column for each character: of what we draw.
std::string WithoutColours(std::string_view text);
// What takes the bar away that was written last, on a terminal of so many columns by now: one that
// was made narrower has wrapped it. Empty for an empty bar.
std::string EraseBar(std::string_view bar, int width);

// Set by `launch` for rank 0, where it writes to a terminal: the terminal's name. A line of that
// rank's stdout that begins with kBarMark is then the bar to show from now on, none where nothing
// follows.
inline constexpr char kTerminalVariable[] = "FSDP_TRAIN_TERMINAL";
inline constexpr char kBarMark = '\r';

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_CORE_TERMINAL_H_
