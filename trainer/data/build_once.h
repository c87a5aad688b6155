// Keeps results that take long to make in a directory of the host, for its ranks and for later
// runs. One process makes each of them, once.
// Tests: tests/trainer/data/text/tokenize_test.cc
#ifndef FSDP_TRAIN_TRAINER_DATA_BUILD_ONCE_H_
#define FSDP_TRAIN_TRAINER_DATA_BUILD_ONCE_H_

#include <cstdint>
#include <functional>
#include <string>

#include "trainer/core/errors.h"
#include "trainer/data/atomic_output.h"

namespace fsdp {

struct BuildOnceOptions {
  std::function<void(const std::string&)> say;  // A line now and then; may be null.
  std::function<bool()> stop;                   // Ends the waiting; may be null.
  double silence_s = 0;                         // How long the maker may do nothing; 0: for ever.
};

// The directory in `cache` of a thing with this key.
std::string BuiltDirectory(const std::string& cache, uint64_t key);

// Calls make(lock) unless is_there(), in one process at a time. A process that comes later waits,
// and makes the result itself if the first has died. make() must call lock.Touch() now and then, to
// show that it is busy. `what`: "a.txt", for messages. Throws Error(kStopped), DataError, and
// CommError where the maker has done nothing for silence_s.
void BuildOnce(const std::string& directory, const std::string& what,
               const BuildOnceOptions& options, const std::function<bool()>& is_there,
               const std::function<void(FileLock&)>& make);

// Returns read()'s result. If read() finds damage, its DataError also says what to delete.
template <typename Read>
auto ReadBuilt(const std::string& directory, const std::string& what, const Read& read) {
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

#endif  // FSDP_TRAIN_TRAINER_DATA_BUILD_ONCE_H_
