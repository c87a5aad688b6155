// A device as one rank sees it: its memory, its streams and its clock. Ranks that are threads of
// one process each have a Device of their own.
// Tests: tests/trainer/runtime/cpu/cpu_device_test.cc
#ifndef FSDP_TRAIN_TRAINER_RUNTIME_DEVICE_H_
#define FSDP_TRAIN_TRAINER_RUNTIME_DEVICE_H_

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "trainer/core/span.h"
#include "trainer/core/view.h"
#include "trainer/runtime/memory.h"
#include "trainer/runtime/stream.h"

namespace fsdp {

class StreamChecker;

enum class DeviceType { kCpu, kCuda, kSim };
const char* Name(DeviceType type);  // "cpu", ...

// Which of two streams goes first when both have work for a GPU. A hint, which other devices
// ignore.
enum class StreamPriority { kNormal, kHigh };

// Memory with one owner. The destructor and assigning another Buffer free it: no stream may still
// use it then.
class Buffer {
 public:
  Buffer() = default;
  Buffer(Device& device, std::byte* data, int64_t bytes, MemoryPlace place)
      : device_(&device), data_(data), bytes_(bytes), place_(place) {}
  Buffer(Buffer&& other) noexcept { *this = std::move(other); }
  Buffer& operator=(Buffer&& other) noexcept;
  ~Buffer() { Release(); }

  std::byte* data() const { return data_; }
  int64_t bytes() const { return bytes_; }
  // The first elements as a tensor. FSDP_CHECKs that they fit.
  View As(DType dtype, const Shape& shape, int64_t byte_offset = 0) const;

 private:
  void Release() noexcept;

  Device* device_ = nullptr;
  std::byte* data_ = nullptr;
  int64_t bytes_ = 0;
  MemoryPlace place_ = MemoryPlace::kDevice;
};

class Device {
 public:
  virtual ~Device() = default;
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  virtual DeviceType type() const = 0;
  // The type whose kernels and workspaces the work on this device needs: its own type, or for the
  // simulated device the one that it plans for.
  virtual DeviceType kernel_type() const { return type(); }

  // `threads`: CPU threads that a kernel on it, or work of the host, may use. Throws DeviceError.
  virtual std::unique_ptr<Stream> CreateStream(
      std::string name, int threads = 1, StreamPriority priority = StreamPriority::kNormal) = 0;

  // The device that works on host and pinned memory with the CPU's kernels. Events order its
  // streams with this device's streams. A CPU or simulated device returns itself. A trace of this
  // device includes the host device's spans.
  virtual Device& host() { return *this; }

  // Aligned to 4096 bytes, contents undefined. Throws MemoryError.
  Buffer Allocate(int64_t bytes, MemoryPlace place = MemoryPlace::kDevice);

  // The same bytes at the address by which the host may touch them, where the host shares the
  // device's memory and need not copy; nullopt elsewhere. Events order such uses like any other.
  virtual std::optional<View> OnHost(const View&) const { return std::nullopt; }

  virtual double Now() const = 0;  // Seconds; differences only.

  // From now on operations and waits ("wait") are timed; TakeTrace() stops it and returns the
  // spans, ordered by stream name, then time. All streams must be idle at both calls.
  virtual void StartTrace() = 0;
  virtual std::vector<Span> TakeTrace() = 0;

  const std::shared_ptr<StreamChecker>& checker() const { return checker_; }

 protected:
  explicit Device(std::shared_ptr<StreamChecker> checker) : checker_(std::move(checker)) {}
  static std::vector<Span> ByStreamAndTime(std::vector<Span> spans);

 private:
  friend class Buffer;
  virtual std::byte* DoAllocate(int64_t bytes, MemoryPlace place) = 0;
  virtual void DoFree(std::byte* data, int64_t bytes, MemoryPlace place) noexcept = 0;
  void Free(std::byte* data, int64_t bytes, MemoryPlace place) noexcept;

  std::shared_ptr<StreamChecker> checker_;
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_RUNTIME_DEVICE_H_
