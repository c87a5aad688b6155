// The kernel that decodes weights (ops/weight_codes.h) takes each byte of codes and scales from
// memory once, and writes each value once. It is compiled with the calls that announce accesses to
// ThreadSanitizer. Here they count.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "tests/emulated/simt.h"
#include "trainer/ops/weight_codes.h"
#include "trainer/runtime/cuda_stream_handle.h"

namespace fsdp {

// ops/quantize_backends.h, which the room shows to none.
void DecodeWeightCuda(CudaStreamHandle stream, const ConstView& records, WeightCode code,
                      const View& w);

namespace {

constexpr uint32_t kWarp = 32;

// Accesses to one array, by byte. A warp's reads of one byte are one access of the memory's.
struct Traffic {
  explicit Traffic(const std::vector<std::byte>& bytes)
      : begin(bytes.data()),
        threads(bytes.size()),
        last_warp(bytes.size(), -1),
        warps(bytes.size()) {}

  void Count(const void* at, size_t bytes) {
    const auto* const from = static_cast<const std::byte*>(at);
    if (from < begin || from >= begin + threads.size()) return;
    const std::lock_guard lock(mutex);
    const int64_t warp = int64_t{blockIdx.x} * 1024 + threadIdx.x / kWarp;
    for (size_t i = static_cast<size_t>(from - begin); bytes > 0; ++i, --bytes) {
      ++threads.at(i);
      if (last_warp[i] != warp) ++warps[i];
      last_warp[i] = warp;
    }
  }

  const std::byte* const begin;
  std::mutex mutex;
  std::vector<int> threads;
  std::vector<int64_t> last_warp;
  std::vector<int> warps;
};
Traffic* g_read = nullptr;
Traffic* g_written = nullptr;

}  // namespace
}  // namespace fsdp

// By names of this file: the compiler has ideas of its own about functions called __tsan_...
#define FSDP_TRAIN_COUNT(bytes)                                        \
  void CountRead##bytes(void* at) asm("__tsan_read" #bytes);           \
  void CountRead##bytes(void* at) {                                    \
    if (fsdp::g_read != nullptr) fsdp::g_read->Count(at, bytes);       \
  }                                                                    \
  void CountWrite##bytes(void* at) asm("__tsan_write" #bytes);         \
  void CountWrite##bytes(void* at) {                                   \
    if (fsdp::g_written != nullptr) fsdp::g_written->Count(at, bytes); \
  }
FSDP_TRAIN_COUNT(1)
FSDP_TRAIN_COUNT(2)
FSDP_TRAIN_COUNT(4)
FSDP_TRAIN_COUNT(8)
FSDP_TRAIN_COUNT(16)
void CountReadRange(void* at, size_t bytes) asm("__tsan_read_range");
void CountReadRange(void* at, size_t bytes) {
  if (fsdp::g_read != nullptr) fsdp::g_read->Count(at, bytes);
}
void CountWriteRange(void* at, size_t bytes) asm("__tsan_write_range");
void CountWriteRange(void* at, size_t bytes) {
  if (fsdp::g_written != nullptr) fsdp::g_written->Count(at, bytes);
}
void Begin() asm("__tsan_init");
void Begin() {}
void Enter(void* from) asm("__tsan_func_entry");
void Enter(void* /*from*/) {}
void Leave() asm("__tsan_func_exit");
void Leave() {}
void Construct(void** table, void* value) asm("__tsan_vptr_update");
void Construct(void** /*table*/, void* /*value*/) {}

namespace fsdp {
namespace {

void ExpectOnce(const std::vector<int>& times, size_t begin, size_t count, const std::string& of) {
  for (size_t i = begin; i < begin + count; ++i) ASSERT_EQ(times[i], 1) << of << ", byte " << i;
}

TEST(DecodeTraffic, EachByteTravelsOnce) {
  constexpr int64_t kLeft = 5 * kWeightBlock + 24;  // In the second record.
  constexpr int64_t kElements = kWeightRecord + kLeft;
  for (const WeightCode code : {WeightCode::kNf4, WeightCode::kNf4Nested, WeightCode::kInt8}) {
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
      const std::string name = "code " + std::to_string(static_cast<int>(code)) + " to " +
                               std::string(Name(dtype)) + ": ";
      std::vector<std::byte> records(static_cast<size_t>(CodedBytes(code, kElements)));
      std::vector<std::byte> values(static_cast<size_t>(kElements * SizeOf(dtype)));
      Traffic read(records);
      Traffic written(values);
      g_read = &read;
      g_written = &written;
      DecodeWeightCuda(nullptr, {records.data(), DType::kUInt8, Shape{std::ssize(records)}}, code,
                       {values.data(), dtype, Shape{kElements}});
      g_read = g_written = nullptr;

      ExpectOnce(written.threads, 0, written.threads.size(), name + "values");
      const auto record = static_cast<size_t>(RecordBytes(code));
      const auto codes = static_cast<size_t>(RecordCodeBytes(code));
      const size_t scale = code == WeightCode::kNf4Nested ? 1 : sizeof(float);
      ExpectOnce(read.threads, 0, codes, name + "codes");
      ExpectOnce(read.warps, codes, scale * kRecordBlocks, name + "scales");
      ExpectOnce(read.threads, record, codes * kLeft / kWeightRecord, name + "last codes");
      ExpectOnce(read.warps, record + codes, scale * (kLeft / kWeightBlock + 1),
                 name + "last scales");
      EXPECT_EQ(read.threads[record + codes - 1], 0) << name << "codes behind the last element";
    }
  }
}

}  // namespace
}  // namespace fsdp
