#include "trainer/data/row_threads.h"

#include <atomic>
#include <exception>
#include <system_error>

#include "trainer/core/start_thread.h"

namespace fsdp {

void RowThreads::Fill(int64_t rows, const std::function<void(int64_t row)>& fill) {
  if (threads_ == 1 || rows <= 1) {
    for (int64_t row = 0; row < rows; ++row) fill(row);
    return;
  }
  const std::scoped_lock turn(turn_);
  if (!pool_) {
    try {
      pool_ = std::make_unique<ThreadPool>(threads_, /*spin=*/false);
    } catch (const std::system_error& error) {
      ThrowNoThread("a thread of data.threads", error);
    }
  }
  // Rows are handed out in their order. So all rows before one that fails are in hands by then, and
  // the lowest of those that fail is found.
  std::atomic<int64_t> next{0};
  std::mutex found;
  int64_t failed = rows;
  std::exception_ptr error;
  const auto work = [&](int) {
    for (int64_t row; (row = next.fetch_add(1)) < rows;) {
      try {
        fill(row);
      } catch (...) {
        const std::scoped_lock lock(found);
        if (row < failed) {
          failed = row;
          error = std::current_exception();
        }
        next = rows;
      }
    }
  };
  pool_->Run(std::cref(work));
  if (error) std::rethrow_exception(error);
}

}  // namespace fsdp
