#include "trainer/runtime/spill/spill_file.h"

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

// The library's own XXH3 is compiled for SSE2 alone: half as fast.
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <memory>
#include <new>
#include <stdexcept>
#include <utility>
#include <vector>

#include "trainer/core/atomic_file.h"
#include "trainer/core/errors.h"
#include "trainer/core/units.h"

namespace fsdp {
namespace {

constexpr int64_t kPieceBytes = int64_t{1} << 19;

int64_t RoundUp(int64_t bytes) {
  return (bytes + kSpillAlignment - 1) / kSpillAlignment * kSpillAlignment;
}

// XXH3 (github.com/Cyan4973/xxHash): 20 GB/s of what is in a cache, XXH64 7.5 (AMD EPYC, AVX2).
uint64_t HashOf(const std::byte* block) { return XXH3_64bits(block, kSpillAlignment); }

// Negative, and errno, where there can be none.
UniqueFd OpenUnlinked(const std::string& directory, FileIo& io) {
  UniqueFd file(io.OpenUnnamed(directory));
  // File systems without unnamed files give EOPNOTSUPP, kernels EISDIR.
  if (file.open() || (errno != EOPNOTSUPP && errno != EISDIR)) return file;
  std::string path = directory + "/spill-XXXXXX" + kUnfinishedSuffix;
  file = UniqueFd(::mkostemps(path.data(), sizeof(kUnfinishedSuffix) - 1, O_CLOEXEC));
  if (file.open() && ::unlink(path.c_str()) != 0) file.Close();
  return file;
}

}  // namespace

class SpillFile::Bounce {
 public:
  std::byte* get() {
    if (memory_ == nullptr) {
      memory_.reset(
          static_cast<std::byte*>(::operator new (kPieceBytes, std::align_val_t{kSpillAlignment})));
    }
    return memory_.get();
  }

 private:
  struct Delete {
    void operator()(std::byte* memory) const {
      ::operator delete (memory, std::align_val_t{kSpillAlignment});
    }
  };
  std::unique_ptr<std::byte, Delete> memory_;
};

SpillFile::SpillFile(const std::string& directory, const std::string& holds, int64_t bytes,
                     FileIo& io)
    : name_(directory + " (" + holds + ", spilled)"), bytes_(RoundUp(bytes)), io_(io) {
  const auto refuse = [&](int error) {
    throw SpillError(directory + ": cannot take " + HumanBytes(bytes) + " of " + holds + ": " +
                     std::strerror(error));
  };
  file_ = OpenUnlinked(directory, io);
  if (!file_.open()) refuse(errno);
  if (bytes_ == 0) return;
  int error;
  do error = io.Reserve(file_.get(), bytes_);
  while (error == EINTR);
  if (error != 0) refuse(error);
  const std::vector<std::byte> zeros(kSpillAlignment);
  hashes_.assign(bytes_ / kSpillAlignment, HashOf(zeros.data()));
  memory_alignment_ = io.MakeDirect(file_.get(), kSpillAlignment);
}

void SpillFile::Name(int64_t offset, int64_t bytes, const std::string& name) {
  names_[offset] = {offset + bytes, name};
}

void SpillFile::CheckRange(const char* call, int64_t offset, int64_t bytes,
                           int64_t alignment) const {
  if (offset >= 0 && offset % alignment == 0 && bytes >= 0 && bytes <= bytes_ - offset) return;
  throw std::invalid_argument("[SpillFile::" + std::string(call) + "] " + std::to_string(bytes) +
                              " bytes at " + std::to_string(offset) + " of " +
                              std::to_string(bytes_));
}

void SpillFile::Fail(const char* what, int64_t offset, int64_t bytes,
                     const std::string& reason) const {
  std::string of;
  const auto next = names_.upper_bound(offset);
  if (next != names_.begin()) {
    const Named& range = std::prev(next)->second;
    if (offset < range.end) of = ", " + range.name + ",";
  }
  throw SpillError(name_ + ": bytes " + std::to_string(offset) + " to " +
                   std::to_string(offset + bytes) + of + " cannot be " + what + ": " + reason);
}

void SpillFile::InPieces(ThreadPool& pool, int64_t bytes, const Piece& piece) {
  std::atomic<int64_t> next = 0;
  std::atomic<bool> failed = false;
  const auto work = [&](int) {
    Bounce bounce;
    try {
      while (!failed.load(std::memory_order_relaxed)) {
        const int64_t begin = next.fetch_add(kPieceBytes, std::memory_order_relaxed);
        if (begin >= bytes) return;
        piece(begin, std::min(kPieceBytes, bytes - begin), bounce);
      }
    } catch (...) {
      failed.store(true, std::memory_order_relaxed);
      throw;
    }
  };
  if (bytes <= kPieceBytes) return work(0);
  pool.Run(work);
}

int64_t SpillFile::WithoutCopy(const std::byte* memory, int64_t bytes) const {
  if (direct() && reinterpret_cast<uintptr_t>(memory) % memory_alignment_ != 0) return 0;
  return bytes / kSpillAlignment * kSpillAlignment;
}

void SpillFile::Complete(const char* what, int64_t offset, int64_t bytes,
                         const Transfer& transfer) const {
  for (int64_t done = 0; done < bytes;) {
    int64_t n = transfer(done, static_cast<size_t>(bytes - done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) Fail(what, offset + done, bytes - done, std::strerror(errno));
    if (direct()) n = n / kSpillAlignment * kSpillAlignment;  // Where the next one may begin.
    if (n == 0) Fail(what, offset + done, bytes - done, "the disk stops there");
    done += n;
  }
}

void SpillFile::ReadInto(std::byte* out, int64_t offset, int64_t bytes) const {
  Complete("read", offset, bytes, [&](int64_t done, size_t left) {
    return io_.ReadAt(file_.get(), out + done, left, offset + done);
  });
  Check(out, offset, bytes);
}

void SpillFile::Check(const std::byte* blocks, int64_t offset, int64_t bytes) const {
  const auto wrong = [&](int64_t at) {
    return at < bytes && HashOf(blocks + at) != hashes_[(offset + at) / kSpillAlignment];
  };
  int64_t begin = 0;
  while (begin < bytes && !wrong(begin)) begin += kSpillAlignment;
  if (begin >= bytes) return;
  int64_t end = begin;
  while (wrong(end)) end += kSpillAlignment;
  Fail("read", offset + begin, end - begin,
       "the disk does not return what was written there; it has changed or lost it");
}

void SpillFile::WriteFrom(const std::byte* from, int64_t offset, int64_t bytes) {
  for (int64_t at = 0; at < bytes; at += kSpillAlignment) {
    hashes_[(offset + at) / kSpillAlignment] = HashOf(from + at);
  }
  WriteHashed(from, offset, bytes);
}

void SpillFile::WriteHashed(const std::byte* from, int64_t offset, int64_t bytes) {
  Complete("written", offset, bytes, [&](int64_t done, size_t left) {
    return io_.WriteAt(file_.get(), from + done, left, offset + done);
  });
}

void SpillFile::Read(ThreadPool& pool, int64_t offset, std::span<std::byte> out) const {
  CheckRange("Read", offset, std::ssize(out), kSpillAlignment);
  InPieces(pool, std::ssize(out), [&](int64_t begin, int64_t count, Bounce& bounce) {
    std::byte* const to = out.data() + begin;
    const int64_t whole = WithoutCopy(to, count), rest = count - whole;
    ReadInto(to, offset + begin, whole);
    if (rest == 0) return;
    ReadInto(bounce.get(), offset + begin + whole, RoundUp(rest));
    std::memcpy(to + whole, bounce.get(), rest);
  });
}

void SpillFile::Write(ThreadPool& pool, int64_t offset, std::span<const std::byte> bytes) {
  CheckRange("Write", offset, std::ssize(bytes), kSpillAlignment);
  InPieces(pool, std::ssize(bytes), [&](int64_t begin, int64_t count, Bounce& bounce) {
    const std::byte* const from = bytes.data() + begin;
    const int64_t whole = WithoutCopy(from, count), rest = count - whole;
    WriteFrom(from, offset + begin, whole);
    if (rest == 0) return;
    std::memcpy(bounce.get(), from + whole, rest);
    std::memset(bounce.get() + rest, 0, RoundUp(rest) - rest);
    WriteFrom(bounce.get(), offset + begin + whole, RoundUp(rest));
  });
  Sync(offset, std::ssize(bytes));
}

void SpillFile::Sync(int64_t offset, int64_t bytes) const {
  if (direct()) return;
  while (io_.SyncData(file_.get()) != 0) {
    if (errno != EINTR) Fail("written", offset, bytes, std::strerror(errno));
  }
}

void SpillFile::ReadInOrder(int64_t offset, int64_t bytes,
                            const std::function<void(std::span<const std::byte>)>& use) const {
  CheckRange("ReadInOrder", offset, bytes, /*alignment=*/1);
  Bounce block;
  for (int64_t done = 0, count; done < bytes; done += count) {
    const int64_t skip = (offset + done) % kSpillAlignment;  // 0 but for the first block.
    count = std::min(kPieceBytes - skip, bytes - done);
    ReadInto(block.get(), offset + done - skip, RoundUp(skip + count));
    use({block.get() + skip, static_cast<size_t>(count)});
  }
}

// Not by copy_file_range: from a direct file it reads 64 KiB at a time, which took twice as long.
void SpillFile::Copy(ThreadPool& pool, int64_t from, int64_t to, int64_t bytes) {
  CheckRange("Copy", from, bytes, kSpillAlignment);
  CheckRange("Copy", to, bytes, kSpillAlignment);
  InPieces(pool, bytes, [&](int64_t begin, int64_t count, Bounce& bounce) {
    ReadInto(bounce.get(), from + begin, RoundUp(count));
    // Not those of the copy: what changes between the two is found by whoever reads it.
    std::copy_n(hashes_.begin() + (from + begin) / kSpillAlignment,
                RoundUp(count) / kSpillAlignment, hashes_.begin() + (to + begin) / kSpillAlignment);
    WriteHashed(bounce.get(), to + begin, RoundUp(count));
  });
  Sync(to, bytes);
}

}  // namespace fsdp
