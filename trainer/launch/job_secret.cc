#include "trainer/launch/job_secret.h"

#include <errno.h>
#include <fcntl.h>
#include <sodium.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "trainer/core/check.h"
#include "trainer/core/errors.h"
#include "trainer/core/paths.h"
#include "trainer/core/unique_fd.h"

namespace fsdp {
namespace {

constexpr const char* kCure = "`openssl rand -hex 32` makes a good one";
constexpr size_t kMaxSecret = 4096;

void CheckLength(const std::string& name, size_t size) {
  if (size >= kMinSecret && size <= kMaxSecret) return;
  throw ConfigError(name + ": a secret of " + std::to_string(size) + " bytes, want " +
                    std::to_string(kMinSecret) + " to " + std::to_string(kMaxSecret) + "; " +
                    kCure);
}

}  // namespace

JobSecret ReadJobSecret(const RankEnvironment& environment, const Getenv& get) {
  // A given secret never equals a derived one.
  if (const char* given = get(kSecretVariable)) {
    CheckLength(kSecretVariable, strlen(given));
    return {std::string("given ") + given, false};
  }
  return {"job " + environment.job_id, true};
}

std::string ReadSecretFile(const std::string& path) {
  const std::string name = "--rdzv-secret-file " + path;
  const auto refuse = [&](const std::string& why) { throw ConfigError(name + ": " + why); };
  // Not to block on what is no file.
  const UniqueFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat status = {};
  if (!file.open() || fstat(file.get(), &status) != 0) refuse(strerror(errno));
  if (!S_ISREG(status.st_mode)) refuse("is not a file");
  if (status.st_uid != geteuid() && status.st_uid != 0) refuse("belongs to another user");
  if ((status.st_mode & (S_IRWXG | S_IRWXO)) != 0) {
    refuse("others may use it: chmod 600 " + ShellWord(path));
  }
  std::string text(kMaxSecret + 2, '\0');
  const ssize_t length = read(file.get(), text.data(), text.size());
  if (length < 0) refuse(strerror(errno));
  text.resize(static_cast<size_t>(length));
  if (!text.empty() && text.back() == '\n') text.pop_back();
  if (!text.empty() && text.back() == '\r') text.pop_back();
  if (text.find('\0') != std::string::npos) refuse("holds a zero byte");
  CheckLength(name, text.size());
  return text;
}

std::string RandomSecret() {
  FSDP_CHECK(sodium_init() >= 0) << "no source of random numbers";
  unsigned char bytes[32];
  randombytes_buf(bytes, sizeof(bytes));
  std::string text(2 * sizeof(bytes) + 1, '\0');
  sodium_bin2hex(text.data(), text.size(), bytes, sizeof(bytes));
  text.pop_back();
  return text;
}

}  // namespace fsdp
