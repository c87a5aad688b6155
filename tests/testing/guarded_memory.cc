#include "tests/testing/guarded_memory.h"

#include <algorithm>
#include <cstdint>
#include <deque>
#include <vector>

#include "trainer/core/check.h"
#include "trainer/core/errors.h"
#include "trainer/runtime/operation.h"

namespace fsdp {
namespace {

// A tensor begins or ends at a multiple of it, as it does at a page on the host.
constexpr int64_t kAlignment = 256;

class GuardedMemory final : public TestMemory {
 public:
  explicit GuardedMemory(cudaStream_t stream) : stream_(stream) {}
  ~GuardedMemory() override { Clear(); }

  std::byte* Allocate(int64_t bytes, TensorPlace place) override {
    const int64_t usable = (bytes + kAlignment - 1) / kAlignment * kAlignment;
    const int64_t begin = kGuardBytes + (place == TensorPlace::kEnd ? usable - bytes : 0);
    Block block{
        .device = nullptr, .bytes = bytes, .begin = begin, .copy = Bytes(usable + 2 * kGuardBytes)};
    void* device = nullptr;
    CheckTestCall(cudaMalloc(&device, block.size()), "cudaMalloc");
    block.device = static_cast<std::byte*>(device);
    all_.push_back(std::move(block));
    return all_.back().device + begin;
  }

  void Clear() override {
    for (const Block& block : all_) (void)cudaFree(block.device);  // Behind a fault they all fail.
    all_.clear();
  }

  void Read(const std::byte* at, int64_t bytes, std::byte* to) const override {
    if (bytes == 0) return;
    const auto [block, offset] = Find(at, bytes);
    std::copy_n(all_[block].copy.begin() + offset, bytes, to);
  }
  void Write(std::byte* at, const std::byte* from, int64_t bytes) override {
    if (bytes == 0) return;
    const auto [block, offset] = Find(at, bytes);
    std::copy_n(from, bytes, all_[block].copy.begin() + offset);
  }
  std::vector<Bytes> Save() const override {
    std::vector<Bytes> saved;
    for (const Block& block : all_) saved.push_back(block.copy);
    return saved;
  }
  void Restore(const std::vector<Bytes>& saved) override {
    for (size_t i = 0; i < saved.size(); ++i) all_[i].copy = saved[i];
  }

  void Close() override {}
  void Open() override {}

  void Begin(const Operation& operation) override {
    for (Block& block : all_) {
      block.given = block.copy;
      FillWithNan(block.given, 0, block.begin);
      FillWithNan(block.given, block.begin + block.bytes, block.size());
      if (!Overlaps(operation.reads, block) && !Overlaps(operation.writes, block)) {
        FillWithNan(block.given, block.begin, block.begin + block.bytes);
      }
      Copy(block.device, block.given.data(), block.size(), cudaMemcpyHostToDevice);
    }
    CheckTestCall(cudaStreamSynchronize(stream_), "before " + std::string(operation.name));
  }

  std::vector<std::string> End(const Operation& operation) override {
    std::vector<std::string> wrong;
    for (size_t i = 0; i < all_.size(); ++i) {
      Block& block = all_[i];
      Bytes now(block.size());
      Copy(now.data(), block.device, block.size(), cudaMemcpyDeviceToHost);
      CheckTestCall(cudaStreamSynchronize(stream_), "after " + std::string(operation.name));
      for (const Range& range : operation.writes) {
        const auto [begin, end] = Within(range, block);
        if (begin >= end) continue;
        std::copy(now.begin() + begin, now.begin() + end, block.copy.begin() + begin);
        std::copy(now.begin() + begin, now.begin() + end, block.given.begin() + begin);
      }
      const auto at = std::mismatch(now.begin(), now.end(), block.given.begin()).first;
      if (at == now.end()) continue;
      wrong.push_back(std::string(operation.name) + " writes byte " +
                      std::to_string(at - now.begin() - block.begin) + " of tensor " +
                      std::to_string(i) + ", which has " + std::to_string(block.bytes) +
                      ", and does not declare it");
    }
    return wrong;
  }

 private:
  struct Block {
    std::byte* device;
    int64_t bytes;     // The tensor's.
    int64_t begin;     // The tensor's first byte, behind a guard.
    Bytes copy;        // The block's bytes, guards included.
    Bytes given = {};  // The running kernel's input.

    int64_t size() const { return static_cast<int64_t>(copy.size()); }
  };

  // Every two bytes are a NaN in bf16 and fp16, and every four in fp32.
  void FillWithNan(Bytes& bytes, int64_t begin, int64_t end) {
    const auto low = static_cast<std::byte>(0x81 + fills_++ % 0x7e);
    for (int64_t i = begin; i < end; ++i) bytes[i] = i % 2 == 0 ? low : std::byte{0xff};
  }

  // Where the range lies in the block: begin >= end if nowhere.
  static std::pair<int64_t, int64_t> Within(const Range& range, const Block& block) {
    const auto first = static_cast<int64_t>(range.begin - Range(block.device, 0).begin);
    return {std::max<int64_t>(first, 0), std::min(first + range.bytes, block.size())};
  }
  static bool Overlaps(const std::vector<Range>& ranges, const Block& block) {
    return std::any_of(ranges.begin(), ranges.end(), [&](const Range& range) {
      const auto [begin, end] = Within(range, block);
      return begin < end;
    });
  }

  // Number of the block, and where in it.
  std::pair<size_t, int64_t> Find(const std::byte* at, int64_t bytes) const {
    for (size_t i = 0; i < all_.size(); ++i) {
      const auto [begin, end] = Within(Range(at, bytes), all_[i]);
      if (begin < end) return {i, begin};
    }
    FSDP_CHECK(false);
    return {};
  }

  void Copy(void* to, const void* from, int64_t bytes, cudaMemcpyKind kind) const {
    CheckTestCall(cudaMemcpyAsync(to, from, bytes, kind, stream_), "cudaMemcpyAsync");
  }

  const cudaStream_t stream_;
  std::deque<Block> all_;
  int fills_ = 0;
};

}  // namespace

void CheckTestCall(cudaError_t error, const std::string& what) {
  if (error != cudaSuccess) throw DeviceError(what + ": " + cudaGetErrorString(error));
}

std::unique_ptr<TestMemory> CreateGuardedMemory(cudaStream_t stream) {
  return std::make_unique<GuardedMemory>(stream);
}

}  // namespace fsdp
