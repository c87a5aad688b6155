// A disk as a place of memory: each byte of a spill file has an address. Spilled tensors are
// therefore Views like all others: a plan lays them out, the stream checker orders their uses.
// Tests: tests/trainer/runtime/spill_memory_test.cc
#ifndef FSDP_TRAIN_TRAINER_RUNTIME_SPILL_SPILL_MEMORY_H_
#define FSDP_TRAIN_TRAINER_RUNTIME_SPILL_SPILL_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>

#include "trainer/core/file_io.h"
#include "trainer/core/view.h"
#include "trainer/runtime/spill/spill_file.h"
#include "trainer/runtime/stream.h"
#include "trainer/runtime/thread_pool.h"

namespace fsdp {

// Nobody may follow such an address: the processor ends a program that does. Tensors begin at
// multiples of kSpillAlignment, and the bytes up to the next multiple are theirs, too. Any threads
// may call, if no call writes bytes of another. Calls of one kind run one after the other, calls of
// different kinds side by side. All block. They throw as SpillFile does, also where the disk
// returns other bytes than were written: no caller gets such bytes.
class SpillMemory {
 public:
  static constexpr int kThreads = 9;  // Threads that it starts; they only wait for the disk.

  // Takes space in the directory: see SpillFile. Throws MemoryError where there are no addresses.
  SpillMemory(const std::string& directory, const std::string& holds, int64_t bytes,
              FileIo& io = FileIo::System());
  ~SpillMemory();
  SpillMemory(const SpillMemory&) = delete;
  SpillMemory& operator=(const SpillMemory&) = delete;

  // Host memory that a file of so many bytes takes.
  static constexpr int64_t HostBytes(int64_t bytes) { return SpillFile::HashBytes(bytes); }

  std::byte* data() const { return addresses_; }
  int64_t bytes() const { return bytes_; }
  bool Holds(ConstView view) const {
    return view.data >= addresses_ && view.data < addresses_ + bytes_;
  }

  // SpillFile::Name().
  void Name(ConstView spilled, const std::string& name);

  // Both views have the same number of bytes. `in_memory` is host memory.
  void Read(ConstView spilled, View in_memory);
  void Write(ConstView in_memory, View spilled);
  void Copy(ConstView spilled, View other_spilled);
  // For saves: SpillFile::ReadInOrder(). May begin at any element; blocks have whole elements.
  void ReadInOrder(ConstView spilled, const std::function<void(ConstView)>& use) const;

 private:
  int64_t OffsetOf(ConstView view) const;

  const int64_t bytes_;
  std::byte* addresses_ = nullptr;
  SpillFile file_;
  // Read(), Write() and Copy() have one each.
  struct Lane {
    std::mutex mutex;
    ThreadPool pool{kThreads / 3 + 1, /*spin=*/false};
  };
  Lane reads_, writes_, copies_;
};

// Enqueue the same calls on a stream that works for the host. `spill` is null on a simulated
// device.
void ReadSpilled(Stream& stream, SpillMemory* spill, ConstView spilled, View in_memory);
void WriteSpilled(Stream& stream, SpillMemory* spill, ConstView in_memory, View spilled);
void CopySpilled(Stream& stream, SpillMemory* spill, ConstView spilled, View other_spilled);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_RUNTIME_SPILL_SPILL_MEMORY_H_
