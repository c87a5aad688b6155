#include "trainer/fsdp/caching_buffers.h"

#include <algorithm>
#include <utility>

namespace fsdp {
namespace {

constexpr int kCompute = static_cast<int>(StreamId::kCompute);

}  // namespace

CachingBuffers::CachingBuffers(Device& device, std::optional<int64_t> limit,
                               std::unique_ptr<SpillMemory> spill, const MemoryCeiling& ceiling)
    : one_memory_(device.kernel_type() == DeviceType::kCpu),
      caching_(device, limit.value_or(CachingAllocator::kNoLimit)),
      spill_(std::move(spill)),
      ceiling_(ceiling),
      pooled_(device, spill_.get()) {}

std::byte* CachingBuffers::Allocate(int64_t bytes, MemoryUse use) {
  const bool device = use.place == MemoryPlace::kDevice;
  if (one_memory_ && !device && use.place != MemoryPlace::kDisk) {
    caching_.Include(pooled_.Missing(bytes, use));
  }
  std::byte* const data =
      device ? caching_.Allocate(bytes, kCompute) : pooled_.Allocate(bytes, use);
  CheckCeiling();
  Count(bytes, use);
  return data;
}

void CachingBuffers::Free(std::byte* data, int64_t bytes, MemoryUse use) noexcept {
  Count(-bytes, use);
  if (use.place == MemoryPlace::kDevice) {
    caching_.Free(data);
  } else {
    pooled_.Free(data, bytes, use);
  }
}

void CachingBuffers::Attach(const std::vector<std::unique_ptr<Stream>>& streams) {
  for (int s = 0; s < kNumStreams; ++s) {
    caching_.Attach(s, static_cast<size_t>(s) < streams.size() ? streams[s].get() : nullptr);
  }
}

View CachingBuffers::Take(int64_t bytes, StreamId stream) {
  if (bytes == 0) return View();
  const View view(caching_.Allocate(bytes, static_cast<int>(stream)), DType::kUInt8, Shape{bytes});
  CheckCeiling();
  Count(bytes, MemoryKind::kUnsharded);
  return view;
}

void CachingBuffers::Release(const View& bytes, std::initializer_list<StreamId> users) {
  if (bytes.data == nullptr) return;
  for (const StreamId user : users) caching_.Use(bytes.data, static_cast<int>(user));
  caching_.Free(bytes.data);
  Count(-bytes.bytes(), MemoryKind::kUnsharded);
}

CachingStatistics CachingBuffers::TakePeaks() {
  const CachingStatistics peaks = caching_.statistics();
  taken_.GoOnWith(peaks);
  caching_.ResetPeaks();
  return peaks;
}

MemoryPlan CachingBuffers::Used() const {
  MemoryPlan plan;
  plan.caching = taken_;
  plan.caching->GoOnWith(caching_.statistics());
  for (int place = 0; place < kNumMemoryPlaces; ++place) {
    for (int kind = 0; kind < kNumMemoryKinds; ++kind) {
      plan.kinds[place][kind] = kinds_[place][kind].peak;
    }
    plan.arenas[place] = pooled_.bytes(static_cast<MemoryPlace>(place));
  }
  int64_t& device = plan.arenas[static_cast<int>(MemoryPlace::kDevice)];
  device = plan.caching->reserved.peak - (one_memory_ ? plan.bytes() : 0);
  return plan;
}

int64_t CachingBuffers::Pooled() const {
  int64_t bytes = 0;
  for (int place = 0; place < kNumMemoryPlaces; ++place) {
    if (static_cast<MemoryPlace>(place) != MemoryPlace::kDisk) {
      bytes += pooled_.bytes(static_cast<MemoryPlace>(place));
    }
  }
  return bytes;
}

void CachingBuffers::CheckCeiling() const {
  const int64_t host = Pooled(), reserved = caching_.statistics().reserved.now;
  ceiling_.Check(one_memory_ ? reserved - host : reserved, host);
}

void CachingBuffers::Count(int64_t bytes, MemoryUse use) {
  Bytes& kind = kinds_[static_cast<int>(use.place)][static_cast<int>(use.kind)];
  kind.now += bytes;
  kind.peak = std::max(kind.peak, kind.now);
}

}  // namespace fsdp
