// cp.async of one thread: copies in groups. Each copy runs as late as its group may.
#ifndef FSDP_TRAIN_TESTS_EMULATED_ASYNC_COPIES_H_
#define FSDP_TRAIN_TESTS_EMULATED_ASYNC_COPIES_H_

#include <cstddef>
#include <cstring>
#include <vector>

namespace fsdp {

class AsyncCopies {
 public:
  static constexpr int kBytes = 16;

  // Copies the first `bytes` and clears the rest. Until then `to` holds the bits of NaN.
  void Issue(void* to, const void* from, int bytes) {
    std::memset(to, 0xff, kBytes);
    copies_.push_back({to, from, bytes});
  }
  void Commit() { ends_.push_back(copies_.size()); }
  // Runs the copies of all groups but the newest n.
  void Wait(size_t n) {
    if (ends_.size() <= n) return;
    const size_t groups = ends_.size() - n, done = ends_[groups - 1];
    Do(done);
    ends_.erase(ends_.begin(), ends_.begin() + groups);
    for (size_t& end : ends_) end -= done;
  }
  void Finish() {
    Do(copies_.size());
    ends_.clear();
  }
  void Drop() {
    copies_.clear();
    ends_.clear();
  }

 private:
  struct Copy {
    void* to;
    const void* from;
    int bytes;
  };

  void Do(size_t n) {
    for (size_t i = 0; i < n; ++i) {
      const Copy& copy = copies_[i];
      std::memcpy(copy.to, copy.from, copy.bytes);
      std::memset(static_cast<std::byte*>(copy.to) + copy.bytes, 0, kBytes - copy.bytes);
    }
    copies_.erase(copies_.begin(), copies_.begin() + n);
  }

  std::vector<Copy> copies_;  // Not run yet, in the order of their issue.
  std::vector<size_t> ends_;  // The end of each group in copies_.
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TESTS_EMULATED_ASYNC_COPIES_H_
