// A disk that is full after `bytes` of a file: writes fail with EFBIG as they would with ENOSPC,
// after a short one up to the limit. For all files of the process, so print nothing meanwhile.
#ifndef FSDP_TRAIN_TESTS_TESTING_FULL_DISK_H_
#define FSDP_TRAIN_TESTS_TESTING_FULL_DISK_H_

#include <sys/resource.h>

#include <csignal>

namespace fsdp {

class FullDisk {
 public:
  explicit FullDisk(rlim_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit = {bytes, before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FullDisk() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }
  FullDisk(const FullDisk&) = delete;
  FullDisk& operator=(const FullDisk&) = delete;

 private:
  void (*handler_)(int);
  rlimit before_{};
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TESTS_TESTING_FULL_DISK_H_
