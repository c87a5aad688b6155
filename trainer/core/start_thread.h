// Starting threads, with an error that says which thread could not start and what limits threads.
#ifndef FSDP_TRAIN_TRAINER_CORE_START_THREAD_H_
#define FSDP_TRAIN_TRAINER_CORE_START_THREAD_H_

#include <cstdint>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

namespace fsdp {

// Throws MemoryError, "cannot start <what>: ...", where ulimit -v or -d leaves no room for another
// stack and what a thread begins with.
void RequireRoomForThread(const std::string& what);
// Throws as RequireRoomForThread(), otherwise DeviceError. `error`: what std::thread threw.
[[noreturn]] void ThrowNoThread(const std::string& what, const std::system_error& error);

// Starts a std::thread or std::jthread that does `work`. Throws as the two above.
template <typename Thread = std::thread, typename Work>
Thread StartThread(const std::string& what, Work&& work) {
  RequireRoomForThread(what);
  try {
    return Thread(std::forward<Work>(work));
  } catch (const std::system_error& error) {
    ThrowNoThread(what, error);
  }
}

// Addresses of a thread's stack, as ulimit counts them: touched or not.
int64_t StackBytes();

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_CORE_START_THREAD_H_
