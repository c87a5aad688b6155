#include "trainer/runtime/spill/spill_memory.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <vector>

#include "trainer/core/errors.h"
#include "trainer/core/view.h"
#include "trainer/runtime/cpu/cpu_device.h"
#include "trainer/runtime/device.h"
#include "trainer/runtime/memory.h"
#include "trainer/runtime/stream_checker.h"

namespace fsdp {
namespace {

constexpr int64_t kElements = 700'000;
constexpr int64_t kSpan = (kElements * 4 + kSpillAlignment - 1) / kSpillAlignment * kSpillAlignment;

View Floats(std::byte* data) { return {data, DType::kFloat32, Shape{kElements}}; }

TEST(SpillMemory, HasTensorsOnTheDisk) {
  SpillMemory spill(::testing::TempDir(), "state", 2 * kSpan);
  std::vector<float> values(kElements), got(kElements, 1);
  for (int64_t i = 0; i < kElements; ++i) values[i] = static_cast<float>(i);
  const View first = Floats(spill.data()), second = Floats(spill.data() + kSpan);
  const View in = Floats(reinterpret_cast<std::byte*>(values.data()));
  const View out = Floats(reinterpret_cast<std::byte*>(got.data()));
  EXPECT_TRUE(spill.Holds(first) && spill.Holds(second.Slice(kElements - 1, 1)));
  EXPECT_FALSE(spill.Holds(in) || spill.Holds({spill.data() + 2 * kSpan, DType::kFloat32, {1}}));

  spill.Write(in, first);
  spill.Read(second, out);
  EXPECT_EQ(got, std::vector<float>(kElements));  // Unwritten memory reads as zero.
  spill.Copy(first, second);
  spill.Read(second, out);
  EXPECT_EQ(got, values);
  for (const int64_t begin : {0, 1, 256, 1234, 699'999}) {
    int64_t at = begin;
    spill.ReadInOrder(second.Slice(begin, kElements - begin), [&](ConstView block) {
      const View want = in.Slice(at, block.NumElements());
      EXPECT_TRUE(block.dtype == want.dtype && block.bytes() <= 1 << 20);
      EXPECT_EQ(std::memcmp(block.data, want.data, want.bytes()), 0);
      at += block.NumElements();
    });
    EXPECT_EQ(at, kElements);
  }
}

TEST(SpillMemoryDeathTest, NobodyTouchesAnAddress) {
  SpillMemory spill(::testing::TempDir(), "state", kSpan);
  EXPECT_DEATH(*Floats(spill.data()).As<volatile float>() = 1, "");
  std::byte elsewhere[4];
  EXPECT_DEATH(spill.Read({elsewhere, DType::kFloat32, {1}}, {elsewhere, DType::kFloat32, {1}}),
               "not spilled");
}

TEST(SpillMemory, NeedsADirectory) {
  EXPECT_THROW(SpillMemory("/none/such", "state", kSpan), CheckpointError);
}

// On streams its tensors are ordered as any others are.
TEST(SpillMemoryDeathTest, IsUnderTheStreamChecker) {
  const auto checker = std::make_shared<StreamChecker>();
  CpuDevice device({.checker = checker});
  SpillMemory spill(::testing::TempDir(), "state", kSpan);
  const Buffer memory = device.Allocate(2 * kElements * 4, MemoryPlace::kPinned);
  const View spilled = Floats(spill.data()), a = memory.As(DType::kFloat32, {kElements});
  const View b = memory.As(DType::kFloat32, {kElements}, kElements * 4);
  const auto reads = device.CreateStream("reads"), writes = device.CreateStream("writes");
  for (int64_t i = 0; i < kElements; ++i) a.As<float>()[i] = static_cast<float>(i);
  WriteSpilled(*writes, &spill, a, spilled);
  reads->Wait(writes->Record());
  ReadSpilled(*reads, &spill, spilled, b);
  reads->Synchronize();
  EXPECT_EQ(std::memcmp(a.data, b.data, a.bytes()), 0);
  WriteSpilled(*writes, &spill, a, spilled);
  writes->Synchronize();
  EXPECT_DEATH(
      {
        WriteSpilled(*writes, &spill, a, spilled);
        ReadSpilled(*reads, &spill, spilled, b);
      },
      "spill_read");
}

}  // namespace
}  // namespace fsdp
