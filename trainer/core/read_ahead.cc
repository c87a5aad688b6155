#include "trainer/core/read_ahead.h"

#include <algorithm>
#include <future>

namespace fsdp {

void ReadAhead(int64_t size, int64_t block, const BlockStep& read, const BlockStep& use) {
  const auto count = [&](int64_t begin) { return std::min(block, size - begin); };
  if (size > 0) read(0, 0, count(0));
  int buffer = 0;
  for (int64_t begin = 0; begin < size; begin += block, buffer = 1 - buffer) {
    std::future<void> ahead;  // Waits where it ends.
    if (const int64_t next = begin + block; next < size) {
      ahead = std::async(std::launch::async, std::cref(read), 1 - buffer, next, count(next));
    }
    use(buffer, begin, count(begin));
    if (ahead.valid()) ahead.get();
  }
}

}  // namespace fsdp
