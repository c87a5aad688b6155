// Members of a store as threads of a test.
#ifndef FSDP_TRAIN_TESTS_TRAINER_COMM_ON_THREADS_H_
#define FSDP_TRAIN_TESTS_TRAINER_COMM_ON_THREADS_H_

#include <exception>
#include <functional>
#include <string>
#include <thread>
#include <vector>

namespace fsdp::testing {

// Runs body(i) on `size` threads; returns each one's exception, "" for none.
inline std::vector<std::string> OnThreads(int size, const std::function<void(int)>& body) {
  std::vector<std::string> errors(size);
  std::vector<std::thread> threads;
  for (int r = 0; r < size; ++r) {
    threads.emplace_back([&, r] {
      try {
        body(r);
      } catch (const std::exception& error) {
        errors[r] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return errors;
}

}  // namespace fsdp::testing

#endif  // FSDP_TRAIN_TESTS_TRAINER_COMM_ON_THREADS_H_
