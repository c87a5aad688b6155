// The first bytes of a file that only grows, known by their number and their hash.
#ifndef FSDP_TRAIN_TRAINER_CORE_FILE_PREFIX_H_
#define FSDP_TRAIN_TRAINER_CORE_FILE_PREFIX_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

struct XXH64_state_s;

namespace fsdp {

struct FilePrefix {
  int64_t bytes = 0;
  uint64_t hash = 0;  // XXH64 with seed 0: not against an adversary.

  bool operator==(const FilePrefix&) const = default;
};

// Takes a file's bytes in order, in pieces of any size.
class PrefixHash {
 public:
  PrefixHash();
  PrefixHash(PrefixHash&&) noexcept;
  PrefixHash& operator=(PrefixHash&&) noexcept;
  ~PrefixHash();

  void Update(std::string_view bytes);
  FilePrefix Taken() const;  // All bytes so far.

 private:
  struct Free {
    void operator()(XXH64_state_s* state) const;
  };
  std::unique_ptr<XXH64_state_s, Free> state_;
  int64_t bytes_ = 0;
};

// Reads the first `bytes` of a file, or the whole if it is shorter. Throws CheckpointError where
// the path is no regular file and where the disk fails.
PrefixHash HashOfFirst(const std::string& path, int64_t bytes);

// Why the file at `path` does not begin with `prefix`: it is gone, too short, or has other bytes.
// The text follows the path in a message; it is empty where the file begins so. Throws as
// HashOfFirst() does.
std::string HowItDiffers(const std::string& path, const FilePrefix& prefix);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_CORE_FILE_PREFIX_H_
