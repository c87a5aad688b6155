// The dynamic shared memory of a block. It ends at an inaccessible page, and AddressSanitizer knows
// its first and last byte.
#ifndef FSDP_TRAIN_TESTS_EMULATED_SHARED_MEMORY_H_
#define FSDP_TRAIN_TESTS_EMULATED_SHARED_MEMORY_H_

#include <sys/mman.h>

#include <cstddef>
#include <cstring>

#include "tests/emulated/simt.h"
#include "trainer/core/check.h"

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#endif

namespace fsdp {

class SharedMemory {
 public:
  SharedMemory() {
    void* data =
        mmap(nullptr, kPages + kGuard, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    FSDP_CHECK(data != MAP_FAILED);
    begin_ = static_cast<unsigned char*>(data);
    FSDP_CHECK_EQ(mprotect(begin_ + kPages, kGuard, PROT_NONE), 0);
  }
  ~SharedMemory() {
    Resize(kPages);  // The system may give the addresses to somebody else.
    munmap(begin_, kPages + kGuard);
  }
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  void Resize(size_t bytes) {
    bytes_ = bytes;
    data_ = begin_ + kPages - (bytes + 15) / 16 * 16;
#ifdef __SANITIZE_ADDRESS__
    __asan_poison_memory_region(begin_, kPages);
    __asan_unpoison_memory_region(data_, bytes_);
#endif
  }
  // Fills it with the bits of NaN.
  void Fill() { std::memset(data_, 0xff, bytes_); }
  unsigned char* data() const { return data_; }

 private:
  static constexpr size_t kGuard = 4096;
  static constexpr size_t kPages = (kMaxSharedBytes + kGuard - 1) / kGuard * kGuard;

  unsigned char* begin_;
  unsigned char* data_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TESTS_EMULATED_SHARED_MEMORY_H_
