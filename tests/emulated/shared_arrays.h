// The __shared__ arrays of kernels: thread-local variables of the kernels' library.
#ifndef FSDP_TRAIN_TESTS_EMULATED_SHARED_ARRAYS_H_
#define FSDP_TRAIN_TESTS_EMULATED_SHARED_ARRAYS_H_

#include <cstddef>
#include <cstring>

namespace fsdp {

class SharedArrays {
 public:
  SharedArrays() = default;
  // The arrays of this thread of the host, for all kernels in the library of `kernel`. Such a
  // library has no other thread-local variables. The program itself has others, so a kernel in it
  // has no arrays.
  explicit SharedArrays(const void* kernel);

  // Fills them with the bits of NaN.
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
