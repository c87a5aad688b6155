#include "trainer/runtime/caching_allocator.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>

#include "trainer/core/check.h"
#include "trainer/core/errors.h"
#include "trainer/core/round_up.h"
#include "trainer/core/units.h"
#include "trainer/runtime/host_clock.h"

namespace fsdp {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;
constexpr int64_t kBlock = 512;   // Sizes are multiples of it.
constexpr int64_t kSmall = kMiB;  // The largest block of the small pool.
constexpr int64_t kSmallSegment = 2 * kMiB;
constexpr int64_t kLargeSegment = 20 * kMiB;
constexpr int64_t kOwnSegment = 10 * kMiB;  // From here on a block has a segment of its size.
constexpr int64_t kLargeRounding = 2 * kMiB;

int64_t SegmentBytes(int64_t bytes) {
  if (bytes <= kSmall) return kSmallSegment;
  return bytes < kOwnSegment ? kLargeSegment : RoundUp(bytes, kLargeRounding);
}

void Add(CachingStatistics::Bytes& bytes, int64_t more) {
  bytes.now += more;
  bytes.peak = std::max(bytes.peak, bytes.now);
}

}  // namespace

void CachingStatistics::GoOnWith(const CachingStatistics& later) {
  const CachingStatistics before = std::exchange(*this, later);
  for (const auto bytes :
       {&CachingStatistics::allocated, &CachingStatistics::active, &CachingStatistics::reserved}) {
    (this->*bytes).peak = std::max((this->*bytes).peak, (before.*bytes).peak);
  }
}

CachingAllocator::CachingAllocator(Device& device, int64_t limit)
    : device_(device), limit_(limit) {}

void CachingAllocator::Attach(int number, Stream* stream) {
  FSDP_CHECK_LE(0, number);
  if (streams_.size() <= static_cast<size_t>(number)) {
    streams_.resize(number + 1);
    passing_.resize(number + 1);
  }
  streams_[number] = stream;
  if (stream == nullptr) passing_[number].clear();  // Blocks that await it stay unused.
}

std::byte* CachingAllocator::Allocate(int64_t bytes, int stream) {
  FSDP_CHECK_LT(0, bytes);
  if (bytes > int64_t{1} << 60) throw MemoryError("does not fit: a block of more than 1 EiB");
  if (auto* const clock = dynamic_cast<HostClock*>(&device_)) clock->CountBlock();
  FreeWhatHasPassed();
  const int64_t rounded = RoundUp(bytes, kBlock);
  uintptr_t address = 0;
  if (!TakeFree(rounded, stream, address) && !TakeNew(rounded, stream, address)) {
    ++statistics_.retries;
    Release();
    if (!TakeFree(rounded, stream, address) && !TakeNew(rounded, stream, address)) {
      ThrowMisfit(rounded, "device");
    }
  }
  const auto block = blocks_.find(address);
  Split(block, rounded);
  Add(statistics_.allocated, block->second.bytes);
  Add(statistics_.active, block->second.bytes);
  return reinterpret_cast<std::byte*>(address);
}

void CachingAllocator::Use(std::byte* data, int stream) {
  const auto block = blocks_.find(reinterpret_cast<uintptr_t>(data));
  FSDP_CHECK(block != blocks_.end() && !block->second.free && block->second.awaited == 0);
  if (segments_.at(block->second.segment).stream != stream) block->second.users.insert(stream);
}

void CachingAllocator::Free(std::byte* data) noexcept {
  const auto block = blocks_.find(reinterpret_cast<uintptr_t>(data));
  FSDP_CHECK(block != blocks_.end() && !block->second.free && block->second.awaited == 0);
  Add(statistics_.allocated, -block->second.bytes);
  for (const int user : block->second.users) {
    passing_[user].push_back({streams_[user]->Record(), block->first});
    ++block->second.awaited;
  }
  block->second.users.clear();
  if (block->second.awaited == 0) GiveBack(block);
}

void CachingAllocator::Include(int64_t bytes) {
  if (bytes > limit_ - statistics_.reserved.now) {
    ++statistics_.retries;
    Release();
    if (bytes > limit_ - statistics_.reserved.now) ThrowMisfit(bytes, "host");
  }
  included_ += bytes;
  for (CachingStatistics::Bytes* all :
       {&statistics_.allocated, &statistics_.active, &statistics_.reserved}) {
    Add(*all, bytes);
  }
}

void CachingAllocator::ThrowMisfit(int64_t bytes, const char* of) const {
  std::string message = "does not fit: " + HumanBytes(bytes) + " of " + of +
                        " memory wanted, and " + HumanBytes(statistics_.reserved.now) +
                        " are reserved, " + HumanBytes(statistics_.allocated.now) +
                        " of them in use";
  if (included_ > 0) message += ", " + HumanBytes(included_) + " as host memory";
  if (limit_ != kNoLimit) message += "; run.memory_limit is " + HumanBytes(limit_);
  throw MemoryError(message);
}

void CachingAllocator::ResetPeaks() {
  for (CachingStatistics::Bytes* bytes :
       {&statistics_.allocated, &statistics_.active, &statistics_.reserved}) {
    bytes->peak = bytes->now;
  }
}

bool CachingAllocator::TakeFree(int64_t bytes, int stream, uintptr_t& address) {
  Pool& pool = pools_[{stream, bytes <= kSmall}];
  const auto best = pool.lower_bound({bytes, 0});
  if (best == pool.end()) return false;
  address = best->second;
  pool.erase(best);
  blocks_.at(address).free = false;
  return true;
}

bool CachingAllocator::TakeNew(int64_t bytes, int stream, uintptr_t& address) {
  const int64_t size = SegmentBytes(bytes);
  if (size > limit_ - statistics_.reserved.now) return false;
  Buffer buffer;
  try {
    buffer = device_.Allocate(size);
  } catch (const MemoryError&) {
    return false;
  }
  address = reinterpret_cast<uintptr_t>(buffer.data());
  segments_[address] = {std::move(buffer), stream, bytes <= kSmall};
  blocks_[address] = {size, address};
  Add(statistics_.reserved, size);
  return true;
}

void CachingAllocator::Split(Blocks::iterator block, int64_t bytes) {
  const Segment& segment = segments_.at(block->second.segment);
  const int64_t rest = block->second.bytes - bytes;
  if (segment.small ? rest < kBlock : rest <= kSmall) return;
  block->second.bytes = bytes;
  const uintptr_t address = block->first + bytes;
  blocks_[address] = {rest, block->second.segment, /*free=*/true};
  PoolOf(segment).insert({rest, address});
}

void CachingAllocator::GiveBack(Blocks::iterator block) {
  Add(statistics_.active, -block->second.bytes);
  Pool& pool = PoolOf(segments_.at(block->second.segment));
  const auto join = [&](Blocks::iterator first, Blocks::iterator second) {
    first->second.bytes += second->second.bytes;
    blocks_.erase(second);
  };
  const auto is_free_beside = [&](Blocks::iterator other) {
    return other->second.free && other->second.segment == block->second.segment;
  };
  if (const auto next = std::next(block); next != blocks_.end() && is_free_beside(next)) {
    pool.erase({next->second.bytes, next->first});
    join(block, next);
  }
  if (block != blocks_.begin() && is_free_beside(std::prev(block))) {
    const auto before = std::prev(block);
    pool.erase({before->second.bytes, before->first});
    join(before, block);
    block = before;
  }
  block->second.free = true;
  pool.insert({block->second.bytes, block->first});
}

void CachingAllocator::Passed(const Passing& passing) {
  passing.event->Synchronize();  // Says so to the checker, and throws where the stream has failed.
  const auto block = blocks_.find(passing.block);
  if (--block->second.awaited == 0) GiveBack(block);
}

void CachingAllocator::FreeWhatHasPassed() {
  for (std::deque<Passing>& queue : passing_) {
    while (!queue.empty() && queue.front().event->Ready()) {
      const Passing passing = std::move(queue.front());
      queue.pop_front();
      Passed(passing);
    }
  }
}

void CachingAllocator::Release() {
  for (std::deque<Passing>& queue : passing_) {
    while (!queue.empty()) {
      const Passing passing = std::move(queue.front());
      queue.pop_front();
      Passed(passing);
    }
  }
  // A block's own stream has recorded no event.
  for (Stream* stream : streams_) {
    if (stream != nullptr) stream->Synchronize();
  }
  for (auto segment = segments_.begin(); segment != segments_.end();) {
    const auto first = blocks_.find(segment->first);
    const int64_t bytes = segment->second.buffer.bytes();
    if (!first->second.free || first->second.bytes != bytes) {
      ++segment;
      continue;
    }
    PoolOf(segment->second).erase({bytes, first->first});
    blocks_.erase(first);
    Add(statistics_.reserved, -bytes);
    segment = segments_.erase(segment);
  }
}

}  // namespace fsdp
