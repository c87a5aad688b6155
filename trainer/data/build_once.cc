#include "trainer/data/build_once.h"

#include <chrono>
#include <cstdio>
#include <thread>
#include <utility>

#include "trainer/core/errors.h"
#include "trainer/core/hex.h"

namespace fsdp {
namespace {

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void WaitFor(FileLock& lock, const std::string& path, const std::string& what,
             const BuildOnceOptions& options) {
  int64_t touched = lock.Touched();
  double silent_since = Now(), last = -1e9;
  while (!lock.Try()) {
    if (const int64_t now = lock.Touched(); now != touched) {
      touched = now;
      silent_since = Now();
    }
    const double silence = Now() - silent_since;
    if (options.silence_s > 0 && silence > options.silence_s) {
      throw CommError("another process has the lock " + path + " to tokenise " + what +
                      " and has done nothing for " + std::to_string(static_cast<int64_t>(silence)) +
                      " s");
    }
    if (options.stop && options.stop()) {
      throw Error(ExitCode::kStopped, "stopped while another process tokenised " + what);
    }
    if (options.say && Now() - last > 60) {
      options.say("waiting for another process that tokenises " + what);
      last = Now();
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}

}  // namespace

std::string BuiltDirectory(const std::string& cache, uint64_t key) {
  return cache + "/" + ToHex(key);
}

void BuildOnce(const std::string& directory, const std::string& what,
               const BuildOnceOptions& options, const std::function<bool()>& is_there,
               const std::function<void(FileLock&)>& make) {
  try {
    MakeDirectories(directory.substr(0, directory.rfind('/')));
  } catch (const DataError& error) {
    throw DataError(error.what() + std::string("; data.cache names another directory"));
  }
  if (is_there()) return;
  const std::string path = directory + ".lock";
  FileLock lock(path);
  WaitFor(lock, path, what, options);
  if (is_there()) return;
  if (options.say) options.say("tokenising " + what + " into " + directory);
  make(lock);
}

TokeniseReport::TokeniseReport(std::string what, std::function<void(const std::string&)> say)
    : what_(std::move(what)), say_(std::move(say)), last_s_(Now()) {}

void TokeniseReport::operator()(double share, int64_t tokens) {
  if (!say_ || Now() - last_s_ < 10) return;
  last_s_ = Now();
  char text[64];
  std::snprintf(text, sizeof(text), ": %.1f %%, %.1f M tokens", 100 * share,
                static_cast<double>(tokens) / 1e6);
  say_("tokenising " + what_ + text);
}

}  // namespace fsdp
