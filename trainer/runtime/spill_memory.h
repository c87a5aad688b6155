// A disk as a place of memory: each byte of a spill file has an address. So tensors that are
// spilled are Views like all others: a plan lays them out, the stream checker orders their uses.
#ifndef FSDP_TRAIN_TRAINER_RUNTIME_SPILL_MEMORY_H_
#define FSDP_TRAIN_TRAINER_RUNTIME_SPILL_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>

#include "trainer/core/file_io.h"
#include "trainer/core/view.h"
#include "trainer/runtime/spill_file.h"
#include "trainer/runtime/stream.h"
#include "trainer/runtime/thread_pool.h"

namespace fsdp {

// Nobody may touch what is at the addresses: who follows one is ended by the processor. Tensors
// begin at multiples of kSpillAlignment, and the bytes up to the next multiple are theirs, too.
// From any threads, if no bytes of one call are written by another: calls of one kind are one after
// the other, of different kinds side by side. All block; what they throw is SpillFile's, also where
// the disk returns other bytes than were written: nobody gets these.
class SpillMemory {
 public:
  static constexpr int kThreads = 9;  // That it starts, which only wait for the disk.

  // Takes space in the directory: see SpillFile. Throws MemoryError where there are no addresses.
  SpillMemory(const std::string& directory, const std::string& holds, int64_t bytes,
              FileIo& io = FileIo::System());
  ~SpillMemory();
  SpillMemory(const SpillMemory&) = delete;
  SpillMemory& operator=(const SpillMemory&) = delete;

  // Host memory that so many bytes on the disk take.
  static constexpr int64_t HostBytes(int64_t bytes) { return SpillFile::HashBytes(bytes); }

  std::byte* data() const { return addresses_; }
  int64_t bytes() const { return bytes_; }
  bool Holds(ConstView view) const {
    return view.data >= addresses_ && view.data < addresses_ + bytes_;
  }

  // SpillFile::Name().
  void Name(ConstView spilled, const std::string& name);

  // As many bytes of one as of the other; `in_memory` is the host's.
  void Read(ConstView spilled, View in_memory);
  void Write(ConstView in_memory, View spilled);
  void Copy(ConstView spilled, View other_spilled);
  // For saves: SpillFile::ReadInOrder(), so it may begin at any element; blocks of whole ones.
  void ReadInOrder(ConstView spilled, const std::function<void(ConstView)>& use) const;

 private:
  int64_t OffsetOf(ConstView view) const;

  const int64_t bytes_;
  std::byte* addresses_ = nullptr;
  SpillFile file_;
  // Read(), Write(), Copy(): each its own.
  struct Lane {
    std::mutex mutex;
    ThreadPool pool{kThreads / 3 + 1, /*spin=*/false};
  };
  Lane reads_, writes_, copies_;
};

// The same, enqueued on a stream that works for the host. `spill` is null on a simulated device.
void ReadSpilled(Stream& stream, SpillMemory* spill, ConstView spilled, View in_memory);
void WriteSpilled(Stream& stream, SpillMemory* spill, ConstView in_memory, View spilled);
void CopySpilled(Stream& stream, SpillMemory* spill, ConstView spilled, View other_spilled);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_RUNTIME_SPILL_MEMORY_H_
