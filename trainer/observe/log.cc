#include "trainer/observe/log.h"

#include <spdlog/logger.h>
#include <spdlog/sinks/basic_file_sink.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <mutex>
#include <utility>

#include "trainer/core/errors.h"
#include "trainer/core/utf8.h"

namespace fsdp {

struct Log::Impl {
  spdlog::logger logger;
  std::string path;
  struct stat opened;
  Screen screen;
  std::mutex screen_mutex;
};

Log::Log(const std::string& path, Screen screen) try {
  struct stat status;  // A pipe would wait for a reader.
  if (::stat(path.c_str(), &status) == 0 && !S_ISREG(status.st_mode) && !S_ISCHR(status.st_mode)) {
    throw spdlog::spdlog_ex("it is neither a file nor a character device");
  }
  auto file = std::make_shared<spdlog::sinks::basic_file_sink_mt>(path, /*truncate=*/false);
  if (::stat(path.c_str(), &status) != 0) throw spdlog::spdlog_ex(std::strerror(errno));
  impl_.reset(
      new Impl{spdlog::logger("rank", std::move(file)), path, status, std::move(screen), {}});
  impl_->logger.set_pattern("%Y-%m-%dT%H:%M:%S.%e %L %v");  // Local time; the level's first letter.
  impl_->logger.flush_on(spdlog::level::info);
} catch (const spdlog::spdlog_ex& error) {
  throw CheckpointError(path + ": the log cannot be written: " + error.what());
}

Log::~Log() = default;

void Log::RequireThere() const {
  const struct stat& opened = impl_->opened;
  if (!S_ISREG(opened.st_mode)) return;
  struct stat named;
  const bool there = ::stat(impl_->path.c_str(), &named) == 0;
  if (there && named.st_dev == opened.st_dev && named.st_ino == opened.st_ino) return;
  throw CheckpointError(impl_->path +
                        (there ? ": is another file by now: it was replaced"
                               : ": is gone: it was removed or renamed") +
                        " while it was written, and what it held is no longer there");
}

void Log::Write(LogLevel level, std::string_view text) {
  constexpr spdlog::level::level_enum kLevels[] = {spdlog::level::info, spdlog::level::warn,
                                                   spdlog::level::err};
  // People look at it in a terminal.
  impl_->logger.log(kLevels[static_cast<int>(level)], spdlog::string_view_t(Printable(text)));
  if (level == LogLevel::kInfo || !impl_->screen) return;
  const std::lock_guard lock(impl_->screen_mutex);
  impl_->screen(level, text);
}

}  // namespace fsdp
