#include "models/t5/relative_buckets.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "tests/testing/json.h"
#include "trainer/core/atomic_file.h"
#include "trainer/runtime/cpu/cpu_device.h"
#include "trainer/runtime/sim/sim_device.h"

namespace fsdp {
namespace {

// At every distance up to twice the largest that has a bucket, and one beyond.
TEST(RelativeBuckets, AreThoseOfTransformers) {
  const auto cases = testing::Json::parse(ReadWholeFile("tests/fixtures/t5/buckets.json"));
  ASSERT_EQ(cases.size(), 7u);
  for (const testing::Json& c : cases) {
    for (const bool bidirectional : {true, false}) {
      const RelativeBuckets of{c.at("buckets"), c.at("max_distance"), bidirectional};
      const std::vector<int32_t> want = c.at(bidirectional ? "bidirectional" : "causal");
      const int64_t first = c.at("first");
      for (size_t i = 0; i < want.size(); ++i) {
        const int64_t distance = first + static_cast<int64_t>(i);
        ASSERT_EQ(of.Of(distance), want[i])
            << of.buckets << " up to " << of.max_distance << ", distance " << distance;
      }
    }
  }
}

TEST(RelativeBuckets, FarDistancesShareTheLast) {
  const RelativeBuckets both, causal{.bidirectional = false};
  EXPECT_EQ(both.Of(-(int64_t{1} << 40)), 15);
  EXPECT_EQ(both.Of(int64_t{1} << 40), 31);
  EXPECT_EQ(causal.Of(-(int64_t{1} << 40)), 31);
  EXPECT_EQ(causal.Of(int64_t{1} << 40), 0);
}

TEST(RelativeBuckets, AreFilledInRuns) {
  constexpr int64_t kFirst = -50, kSize = 90;
  for (const bool bidirectional : {true, false}) {
    const RelativeBuckets of{.buckets = 12, .max_distance = 20, .bidirectional = bidirectional};
    std::vector<int32_t> out(kSize, -1);
    const View view(reinterpret_cast<std::byte*>(out.data()), DType::kInt32, {kSize});
    CpuDevice device;
    const std::unique_ptr<Stream> stream = device.CreateStream("compute");
    FillBuckets(*stream, of, kFirst, view);
    stream->Synchronize();
    for (int64_t i = 0; i < kSize; ++i) {
      EXPECT_EQ(out[static_cast<size_t>(i)], of.Of(kFirst + i)) << kFirst + i;
    }
    int operations = 0;
    SimDevice counted({}, nullptr, DeviceType::kCpu);
    counted.Observe([&](const Operation&, const Stream&) { ++operations; });
    FillBuckets(*counted.CreateStream("compute"), of, kFirst, view);
    EXPECT_EQ(operations, bidirectional ? 11 : 12);  // None is "0 behind it".
  }
}

}  // namespace
}  // namespace fsdp
