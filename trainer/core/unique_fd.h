#ifndef FSDP_TRAIN_TRAINER_CORE_UNIQUE_FD_H_
#define FSDP_TRAIN_TRAINER_CORE_UNIQUE_FD_H_

#include <unistd.h>

#include <utility>

namespace fsdp {

// Owns a file descriptor, or none.
class UniqueFd {
 public:
  explicit UniqueFd(int fd = -1) : fd_(fd) {}  // Negative: none, as a failed call returns.
  UniqueFd(UniqueFd&& other) noexcept : fd_(other.Release()) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~UniqueFd() { Close(); }

  int get() const { return fd_; }
  bool open() const { return fd_ >= 0; }
  int Release() { return std::exchange(fd_, -1); }  // The caller's from now on.
  void Close() {
    if (open()) ::close(Release());
  }

 private:
  int fd_;
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_CORE_UNIQUE_FD_H_
