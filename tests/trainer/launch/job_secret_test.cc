#include "trainer/launch/job_secret.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdio>
#include <fstream>
#include <string>

#include "trainer/core/errors.h"

namespace fsdp {
namespace {

JobSecret Read(const char* given, const std::string& job_id) {
  RankEnvironment environment;
  environment.job_id = job_id;
  return ReadJobSecret(environment, [given](const char* name) {
    return std::string(name) == "FSDP_TRAIN_SECRET" ? given : nullptr;
  });
}

std::string WriteFile(const std::string& text, mode_t mode) {
  static int count = 0;
  const std::string path = ::testing::TempDir() + "/secret" + std::to_string(count++);
  std::ofstream(path, std::ios::binary) << text;
  chmod(path.c_str(), mode);
  return path;
}

std::string Refusal(const std::string& path) {
  try {
    ReadSecretFile(path);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "taken";
}

TEST(JobSecret, IsWhatWasGivenOrElseTheJobsName) {
  const JobSecret given = Read("0123456789abcdef", "a");
  EXPECT_FALSE(given.open);
  EXPECT_EQ(given.text, Read("0123456789abcdef", "b").text);
  EXPECT_NE(given.text, Read("0123456789abcdeg", "a").text);
  const JobSecret derived = Read(nullptr, "0123456789abcdef");
  EXPECT_TRUE(derived.open);
  EXPECT_NE(derived.text, given.text);
  EXPECT_NE(derived.text, Read(nullptr, "another").text);
  EXPECT_EQ(derived.text, Read(nullptr, "0123456789abcdef").text);
}

TEST(JobSecret, AShortOneIsRefused) {
  for (const char* secret : {"", "123456789012345"}) {
    try {
      Read(secret, "");
      FAIL() << "taken";
    } catch (const ConfigError& error) {
      const std::string text = error.what();
      EXPECT_EQ(text.find("FSDP_TRAIN_SECRET: a secret of "), 0u) << text;
      EXPECT_NE(text.find("openssl rand -hex 32"), std::string::npos) << text;
    }
  }
}

TEST(JobSecret, AFileOfOnesOwnHoldsIt) {
  EXPECT_EQ(ReadSecretFile(WriteFile("0123456789abcdef", 0600)), "0123456789abcdef");
  EXPECT_EQ(ReadSecretFile(WriteFile("0123456789abcdef\n", 0400)), "0123456789abcdef");
  EXPECT_EQ(ReadSecretFile(WriteFile("0123456789abcdef \r\n", 0600)), "0123456789abcdef ");
}

TEST(JobSecret, OtherFilesAreRefused) {
  const std::string text(32, 's');
  for (const mode_t mode : {0640, 0604, 0620, 0610, 0666}) {
    EXPECT_NE(Refusal(WriteFile(text, mode)).find("others may use it: chmod 600"),
              std::string::npos)
        << std::oct << mode;
  }
  EXPECT_NE(Refusal(WriteFile("short\n", 0600)).find("a secret of 5 bytes, want 16 to 4096"),
            std::string::npos);
  EXPECT_NE(Refusal(WriteFile(std::string(5000, 's'), 0600)).find("want 16 to 4096"),
            std::string::npos);
  EXPECT_NE(Refusal(WriteFile(text + '\0' + text, 0600)).find("zero byte"), std::string::npos);
  EXPECT_NE(Refusal("/nonexistent").find("No such file"), std::string::npos);
  EXPECT_NE(Refusal("/dev/null").find("is not a file"), std::string::npos);
}

TEST(JobSecret, RandomOnesDiffer) {
  const std::string a = RandomSecret(), b = RandomSecret();
  EXPECT_EQ(a.size(), 64u);
  EXPECT_EQ(a.find_first_not_of("0123456789abcdef"), std::string::npos);
  EXPECT_NE(a, b);
}

}  // namespace
}  // namespace fsdp
