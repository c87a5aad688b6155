#ifndef FSDP_TRAIN_TRAINER_LAUNCH_DESCRIPTOR_H_
#define FSDP_TRAIN_TRAINER_LAUNCH_DESCRIPTOR_H_

#include <unistd.h>

#include <utility>

namespace fsdp {

// Owns a file descriptor.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() { Close(); }
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }

  int get() const { return fd_; }
  bool open() const { return fd_ >= 0; }
  void Close() {
    if (fd_ >= 0) close(fd_);
    fd_ = -1;
  }

 private:
  int fd_ = -1;
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_LAUNCH_DESCRIPTOR_H_
