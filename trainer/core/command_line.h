// A program's command line: commands and their flags are rows, which one reader knows how to read.
// Texts are literals, or outlive the rows.
// Tests: tests/trainer/core/command_line_test.cc
#ifndef FSDP_TRAIN_TRAINER_CORE_COMMAND_LINE_H_
#define FSDP_TRAIN_TRAINER_CORE_COMMAND_LINE_H_

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "trainer/core/errors.h"

namespace fsdp {

// Where a flag's value goes. The type says which words are values; a bool's flag has none. A list
// takes the words up to the next flag.
using FlagTarget =
    std::variant<bool*, int*, int64_t*, uint64_t*, double*, std::string*, std::optional<int>*,
                 std::vector<int64_t>*, std::vector<std::string>*>;

struct FlagRange {
  double least, most;  // Both are taken, infinities never. For integers up to 2^53.
};
inline constexpr FlagRange kAnyNumber = {-std::numeric_limits<double>::infinity(),
                                         std::numeric_limits<double>::infinity()};
inline constexpr FlagRange kAboveZero = {std::numeric_limits<double>::min(),
                                         std::numeric_limits<double>::max()};

struct FlagRules {
  // The value's name in the help. Null: its type's, such as INT. FILE, DIR and PATH are paths, in
  // which `~` is a home directory (paths.h).
  const char* value = nullptr;
  FlagRange range = kAnyNumber;
  const char* choices = nullptr;  // The words that are taken, with commas between them.
  bool byte_units = false;        // Takes 64k and 16m, powers of 1024.
  bool one_each = false;          // A list gets one word each time that the flag is given.
  bool required = false;
  bool shows_default = false;          // The help shows the target's value of before.
  const char* default_text = nullptr;  // The help shows this as the default.
  const char* needs = nullptr;         // The name of another flag of the command.
  const char* excludes = nullptr;      // As `needs`; either excludes the other.
};

inline constexpr FlagRules kShowsDefault{.shows_default = true};
inline constexpr FlagRules kRequiredPath{.value = "PATH", .required = true};

// Without dashes in its name, a positional argument; "--flag,argument" is both.
struct Flag {
  const char* name;
  FlagTarget target;
  const char* help;
  FlagRules rules = {};
};

// A command's work: any function. Its result is the process's exit code; 0 if it returns void.
class CommandRun {
 public:
  CommandRun() = default;
  template <typename F>
  CommandRun(F run)  // NOLINT(google-explicit-constructor): a function is one.
      : run_([run = std::move(run)] {
          if constexpr (std::is_void_v<decltype(run())>) {
            return run(), 0;
          } else {
            return static_cast<int>(run());
          }
        }) {}
  int operator()() const { return run_(); }
  explicit operator bool() const { return run_ != nullptr; }

 private:
  std::function<int()> run_;
};

struct Command {
  std::string name;  // The program's: as the help shows it.
  std::string about;
  std::vector<Flag> flags = {};
  std::vector<Command> commands = {};
  CommandRun run = {};       // None: one of `commands` must be given.
  std::string footer = {};   // Ends the help. Empty: that of the command above.
  std::string version = {};  // The answer to --version. Empty: no such flag.
  bool hidden = false;       // The help of the command above does not list it.
  // Called with the words that no flag takes, once the targets are set. Null: such words are
  // refused.
  std::function<void(const std::vector<std::string>& strays)> take_strays = {};
};

struct CommandLine {
  const Command* command = nullptr;  // The innermost command that was given.
  std::string text;  // The help or version that was asked for, to be printed instead of running.
};

// A line that the rows refuse.
struct UsageError : ConfigError {
  UsageError(const std::string& message, std::vector<std::string> words, std::string what_was_meant)
      : ConfigError(message), strays(std::move(words)), hint(std::move(what_was_meant)) {}
  std::vector<std::string> strays;  // Words that no flag or command takes.
  std::string hint;                 // "did you mean `--max-tokens`?" for one of them; may be empty.
};

// Says what a word of a line for `command` was meant to be: another spelling of a flag or command,
// or another program's word (peers_words.h). Empty where that is not known.
std::string HintForStray(const Command& command, const std::string& word);

// Sets the targets by the words behind the program's name. Throws UsageError, and what take_strays
// throws.
CommandLine ReadCommandLine(const Command& program, const std::vector<std::string>& words);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_CORE_COMMAND_LINE_H_
