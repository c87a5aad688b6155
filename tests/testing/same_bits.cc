#include "tests/testing/same_bits.h"

#include <gtest/gtest.h>

#include <cstring>

#include "trainer/core/check.h"
#include "trainer/runtime/cpu/cpu_device.h"

namespace fsdp {

View ViewOf(std::vector<float>& data, const Shape& shape) {
  FSDP_CHECK_EQ(static_cast<int64_t>(data.size()), shape.NumElements());
  return View(reinterpret_cast<std::byte*>(data.data()), DType::kFloat32, shape);
}

std::vector<float> Floats(const std::vector<double>& values) {
  return std::vector<float>(values.begin(), values.end());
}

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

void ExpectSameBits(const std::function<std::vector<float>(Stream&)>& run) {
  std::vector<float> first;
  for (const int threads : {1, 2, 3, 5}) {
    for (int repeat = 0; repeat < 2; ++repeat) {
      CpuDevice device;
      const auto stream = device.CreateStream("stream", threads);
      const std::vector<float> result = run(*stream);
      ASSERT_FALSE(result.empty());
      if (first.empty()) first = result;
      EXPECT_TRUE(SameBits(result, first)) << threads << " threads, repeat " << repeat;
    }
  }
}

}  // namespace fsdp
