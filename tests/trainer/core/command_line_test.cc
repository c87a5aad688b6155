#include "trainer/core/command_line.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/testing/kept_environment.h"

namespace fsdp {
namespace {

using Strings = std::vector<std::string>;

bool Contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// A program of two commands, and where its flags go.
struct Example {
  bool fast = false, slow = false;
  int count = 3;
  int64_t large = 0;
  uint64_t seed = 0;
  double rate = 0.5, any = 0, share = 1;
  std::string name = "x", device = "cpu";
  std::optional<int> limit;
  std::vector<int64_t> sizes = {1, 2};
  Strings files, settings, strays;

  Command Program() {
    Command work{"work", "Does it"};
    work.flags = {
        {"--fast", &fast, "Quickly"},
        {"--slow", &slow, "Slowly", FlagRules{.excludes = "--fast"}},
        {"--count", &count, "How many", FlagRules{.range = {1, 9}, .shows_default = true}},
        {"--large", &large, "More", FlagRules{.range = {0, int64_t{1} << 50}}},
        {"--seed", &seed, "Any"},
        {"--rate", &rate, "A share", FlagRules{.range = kAboveZero}},
        {"--any", &any, "Any number"},
        {"--share", &share, "Its part", FlagRules{.range = {1e-9, 1}}},
        {"--name", &name, "Who", FlagRules{.value = "WHO", .needs = "--fast"}},
        {"--device", &device, "Where", FlagRules{.choices = "cpu,cuda", .shows_default = true}},
        {"--limit", &limit, "Most", FlagRules{.default_text = "7"}},
        {"--sizes", &sizes, "Bytes", FlagRules{.byte_units = true, .shows_default = true}},
        {"--set", &settings, "A key", FlagRules{.value = "K=V", .one_each = true}},
        {"files", &files, "What to read", kRequiredPath},
    };
    work.run = [] { return ExitCode::kData; };
    Command list{"list", "Lists"};
    list.take_strays = [this](const Strings& words) { strays = words; };
    list.run = [] {};
    list.footer = "List's own end.";
    Command group{"group", "Has commands"};
    group.commands = {list};
    Command secret{"secret", "For tools"};
    secret.hidden = true;
    Command program{"prog", "About it"};
    program.flags = {{"--top", &top, "Of the program"}};
    program.commands = {work, group, secret};
    program.run = [] { return 42; };
    program.footer = "The end.";
    program.version = "prog 1.2";
    return program;
  }
  bool top = false;

  // The mistake that the line is refused for; empty: none.
  std::string Mistake(const Strings& words) {
    const Command program = Program();
    try {
      ReadCommandLine(program, words);
    } catch (const UsageError& error) {
      EXPECT_EQ(error.code(), ExitCode::kUsage);
      return error.what();
    }
    return "";
  }
  std::string Text(const Strings& words) { return ReadCommandLine(Program(), words).text; }
};

TEST(CommandLine, FilesAndDirectoriesMayBeginWithATilde) {
  const testing::KeptEnvironment kept;
  ::setenv("HOME", "/home/u", 1);
  std::string file, text;
  Strings directories, paths;
  Command program{"prog", "Does things."};
  program.flags = {{"--file", &file, "One", FlagRules{.value = "FILE"}},
                   {"--dir", &directories, "Several", FlagRules{.value = "DIR", .one_each = true}},
                   {"--text", &text, "None"},
                   {"paths", &paths, "Some", kRequiredPath}};
  program.run = [] {};
  ReadCommandLine(program, {"--file=~/a", "--dir", "~/b c", "--dir", "d/~", "--text", "~/e", "~",
                            "~nobody_is_called_so/f"});
  EXPECT_EQ(file, "/home/u/a");
  EXPECT_EQ(directories, (Strings{"/home/u/b c", "d/~"}));
  EXPECT_EQ(text, "~/e");
  EXPECT_EQ(paths, (Strings{"/home/u", "~nobody_is_called_so/f"}));
}

TEST(CommandLine, SetsTargetsOfEveryType) {
  Example it;
  const Command program = it.Program();
  const CommandLine line = ReadCommandLine(program, {"--top",       "work",
                                                     "a",           "--fast",
                                                     "--count",     "9",
                                                     "--large",     "1125899906842624",
                                                     "--seed",      "18446744073709551615",
                                                     "--any",       "-1e308",
                                                     "--rate=0.25", "--name",
                                                     "me",          "--device",
                                                     "cuda",        "--limit",
                                                     "4",           "--sizes",
                                                     "64",          "2k",
                                                     "--set",       "a=[1, 2]",
                                                     "b",           "--set",
                                                     "[c,d]"});
  EXPECT_EQ(line.command, &program.commands[0]);
  EXPECT_EQ(line.text, "");
  EXPECT_TRUE(it.top && it.fast);
  EXPECT_FALSE(it.slow);
  EXPECT_EQ(it.count, 9);
  EXPECT_EQ(it.large, int64_t{1} << 50);
  EXPECT_EQ(it.seed, UINT64_MAX);
  EXPECT_EQ(it.rate, 0.25);
  EXPECT_EQ(it.any, -1e308);
  EXPECT_EQ(it.name, "me");
  EXPECT_EQ(it.device, "cuda");
  EXPECT_EQ(it.limit, 4);
  EXPECT_EQ(it.sizes, (std::vector<int64_t>{64, 2048}));
  EXPECT_EQ(it.settings, (Strings{"a=[1, 2]", "[c,d]"}));  // Neither split nor with `b`.
  EXPECT_EQ(it.files, (Strings{"a", "b"}));
}

TEST(CommandLine, LeavesTargetsOfFlagsThatAreNotGiven) {
  Example it;
  EXPECT_EQ(it.Mistake({"work", "a"}), "");
  EXPECT_EQ(it.count, 3);
  EXPECT_EQ(it.limit, std::nullopt);
  EXPECT_EQ(it.sizes, (std::vector<int64_t>{1, 2}));
}

TEST(CommandLine, RefusesWhatTheRowsForbid) {
  const std::vector<std::pair<Strings, std::string>> mistakes = {
      {{"work"}, "files is required"},
      {{"work", "a", "--count"}, "--count: 1 required"},
      {{"work", "a", "--count", "0"}, "--count: Value 0 not in range 1 to 9"},
      {{"work", "a", "--count", "10"}, "--count: Value 10 not in range 1 to 9"},
      {{"work", "a", "--count", "1.5"}, "--count: Value 1.5 not in range 1 to 9"},
      {{"work", "a", "--large", "1125899906842625"}, "not in range 0 to 1125899906842624"},
      {{"work", "a", "--seed", "x"}, "--seed: Value x not in range 0 to"},
      {{"work", "a", "--rate", "0"}, "--rate: Value 0 not in range above 0"},
      {{"work", "a", "--rate", "-1e-9"}, "--rate: Value -1e-9 not in range above 0"},
      {{"work", "a", "--rate", "nan"}, "--rate: Value nan not in range above 0"},
      {{"work", "a", "--rate", "-NaN"}, "--rate: Value -NaN not in range above 0"},
      {{"work", "a", "--rate", "inf"}, "--rate: Value inf not in range above 0"},
      {{"work", "a", "--rate", "1e999"}, "--rate: Value 1e999 not in range above 0"},
      {{"work", "a", "--any", "nan"}, "--any: Value nan not in range of finite numbers"},
      {{"work", "a", "--any", "infinity"}, "--any: Value infinity not in range"},
      {{"work", "a", "--any", "x"}, "--any"},
      {{"work", "a", "--share", "nan"}, "--share: Value nan not in range 1e-09 to 1"},
      {{"work", "a", "--count", "nan"}, "--count: Value nan not in range 1 to 9"},
      {{"work", "a", "--count", "1e300"}, "--count: Value 1e300 not in range 1 to 9"},
      {{"work", "a", "--seed", "-1"}, "--seed: Value -1 not in range 0 to 18446744073709551615"},
      {{"work", "a", "--seed", "1" + std::string(20, '0')}, "00000 not in range 0 to"},
      {{"work", "a", "--seed", ""}, "--seed: Value  not in range 0 to"},
      {{"work", "a", "--limit", ""}, "--limit: Value  not in range of whole numbers"},
      {{"work", "a", "--device", "tpu"}, "--device: tpu not in {cpu,cuda}"},
      {{"work", "a", "--limit", "x"}, "--limit: Value x not in range of whole"},
      {{"work", "a", "--sizes", "2q"}, "--sizes: q unit not recognized"},
      {{"work", "a", "--name", "me"}, "--name requires --fast"},
      {{"work", "a", "--slow", "--fast"}, "excludes"},
      {{"work", "a", "--count", "1", "--count", "2"}, "--count: At Most 1 required"},
      {{"group"}, "A subcommand is required"},
  };
  for (const auto& [words, message] : mistakes) {
    const std::string mistake = Example().Mistake(words);
    EXPECT_TRUE(Contains(mistake, message)) << message << ": " << mistake;
  }
}

TEST(CommandLine, SaysWhichWordsAreStrayAndWhatWasMeant) {
  const auto strays = [](const Strings& words, const std::string& hint) {
    Example it;
    const Command program = it.Program();
    try {
      ReadCommandLine(program, words);
    } catch (const UsageError& error) {
      EXPECT_EQ(error.hint, hint);
      return error.strays;
    }
    ADD_FAILURE() << "not refused";
    return Strings();
  };
  EXPECT_EQ(strays({"nonsense"}, ""), Strings{"nonsense"});
  EXPECT_EQ(strays({"work", "a", "--nonsense"}, ""), Strings{"--nonsense"});
  EXPECT_EQ(strays({"work"}, ""), Strings());
  EXPECT_EQ(strays({"work", "a", "--si_zes=1"}, "did you mean `--sizes`?"), Strings{"--si_zes=1"});
  EXPECT_EQ(strays({"work", "--cuont", "1"}, "did you mean `--count`?"), Strings{"--cuont"});
  EXPECT_EQ(strays({"wrok"}, "did you mean `work`?"), Strings{"wrok"});
  EXPECT_EQ(strays({"secrte"}, ""), Strings{"secrte"});
  EXPECT_EQ(strays({"chat"}, "did you mean `generate RUN_DIR`? (on a terminal it talks)"),
            Strings{"chat"});
  EXPECT_EQ(strays({"work", "a", "--temp"}, ""), Strings{"--temp"});  // It has no --temperature.
}

TEST(CommandLine, AFlagMayBeAnArgumentToo) {
  std::string path;
  Strings paths;
  Command program{"prog", "Does things."};
  program.flags = {{"--one,place", &path, "One", FlagRules{.value = "DIR", .required = true}},
                   {"--several", &paths, "More", FlagRules{.needs = "--one"}}};
  program.run = [] {};
  ReadCommandLine(program, {"a"});
  EXPECT_EQ(path, "a");
  ReadCommandLine(program, {"--one", "b", "--several", "c"});
  EXPECT_EQ(path, "b");
  EXPECT_THROW(ReadCommandLine(program, {"a", "--one", "b"}), UsageError);
  EXPECT_THROW(ReadCommandLine(program, {}), UsageError);
}

TEST(CommandLine, FindsTheInnermostCommandAndRunsIt) {
  Example it;
  const Command program = it.Program();
  const CommandLine none = ReadCommandLine(program, {});
  EXPECT_EQ(none.command, &program);
  EXPECT_EQ(none.command->run(), 42);
  EXPECT_EQ(ReadCommandLine(program, {"work", "a"}).command->run(),
            static_cast<int>(ExitCode::kData));
  const CommandLine list = ReadCommandLine(program, {"group", "list", "--what", "is", "--"});
  EXPECT_EQ(list.command, &program.commands[1].commands[0]);
  EXPECT_EQ(list.command->run(), 0);  // Its function returns nothing.
  EXPECT_EQ(it.strays, (Strings{"--what", "is"}));
}

TEST(CommandLine, HelpShowsTheRows) {
  Example it;
  const std::string all = it.Text({"--help"});
  for (const char* part : {"About it", "Usage: prog [OPTIONS] [SUBCOMMAND]", "--version", "--top",
                           "work ", "Does it", "group", "The end."}) {
    EXPECT_TRUE(Contains(all, part)) << part << "\n" << all;
  }
  EXPECT_FALSE(Contains(all, "secret")) << all;
  const std::string work = it.Text({"work", "--help"});
  for (const char* part :
       {"Usage: prog work [OPTIONS] files...", "files PATH ... REQUIRED", "What to read",
        "--slow Excludes: --fast", "--count INT:INT in [1 - 9]=3", "--seed UINT",
        "--rate FLOAT:POSITIVE", "--share FLOAT:FLOAT in [1e-09 - 1]", "--name WHO Needs: --fast",
        "--device TEXT:{cpu,cuda}=cpu", "--limit INT=7", "=[1,2] ...", "--set K=V ...",
        "The end."}) {
    EXPECT_TRUE(Contains(work, part)) << part << "\n" << work;
  }
  EXPECT_FALSE(Contains(work, "WHO=x")) << work;
  const std::string list = it.Text({"group", "list", "-h"});
  EXPECT_TRUE(Contains(list, "List's own end.")) << list;
  EXPECT_FALSE(Contains(list, "The end.")) << list;
  EXPECT_EQ(it.Text({"--version"}), "prog 1.2\n");
  EXPECT_EQ(it.Mistake({"work", "a", "--version"}).substr(0, 5), "The f");  // The program's alone.
}

}  // namespace
}  // namespace fsdp
