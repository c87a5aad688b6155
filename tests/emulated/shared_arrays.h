// The __shared__ arrays of kernels: thread-local variables of the library that they are in.
#ifndef FSDP_TRAIN_TESTS_EMULATED_SHARED_ARRAYS_H_
#define FSDP_TRAIN_TESTS_EMULATED_SHARED_ARRAYS_H_

#include <cstddef>
#include <cstring>

namespace fsdp {

class SharedArrays {
 public:
  SharedArrays() = default;
  // Those of this thread of the host, of all kernels of this one's library, which has no other
  // thread-local variables. None of a kernel in the program itself, which has.
  explicit SharedArrays(const void* kernel);

  // With the bits of NaN.
  void Fill() const {
    if (bytes_ > 0) std::memset(data_, 0xff, bytes_);
  }
  size_t bytes() const { return bytes_; }

 private:
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TESTS_EMULATED_SHARED_ARRAYS_H_
