// What takes long to make and is kept in a directory of the host, for the ranks beside it and for
// later runs: made once, by one process.
// Tests: tests/trainer/data/tokenize_test.cc
#ifndef FSDP_TRAIN_TRAINER_DATA_KEEP_ONCE_H_
#define FSDP_TRAIN_TRAINER_DATA_KEEP_ONCE_H_

#include <cstdint>
#include <functional>
#include <string>

#include "trainer/core/errors.h"
#include "trainer/data/whole_output.h"

namespace fsdp {

struct KeepOptions {
  std::function<void(const std::string&)> say;  // A line now and then; may be null.
  std::function<bool()> stop;                   // Ends the waiting; may be null.
  double silence_s = 0;  // How long who makes it may do nothing; 0: for ever.
};

// The directory in `cache` of a thing with this key.
std::string KeptDirectory(const std::string& cache, uint64_t key);

// Calls make(lock) unless is_there(), while no other process does: one that comes later waits, and
// makes it itself where the other has died. make() calls lock.Touch() now and then, to say that it
// is busy. `what`: "a.txt", for messages. Throws Error(kStopped), DataError, and CommError where
// who makes it has done nothing for silence_s.
void KeepOnce(const std::string& directory, const std::string& what, const KeepOptions& options,
              const std::function<bool()>& is_there, const std::function<void(FileLock&)>& make);

// What read() returns; the DataError of one that finds damage says what to delete.
template <typename Read>
auto ReadKept(const std::string& directory, const std::string& what, const Read& read) {
  try {
    return read();
  } catch (const DataError& error) {
    throw DataError("data: the tokens of " + what + " that are kept in " + directory +
                    " are damaged: delete that directory, and they are made again. What is "
                    "wrong: " +
                    error.what());
  }
}

// "tokenising a.txt: 12.3 %, 4.5 M tokens" every ten seconds.
class TokeniseReport {
 public:
  // `say` may be null.
  TokeniseReport(std::string what, std::function<void(const std::string&)> say);
  void operator()(double share, int64_t tokens);

 private:
  std::string what_;
  std::function<void(const std::string&)> say_;
  double last_s_;
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_DATA_KEEP_ONCE_H_
