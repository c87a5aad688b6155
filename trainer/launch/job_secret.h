// The secret that the ranks of a job know and others do not: it lets them into the job's store.
#ifndef FSDP_TRAIN_TRAINER_LAUNCH_JOB_SECRET_H_
#define FSDP_TRAIN_TRAINER_LAUNCH_JOB_SECRET_H_

#include <string>

#include "trainer/launch/environment.h"

namespace fsdp {

inline constexpr const char* kSecretVariable = "FSDP_TRAIN_SECRET";
inline constexpr size_t kMinSecret = 16;  // Bytes: whoever hears a rank join may try short ones.

struct JobSecret {
  std::string text;
  // True: nobody gave a secret, so it is made of the job's name. Jobs then do not mix, but whoever
  // knows the name and reaches the port may join.
  bool open = false;
};

// From FSDP_TRAIN_SECRET, else from the job's name. Throws ConfigError where that is too short.
JobSecret ReadJobSecret(
    const RankEnvironment& environment,
    const Getenv& get = [](const char* name) -> const char* { return std::getenv(name); });

// The contents of a file, less the end of its last line. Throws ConfigError: it cannot be read, is
// too short, belongs to somebody else, or others may read it.
std::string ReadSecretFile(const std::string& path);

// 256 random bits as hexadecimal digits.
std::string RandomSecret();

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_LAUNCH_JOB_SECRET_H_
