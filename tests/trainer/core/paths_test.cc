#include "trainer/core/paths.h"

#include <gtest/gtest.h>
#include <pwd.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "tests/testing/kept_environment.h"
#include "trainer/core/utf8.h"

namespace fsdp {
namespace {

std::string Expanded(std::string path) {
  const std::string why = ExpandHome(path);
  return why.empty() ? path : "why: " + why;
}

// A shell reads the word back as it was.
std::string Echoed(const std::string& word) {
  FILE* const pipe = ::popen(("printf %s " + word).c_str(), "r");
  std::string text;
  std::array<char, 256> some;
  for (size_t n; (n = std::fread(some.data(), 1, some.size(), pipe)) > 0;) {
    text.append(some.data(), n);
  }
  EXPECT_EQ(::pclose(pipe), 0);
  return text;
}

TEST(ExpandHome, IsWhatAShellMakesOfATilde) {
  const testing::KeptEnvironment kept;
  ::setenv("HOME", "/home/a b", 1);
  for (const char* path : {"~", "~/", "~/x", "~/x/~", "~root", "~root/x", "~nobody_is_called_so/x",
                           "x~", "a/~/b", "./~", "~~"}) {
    EXPECT_EQ(Expanded(path), Echoed(path)) << path;
  }
  EXPECT_EQ(Expanded("~/runs"), "/home/a b/runs");
  EXPECT_EQ(Expanded(""), "");
}

TEST(ExpandHome, WithoutHomeAsksThePasswordFile) {
  const testing::KeptEnvironment kept;
  const passwd* const user = ::getpwuid(::getuid());
  ASSERT_NE(user, nullptr);
  const std::string home = user->pw_dir;
  ::unsetenv("HOME");
  EXPECT_EQ(Expanded("~/x"), home + "/x");
  ::setenv("HOME", "", 1);
  EXPECT_EQ(Expanded("~"), home);
}

TEST(ShellWord, IsOneWordOfAShell) {
  for (const char* word :
       {"runs/a", "a b", "it's", "$HOME", "~/x", "a;b", "a*", "\"", "", "a\\b", "x=~/y", "a&b",
        "`ls`", "tab\there", "a\nb'%d\\n $x", "\x1b[31m", "caf\xe9 \xff", "\xc3\xa4 \xc2\x9b"}) {
    EXPECT_EQ(Echoed(ShellWord(word)), word);
    EXPECT_EQ(PrintableName(ShellWord(word)), ShellWord(word));  // A message shows it so.
  }
  EXPECT_EQ(Echoed(ShellWord("-\n")), "./-");
  EXPECT_EQ(ShellWord("runs/a-1_%2"), "runs/a-1_%2");
  EXPECT_EQ(ShellWord("-a"), "./'-a'");
}

}  // namespace
}  // namespace fsdp
