// Subnormal floats are zero in a scope of a test, as in the CPU device's threads.
#ifndef FSDP_TRAIN_TESTS_TESTING_FLUSHED_SUBNORMALS_H_
#define FSDP_TRAIN_TESTS_TESTING_FLUSHED_SUBNORMALS_H_

#include <xmmintrin.h>

#include "trainer/runtime/thread_pool.h"

namespace fsdp {

// The thread's mode is put back at the scope's end: tests share a thread.
class FlushedSubnormals {
 public:
  FlushedSubnormals() { FlushSubnormals(); }
  ~FlushedSubnormals() { _mm_setcsr(before_); }
  FlushedSubnormals(const FlushedSubnormals&) = delete;
  FlushedSubnormals& operator=(const FlushedSubnormals&) = delete;

 private:
  const unsigned before_ = _mm_getcsr();
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TESTS_TESTING_FLUSHED_SUBNORMALS_H_
