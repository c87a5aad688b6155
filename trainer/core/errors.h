// Errors that are not our own bug (check.h). A caller's mistake is std::invalid_argument with the
// callee's name in brackets. The classes below name the party at fault, and with it the exit code.
#ifndef FSDP_TRAIN_TRAINER_CORE_ERRORS_H_
#define FSDP_TRAIN_TRAINER_CORE_ERRORS_H_

#include <stdexcept>
#include <string>

namespace fsdp {

enum class ExitCode : int {
  kDone = 0,
  kRuntime = 1,
  kUsage = 2,   // Command line or recipe.
  kMemory = 3,  // Does not fit.
  kData = 4,
  kCheckpoint = 5,  // A checkpoint or the run directory.
  kCollective = 6,  // A collective failed or timed out.
  kNotFinite = 7,   // The loss, weights or state.
  kStopped = 75,    // By a signal; the last line names the checkpoint to resume from.
};

class Error : public std::runtime_error {
 public:
  Error(ExitCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  ExitCode code() const { return code_; }

 private:
  ExitCode code_;
};

// The user's mistake in a recipe or on the command line. what() may hold several lines, one a
// mistake.
struct ConfigError : Error {
  explicit ConfigError(const std::string& message) : Error(ExitCode::kUsage, message) {}
};
struct MemoryError : Error {
  explicit MemoryError(const std::string& message) : Error(ExitCode::kMemory, message) {}
};
struct DataError : Error {
  explicit DataError(const std::string& message) : Error(ExitCode::kData, message) {}
};
struct CheckpointError : Error {
  explicit CheckpointError(const std::string& message) : Error(ExitCode::kCheckpoint, message) {}
};
// A peer is dead, silent for too long, or disagrees. The group is beyond repair.
struct CommError : Error {
  explicit CommError(const std::string& message) : Error(ExitCode::kCollective, message) {}
};
// The machine's fault: memory, threads, files of our own.
struct DeviceError : Error {
  explicit DeviceError(const std::string& message) : Error(ExitCode::kRuntime, message) {}
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_CORE_ERRORS_H_
