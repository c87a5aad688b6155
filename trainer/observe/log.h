// logs/rank_<r>.log: what happened on a rank, with times. spdlog behind a small door, so that its
// headers are compiled once.
#ifndef FSDP_TRAIN_TRAINER_OBSERVE_LOG_H_
#define FSDP_TRAIN_TRAINER_OBSERVE_LOG_H_

#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace fsdp {

enum class LogLevel { kInfo, kWarning, kError };

// Safe for any number of threads. Lines are written through: a killed rank's log is complete.
class Log {
 public:
  // Shows warnings and errors where a person looks, too; called by the thread that logs. Rank 0
  // gives the console's Warning(); empty: the file alone.
  using Screen = std::function<void(LogLevel level, std::string_view text)>;

  // Appends to `path`, whose directories are made. Throws CheckpointError if that cannot be.
  explicit Log(const std::string& path, Screen screen = {});
  ~Log();
  Log(const Log&) = delete;
  Log& operator=(const Log&) = delete;

  void Info(std::string_view text) { Write(LogLevel::kInfo, text); }
  void Warning(std::string_view text) { Write(LogLevel::kWarning, text); }
  void Error(std::string_view text) { Write(LogLevel::kError, text); }

  // Throws CheckpointError where the path no longer leads to the file that is written: it was
  // removed, renamed or replaced. A device's path may lead anywhere.
  void RequireThere() const;

 private:
  void Write(LogLevel level, std::string_view text);

  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OBSERVE_LOG_H_
