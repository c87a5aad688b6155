#include "trainer/core/command_line.h"

#include <CLI/CLI.hpp>  // Costs seconds: no other source includes it.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <sstream>
#include <string_view>

#include "trainer/core/nearest.h"
#include "trainer/core/paths.h"
#include "trainer/core/peers_words.h"
#include "trainer/core/units.h"

namespace fsdp {
namespace {

CLI::Option* Declare(CLI::App& app, const Flag& flag) {
  return std::visit(
      [&](auto* target) {
        if constexpr (std::is_same_v<decltype(target), bool*>) {
          return app.add_flag(flag.name, *target, flag.help);
        } else {
          return app.add_option(flag.name, *target, flag.help);
        }
      },
      flag.target);
}

// Refuses words that are no number of the range. CLI::Range would take NaN, and CLI11 alone reads
// "" as 0.
template <typename T>
CLI::Validator Between(const FlagRange& range, const std::string& type) {
  const std::string least = Shortest(range.least), most = Shortest(range.most);
  std::string wanted = least + " to " + most, help = type + " in [" + least + " - " + most + "]";
  if (range.least == kAboveZero.least) wanted = "above 0", help = "POSITIVE";
  if (range.least == kAnyNumber.least) {
    wanted = std::is_integral_v<T> ? "of whole numbers" : "of finite numbers", help = "";
  }
  const auto check = [=](const std::string& word) -> std::string {
    T value{};
    const bool read = CLI::detail::lexical_cast(word, value);
    const auto number = static_cast<double>(value);
    if (read && std::isfinite(number) && number >= range.least && number <= range.most) return "";
    return "Value " + word + " not in range " + wanted;
  };
  return {check, help};
}

// CLI11 would read -1, and what is too large, as 2^64 - 1.
std::string IsUnsigned(const std::string& word) {
  uint64_t value = 0;
  const char* const end_of_word = word.data() + word.size();
  const auto [end, error] = std::from_chars(word.data(), end_of_word, value);
  if (error == std::errc() && end == end_of_word) return "";
  return "Value " + word + " not in range 0 to 18446744073709551615";
}

bool IsWhole(const FlagTarget& target) {
  return std::holds_alternative<int*>(target) || std::holds_alternative<int64_t*>(target) ||
         std::holds_alternative<std::optional<int>*>(target) ||
         std::holds_alternative<std::vector<int64_t>*>(target);
}

std::vector<std::string> Split(const char* choices) {
  std::vector<std::string> words;
  std::istringstream in(choices);
  for (std::string word; std::getline(in, word, ',');) words.push_back(word);
  return words;
}

bool IsPath(const FlagRules& rules) {
  const std::string_view value = rules.value == nullptr ? "" : rules.value;
  return value == "FILE" || value == "DIR" || value == "PATH";
}

CLI::Option* AddFlag(CLI::App& app, const Flag& flag) {
  CLI::Option* const option = Declare(app, flag);
  const FlagRules& rules = flag.rules;
  if (rules.value != nullptr) option->type_name(rules.value);
  if (IsPath(rules)) option->transform(CLI::Validator(ExpandHome, ""));
  if (rules.byte_units) option->transform(CLI::AsSizeValue(/*kb_is_1000=*/false));
  if (std::holds_alternative<double*>(flag.target)) {
    option->check(Between<double>(rules.range, "FLOAT"));
  } else if (std::holds_alternative<uint64_t*>(flag.target)) {
    option->check(CLI::Validator(IsUnsigned, ""));
  } else if (IsWhole(flag.target)) {
    option->check(Between<int64_t>(rules.range, "INT"));
  }
  if (rules.choices != nullptr) option->check(CLI::IsMember(Split(rules.choices)));
  // CLI11 also takes [a, b] for a list, unless a list takes one word at a time.
  if (rules.one_each) option->allow_extra_args(false)->take_all();
  if (rules.required) option->required();
  if (rules.shows_default) option->capture_default_str();
  if (rules.default_text != nullptr) option->default_str(rules.default_text);
  return option;
}

void AddCommand(CLI::App& app, const Command& command) {
  // First: commands inherit it.
  if (!command.footer.empty()) app.footer(command.footer);
  if (!command.version.empty()) app.set_version_flag("--version", command.version);
  if (!command.commands.empty()) app.require_subcommand(command.run ? 0 : 1, 1);
  if (command.hidden) app.group("");
  std::vector<CLI::Option*> options;
  for (const Flag& flag : command.flags) options.push_back(AddFlag(app, flag));
  for (size_t i = 0; i < options.size(); ++i) {
    const FlagRules& rules = command.flags[i].rules;
    if (rules.needs != nullptr) options[i]->needs(app.get_option(rules.needs));
    if (rules.excludes != nullptr) options[i]->excludes(app.get_option(rules.excludes));
  }
  if (command.take_strays) {
    app.allow_extras();
    // When the command's own part has been read, not at the end: CLI11 would give what follows a
    // positional and a `--` to the program, which refuses it.
    app.parse_complete_callback([&app, &command] {
      std::vector<std::string> strays = app.remaining();
      std::erase(strays, "--");  // CLI11 leaves it over.
      command.take_strays(strays);
    });
  }
  for (const Command& sub : command.commands) {
    AddCommand(*app.add_subcommand(sub.name, sub.about), sub);
  }
}

const Command& Innermost(const CLI::App& app, const Command& command) {
  for (const CLI::App* given : app.get_subcommands()) {
    for (const Command& sub : command.commands) {
      if (sub.name == given->get_name()) return Innermost(*given, sub);
    }
  }
  return command;
}

// "--a_b=5" -> "--a-b"
std::string FlagName(std::string word) {
  word.resize(std::min(word.find('='), word.size()));
  std::ranges::replace(word, '_', '-');
  return word;
}

}  // namespace

std::string HintForStray(const Command& command, const std::string& word) {
  const bool is_flag = word.starts_with("--");
  const std::string name = is_flag ? FlagName(word) : word;
  std::vector<std::string> known;
  for (const Flag& flag : command.flags) {
    const std::string names = flag.name;
    if (is_flag && names.starts_with("--")) known.push_back(names.substr(0, names.find(',')));
  }
  for (const Command& sub : command.commands) {
    if (!is_flag && !sub.hidden) known.push_back(sub.name);
  }
  const auto knows = [&](std::string_view one) {
    return std::ranges::find(known, one) != known.end();
  };
  const auto did_you_mean = [](const std::string& ours) { return HintOf({"", ours, ""}); };
  if (knows(name)) return did_you_mean(name);
  // The table of commands is that of the program, whose flags stand in front of commands.
  const PeersWord* const peers = is_flag                    ? FindPeersWord(PeersFlags(), name)
                                 : command.commands.empty() ? nullptr
                                                            : FindPeersWord(PeersCommands(), name);
  const bool of_others = peers != nullptr && peers->ours.starts_with("--") && is_flag;
  if (peers != nullptr && (!of_others || knows(peers->ours.substr(0, peers->ours.find(' '))))) {
    return HintOf(*peers);
  }
  const std::string near = NearestSpelling(name, known);
  return near.empty() ? "" : did_you_mean(near);
}

CommandLine ReadCommandLine(const Command& program, const std::vector<std::string>& words) {
  CLI::App app(program.about, program.name);
  AddCommand(app, program);
  try {
    app.parse(std::vector<std::string>(words.rbegin(), words.rend()));  // As CLI11 wants.
  } catch (const CLI::Success& asked) {
    std::ostringstream text;
    app.exit(asked, text);
    return {&program, text.str()};
  } catch (const CLI::ParseError& error) {
    // Also where a flag is missing, which may be the one that is misspelt.
    const Command& innermost = Innermost(app, program);
    const std::vector<std::string> strays = app.remaining(/*recurse=*/true);
    std::string hint;
    for (const std::string& word : strays) {
      if (hint.empty()) hint = HintForStray(innermost, word);
    }
    throw UsageError(error.what(), strays, hint);
  }
  return {&Innermost(app, program), ""};
}

}  // namespace fsdp
