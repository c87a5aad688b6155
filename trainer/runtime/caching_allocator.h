// A caching allocator for a device's memory, as in the paper's runtime (PyTorch's
// CUDACachingAllocator): memory is taken at the time of use, and freed blocks are kept to be given
// out again. Other runs plan their memory (fsdp/memory_plan.h).
//
//   Rounding  Sizes to 512 bytes. Up to 1 MiB a block is cut from a segment of 2 MiB (the small
//             pool), up to 10 MiB from one of 20 MiB, above from one rounded to 2 MiB (the large
//             pool). The smallest free block that fits is taken, of these the one at the lowest
//             address; the rest is split off where it has 512 bytes (small) or more than 1 MiB
//             (large). A free block becomes one with its free neighbours.
//   Streams   A block belongs to the stream that it was allocated for, and so does its segment: of
//             that stream it may be used again at once. A block that others have used as well
//             (Use()) is not given out before events on them have passed. The events are recorded
//             when the block is freed; each allocation looks at them without waiting.
//   Limit     Without a free block or a new segment, an allocation makes a retry: the host waits
//             for all those events and all streams, unused segments go back to the device, and the
//             call is tried once more.
#ifndef FSDP_TRAIN_TRAINER_RUNTIME_CACHING_ALLOCATOR_H_
#define FSDP_TRAIN_TRAINER_RUNTIME_CACHING_ALLOCATOR_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <limits>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "trainer/runtime/device.h"

namespace fsdp {

// Bytes. allocated <= active <= reserved, at every moment.
struct CachingStatistics {
  struct Bytes {
    int64_t now = 0, peak = 0;
    bool operator==(const Bytes&) const = default;
  };
  Bytes allocated;      // Given out, in rounded sizes.
  Bytes active;         // allocated, and freed blocks that other streams may still use.
  Bytes reserved;       // Taken from the device.
  int64_t retries = 0;  // Calls that were tried again.

  // Adds a later stretch of time: keeps the larger peaks and takes all else from `later`.
  void GoOnWith(const CachingStatistics& later);
  bool operator==(const CachingStatistics&) const = default;
};

// Not thread-safe: for the one thread that enqueues.
class CachingAllocator {
 public:
  static constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();

  // `limit`: bytes to take from the device, at most.
  explicit CachingAllocator(Device& device, int64_t limit = kNoLimit);
  CachingAllocator(const CachingAllocator&) = delete;
  CachingAllocator& operator=(const CachingAllocator&) = delete;

  // Gives stream `number`, counted from 0 by the caller, a Stream. A number must be attached before
  // Use() names it, and before its memory can go back to the device. null: the stream ends.
  void Attach(int number, Stream* stream);

  // Aligned to 512 bytes, contents undefined. bytes > 0. Throws MemoryError after a retry, and the
  // error of a failed stream that it waits for.
  std::byte* Allocate(int64_t bytes, int stream);
  // The work that `stream` has enqueued so far may use the block, though the block belongs to
  // another stream.
  void Use(std::byte* data, int stream);
  void Free(std::byte* data) noexcept;
  // Counts so many bytes of the same memory, taken by others, as allocated and against the limit
  // from here on. Throws MemoryError after a retry; the bytes then do not count.
  void Include(int64_t bytes);

  const CachingStatistics& statistics() const { return statistics_; }
  void ResetPeaks();  // To the present values.

 private:
  struct Block {
    int64_t bytes = 0;
    uintptr_t segment = 0;  // Address.
    bool free = false;
    std::set<int> users = {};  // Other streams than its own.
    int awaited = 0;           // Events that have not passed.
  };
  struct Segment {
    Buffer buffer;
    int stream = 0;
    bool small = false;
  };
  using Pool = std::set<std::pair<int64_t, uintptr_t>>;  // Free blocks: bytes and address.
  using Blocks = std::map<uintptr_t, Block>;             // By address.
  struct Passing {
    EventPtr event;
    uintptr_t block;
  };

  Pool& PoolOf(const Segment& segment) { return pools_[{segment.stream, segment.small}]; }
  // Both return false where there is none.
  bool TakeFree(int64_t bytes, int stream, uintptr_t& address);
  bool TakeNew(int64_t bytes, int stream, uintptr_t& address);
  void Split(Blocks::iterator block, int64_t bytes);
  void GiveBack(Blocks::iterator block);  // To its pool.
  void Passed(const Passing& passing);
  void FreeWhatHasPassed();
  void Release();  // Waits, and returns unused segments to the device.
  [[noreturn]] void ThrowMisfit(int64_t bytes, const char* of) const;

  Device& device_;
  const int64_t limit_;
  std::vector<Stream*> streams_;
  std::map<uintptr_t, Segment> segments_;
  Blocks blocks_;
  std::map<std::pair<int, bool>, Pool> pools_;  // By stream, and whether small.
  std::vector<std::deque<Passing>> passing_;    // By stream, in its order.
  CachingStatistics statistics_;
  int64_t included_ = 0;  // Part of all three sums of statistics_.
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_RUNTIME_CACHING_ALLOCATOR_H_
