// Tensors that lie on a disk while nobody uses them.
#ifndef FSDP_TRAIN_TRAINER_RUNTIME_SPILL_FILE_H_
#define FSDP_TRAIN_TRAINER_RUNTIME_SPILL_FILE_H_

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

// The disk that training state is spilled to: no checkpoint is at fault.
struct SpillError : CheckpointError {
  using CheckpointError::CheckpointError;
};

// A file without a name in a directory, whose space is taken when it is made. However the program
// ends, the directory is as it was; only where the file system has no files without a name
// (O_TMPFILE) and the program dies between two calls, an empty one stays.
//   Errors    What the disk refuses is SpillError (exit 5): the directory, what the file
//             holds, which of its bytes, the system's reason. The file and its other bytes stay
//             what they are; bytes of a failed Write() are anything. A range outside, or an offset
//             that is no multiple of kSpillAlignment (memory.h), is std::invalid_argument.
//   Padding   A range has the bytes up to the next multiple of kSpillAlignment: a Write() leaves
//             zeros there.
//   Checks    Host memory holds a hash of each block of kSpillAlignment bytes as it was written
//             last. A read throws SpillError before it returns where a block is another: one
//             that was changed, was lost on its way to the disk, or went elsewhere. The thread that
//             has read a piece checks it while others wait for the disk.
//   Transfers Direct (O_DIRECT) where the file system has that: the page cache keeps nothing, and
//             memory goes to the disk as it is. Memory that no disk would take, not at multiples of
//             512 bytes in most cases, is copied on the way, by way of 512 KiB for each thread.
//             Elsewhere Write() returns when the disk has it, or its errors would be lost.
//   Threads   Any calls at the same time, each with a pool of its own, if no bytes of one are
//             written by another. All block. Pieces of 512 KiB are dealt to the pool's threads,
//             which only wait: a disk wants some at a time, so 4 are right on any number of cores.
class SpillFile {
 public:
  // `holds`: for messages, "optimizer state". Bytes that were never written read as zero. `io` is
  // kept.
  SpillFile(const std::string& directory, const std::string& holds, int64_t bytes,
            FileIo& io = FileIo::System());
  SpillFile(const SpillFile&) = delete;
  SpillFile& operator=(const SpillFile&) = delete;

  // Host memory of the hashes of a file, beside it: 8 bytes a block.
  static constexpr int64_t HashBytes(int64_t bytes) {
    return (bytes + kSpillAlignment - 1) / kSpillAlignment * int64_t{sizeof(uint64_t)};
  }

  // Messages about bytes of the range name it: "m of h.0". Of an equal range, the last name counts;
  // others do not overlap. Before anything is read or written.
  void Name(int64_t offset, int64_t bytes, const std::string& name);

  bool direct() const { return memory_alignment_ > 0; }

  void Read(ThreadPool& pool, int64_t offset, std::span<std::byte> out) const;
  void Write(ThreadPool& pool, int64_t offset, std::span<const std::byte> bytes);

  // Bytes [offset, offset + bytes), which may begin anywhere, from the first to the last, in blocks
  // of at most 512 KiB, each in the place of the one before: for saves, where no tensor is to be in
  // memory as a whole. A block but for the last ends at a multiple of kSpillAlignment. On the
  // calling thread. Throws what `use` throws, too.
  void ReadInOrder(int64_t offset, int64_t bytes,
                   const std::function<void(std::span<const std::byte>)>& use) const;

  // To another place of the file; the two do not overlap. The copy has the hashes of its source.
  void Copy(ThreadPool& pool, int64_t from, int64_t to, int64_t bytes);

 private:
  class Bounce;  // Aligned memory of a piece, allocated when it is asked for.
  using Piece = std::function<void(int64_t begin, int64_t count, Bounce& bounce)>;
  // Bytes that are read or written: less than asked, or -1 and errno.
  using Transfer = std::function<ssize_t(int64_t done, size_t left)>;

  void CheckRange(const char* call, int64_t offset, int64_t bytes, int64_t alignment) const;
  static void InPieces(ThreadPool& pool, int64_t bytes, const Piece& piece);
  // How many of these bytes, from the first on, need no copy.
  int64_t WithoutCopy(const std::byte* memory, int64_t bytes) const;
  void Complete(const char* what, int64_t offset, int64_t bytes, const Transfer& transfer) const;
  // Whole blocks: checks what it has read; hashes what it is to write, or leaves that to others.
  void ReadInto(std::byte* out, int64_t offset, int64_t bytes) const;
  void WriteFrom(const std::byte* from, int64_t offset, int64_t bytes);
  void WriteHashed(const std::byte* from, int64_t offset, int64_t bytes);
  void Check(const std::byte* blocks, int64_t offset, int64_t bytes) const;
  void Sync(int64_t offset, int64_t bytes) const;  // Where writes do not see to it: see Transfers.
  [[noreturn]] void Fail(const char* what, int64_t offset, int64_t bytes,
                         const std::string& reason) const;

  const std::string name_;  // For messages.
  const int64_t bytes_;     // A multiple of kSpillAlignment.
  FileIo& io_;
  UniqueFd file_;
  int64_t memory_alignment_ = 0;  // Of direct transfers; 0: there are none.
  std::vector<uint64_t> hashes_;  // By block.
  struct Named {
    int64_t end = 0;
    std::string name;
  };
  std::map<int64_t, Named> names_;  // By offset.
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_RUNTIME_SPILL_FILE_H_
