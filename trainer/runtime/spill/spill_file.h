// A file for tensors that lie on a disk while nobody uses them.
// Tests: tests/trainer/runtime/spill_file_test.cc
#ifndef FSDP_TRAIN_TRAINER_RUNTIME_SPILL_SPILL_FILE_H_
#define FSDP_TRAIN_TRAINER_RUNTIME_SPILL_SPILL_FILE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "trainer/core/errors.h"
#include "trainer/core/file_io.h"
#include "trainer/core/unique_fd.h"
#include "trainer/runtime/memory.h"
#include "trainer/runtime/thread_pool.h"

namespace fsdp {

// The disk of spilled training state fails; no checkpoint is at fault.
struct SpillError : CheckpointError {
  using CheckpointError::CheckpointError;
};

// A file without a name in a directory. Its space is taken when it is made. However the program
// ends, the directory is as it was before. One exception: an empty file stays where the file system
// has no files without a name (O_TMPFILE) and the program dies between two calls.
//   Errors    A failure of the disk is SpillError (exit 5) with the directory, the file's contents,
//             the bytes concerned and the system's reason. The file and its other bytes stay
//             unchanged; the bytes of a failed Write() are undefined. A range outside the file, or
//             an offset that is no multiple of kSpillAlignment (memory.h), is
//             std::invalid_argument.
//   Padding   A range owns the bytes up to the next multiple of kSpillAlignment: a Write() leaves
//             zeros there.
//   Checks    Host memory holds a hash of each block of kSpillAlignment bytes as it was last
//             written. A read throws SpillError before it returns if a block differs: it was
//             changed, was lost on its way to the disk, or went elsewhere. The thread that has read
//             a piece checks it while others wait for the disk.
//   Transfers Direct (O_DIRECT) where the file system allows it: the page cache keeps nothing, and
//             memory goes to the disk without a copy. Memory that no disk would take, mostly
//             because it is not at a multiple of 512 bytes, is copied through 512 KiB a thread.
//             On other file systems Write() returns when the disk has the bytes, or its errors
//             would be lost.
//   Threads   Calls may run at the same time, each with a pool of its own, if no call writes bytes
//             of another. All block. Pieces of 512 KiB are dealt to the pool's threads, which only
//             wait: a disk wants some at a time, so 4 threads are right on any number of cores.
class SpillFile {
 public:
  // `holds`: for messages, "optimizer state". Bytes that were never written read as zero. Keeps a
  // reference to `io`.
  SpillFile(const std::string& directory, const std::string& holds, int64_t bytes,
            FileIo& io = FileIo::System());
  SpillFile(const SpillFile&) = delete;
  SpillFile& operator=(const SpillFile&) = delete;

  // Host memory for the hashes of a file of so many bytes: 8 bytes a block.
  static constexpr int64_t HashBytes(int64_t bytes) {
    return (bytes + kSpillAlignment - 1) / kSpillAlignment * int64_t{sizeof(uint64_t)};
  }

  // Names a range for messages about its bytes: "m of h.0". The last name of an equal range counts;
  // other ranges must not overlap. Call it before anything is read or written.
  void Name(int64_t offset, int64_t bytes, const std::string& name);

  bool direct() const { return memory_alignment_ > 0; }

  void Read(ThreadPool& pool, int64_t offset, std::span<std::byte> out) const;
  void Write(ThreadPool& pool, int64_t offset, std::span<const std::byte> bytes);

  // Reads bytes [offset, offset + bytes) in order, in blocks of at most 512 KiB, each in the memory
  // of the one before: for saves, so that no tensor is in memory as a whole. `offset` may be
  // anything. Every block but the last ends at a multiple of kSpillAlignment. Reads and calls `use`
  // on the calling thread. Also throws what `use` throws.
  void ReadInOrder(int64_t offset, int64_t bytes,
                   const std::function<void(std::span<const std::byte>)>& use) const;

  // Copies to another place of the file; the two ranges do not overlap. The copy has the hashes of
  // its source.
  void Copy(ThreadPool& pool, int64_t from, int64_t to, int64_t bytes);

 private:
  class Bounce;  // Aligned memory for a piece, allocated on demand.
  using Piece = std::function<void(int64_t begin, int64_t count, Bounce& bounce)>;
  // Returns the bytes read or written, perhaps fewer than `left`, or -1 and errno.
  using Transfer = std::function<ssize_t(int64_t done, size_t left)>;

  void CheckRange(const char* call, int64_t offset, int64_t bytes, int64_t alignment) const;
  static void InPieces(ThreadPool& pool, int64_t bytes, const Piece& piece);
  // The number of bytes, from the first on, that need no copy.
  int64_t WithoutCopy(const std::byte* memory, int64_t bytes) const;
  void Complete(const char* what, int64_t offset, int64_t bytes, const Transfer& transfer) const;
  // For whole blocks. ReadInto() checks the hashes, WriteFrom() makes them, WriteHashed() leaves
  // them to the caller.
  void ReadInto(std::byte* out, int64_t offset, int64_t bytes) const;
  void WriteFrom(const std::byte* from, int64_t offset, int64_t bytes);
  void WriteHashed(const std::byte* from, int64_t offset, int64_t bytes);
  void Check(const std::byte* blocks, int64_t offset, int64_t bytes) const;
  void Sync(int64_t offset, int64_t bytes) const;  // Only where writes are not direct: see
                                                   // Transfers.
  [[noreturn]] void Fail(const char* what, int64_t offset, int64_t bytes,
                         const std::string& reason) const;

  const std::string name_;  // For messages.
  const int64_t bytes_;     // A multiple of kSpillAlignment.
  FileIo& io_;
  UniqueFd file_;
  int64_t memory_alignment_ = 0;  // For direct transfers; 0: there are none.
  std::vector<uint64_t> hashes_;  // By block.
  struct Named {
    int64_t end = 0;
    std::string name;
  };
  std::map<int64_t, Named> names_;  // By offset.
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_RUNTIME_SPILL_SPILL_FILE_H_
