// A disk that reports success and has done something else.
#ifndef FSDP_TRAIN_TESTS_TESTING_LYING_DISK_H_
#define FSDP_TRAIN_TESTS_TESTING_LYING_DISK_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <vector>

#include "trainer/core/file_io.h"

namespace fsdp {

enum class Lie {
  kNone,
  kReadsOther,      // A bit of what is read is turned; the disk has it right.
  kWritesOther,     // A bit of what is written is turned.
  kLosesWrite,      // The disk keeps what was there before.
  kWritesElsewhere  // To where the write before went.
};

// Lies in transfer number `nth` of the reads or writes that begin at `offset`; does all others as
// told.
class LyingDisk : public FileIo {
 public:
  explicit LyingDisk(Lie lie, int64_t offset = 0, int64_t nth = 0)
      : lie_(lie), offset_(offset), nth_(nth) {}

  // Reads and writes so far, by offset.
  std::map<int64_t, int64_t> reads() const { return Locked(reads_); }
  std::map<int64_t, int64_t> writes() const { return Locked(writes_); }
  // The byte that was turned, or where a write began; -1: no lie yet.
  int64_t lied_at() const { return Locked(lied_at_); }

  int64_t MakeDirect(int fd, int64_t alignment) override {
    const int64_t memory_alignment = FileIo::MakeDirect(fd, alignment);
    const std::lock_guard lock(mutex_);
    reads_.clear();  // It tries one.
    return memory_alignment;
  }

  ssize_t ReadAt(int fd, std::byte* to, size_t bytes, int64_t offset) override {
    const ssize_t n = FileIo::ReadAt(fd, to, bytes, offset);
    const std::lock_guard lock(mutex_);
    const bool here = offset == offset_ && reads_[offset] == nth_;
    ++reads_[offset];
    if (here && lie_ == Lie::kReadsOther && n > 0) lied_at_ = offset + Turn(to, n);
    return n;
  }

  ssize_t WriteAt(int fd, const std::byte* from, size_t bytes, int64_t offset) override {
    int64_t to = offset;
    {
      const std::lock_guard lock(mutex_);
      const bool here = offset == offset_ && writes_[offset] == nth_;
      ++writes_[offset];
      const int64_t before = last_write_;
      last_write_ = offset;
      if (here && lie_ > Lie::kReadsOther) {
        lied_at_ = offset;
        if (lie_ == Lie::kLosesWrite) return static_cast<ssize_t>(bytes);
        if (lie_ == Lie::kWritesOther) return WriteTurned(fd, from, bytes, offset);
        to = before;
      }
    }
    return FileIo::WriteAt(fd, from, bytes, to);
  }

 private:
  static constexpr int64_t kPage = 4096;

  template <typename T>
  T Locked(const T& member) const {
    const std::lock_guard lock(mutex_);
    return member;
  }

  ssize_t WriteTurned(int fd, const std::byte* from, size_t bytes, int64_t offset) {
    std::vector<std::byte> memory(bytes + kPage);
    std::byte* other = memory.data();
    while (reinterpret_cast<uintptr_t>(other) % kPage != 0) ++other;
    for (size_t i = 0; i < bytes; ++i) other[i] = from[i];
    lied_at_ = offset + Turn(other, static_cast<ssize_t>(bytes));
    return FileIo::WriteAt(fd, other, bytes, offset);
  }

  // Turns a bit of the first byte of the last page; returns that byte's place.
  static int64_t Turn(std::byte* bytes, ssize_t n) {
    const int64_t at = (n - 1) / kPage * kPage;
    bytes[at] ^= std::byte{0x10};
    return at;
  }

  const Lie lie_;
  const int64_t offset_, nth_;
  mutable std::mutex mutex_;  // Guards all below.
  std::map<int64_t, int64_t> reads_, writes_;
  int64_t last_write_ = 0, lied_at_ = -1;
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TESTS_TESTING_LYING_DISK_H_
