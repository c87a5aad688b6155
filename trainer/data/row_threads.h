// Threads that fill the rows of a batch side by side, each row on one of them: decoding images is
// most of what a small model's step waits for. Rows are pure functions of their samples, so no bit
// depends on how many threads there are.
// Tests: tests/trainer/data/row_threads_test.cc
#ifndef FSDP_TRAIN_TRAINER_DATA_ROW_THREADS_H_
#define FSDP_TRAIN_TRAINER_DATA_ROW_THREADS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>

#include "trainer/runtime/thread_pool.h"

namespace fsdp {

class RowThreads {
 public:
  // The calling thread is one of the `threads` >= 1; the others are started at the first Fill().
  explicit RowThreads(int threads) : threads_(threads) {}

  // Calls fill(row) for each row in [0, rows), once. Blocks. Throws what the first row that fails
  // throws, as if rows were filled one behind the other; rows behind it may be left out. Calls from
  // several threads take turns. Throws as StartThread() where a thread cannot be started.
  void Fill(int64_t rows, const std::function<void(int64_t row)>& fill);

 private:
  const int threads_;
  std::mutex turn_;
  std::unique_ptr<ThreadPool> pool_;
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_DATA_ROW_THREADS_H_
