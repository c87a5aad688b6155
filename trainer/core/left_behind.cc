#include "trainer/core/left_behind.h"

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <future>
#include <thread>
#include <utility>

namespace fsdp {
namespace {

std::atomic<bool> any{false};

}  // namespace

bool AnyLeftBehind() { return any; }
void CountLeftBehind() { any = true; }

void EndWithin(double patience_s, std::function<void()> end) {
  std::packaged_task<void()> task(std::move(end));
  const std::future<void> done = task.get_future();
  std::thread thread(std::move(task));
  if (done.wait_for(std::chrono::duration<double>(patience_s)) == std::future_status::ready) {
    thread.join();
  } else {
    CountLeftBehind();
    thread.detach();
  }
}

int ExitBeside(int code) {
  if (!AnyLeftBehind()) return code;
  (void)std::fflush(nullptr);
  _exit(code);
}

}  // namespace fsdp
