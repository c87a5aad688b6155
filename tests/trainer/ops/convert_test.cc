// Rows of floats as bf16 are the scalar conversion's, to the bit. cast_test holds both to IEEE 754.
#include "trainer/ops/cpu/convert.h"

#include <gtest/gtest.h>

#include <bit>
#include <cstdint>
#include <vector>

#include "trainer/core/dtype.h"
#include "trainer/core/philox.h"

namespace fsdp {
namespace {

// Every second of the random numbers is NaN, infinite, zero or subnormal in the last runs, a few or
// none are in the first. A row is converted in one way until it meets such a number.
TEST(Convert, RowsAreThatOfTheirElements) {
  const RandomStream random(1, "bits");
  uint64_t drawn = 0;
  for (const uint32_t often : {0u, 1u, 100u, 2u}) {
    for (int64_t n = 0; n < 200; ++n) {
      std::vector<float> x;
      for (int64_t i = 0; i < n; ++i) {
        const uint32_t any = random.Bits(drawn++), kind = random.Bits(drawn++);
        const uint32_t normal = (any & 0x8fffffff) | 0x30000000;
        const uint32_t hard[] = {any | 0x7f800000, any & 0x807fffff, any & 0x80000000,
                                 (any & 0x80000000) | 0x7f800000};
        const bool is_hard = often != 0 && kind % often == 0;
        x.push_back(std::bit_cast<float>(is_hard ? hard[kind >> 16 & 3] : normal));
      }
      std::vector<BFloat16> y(n + 1);
      y[n].bits = 0x1234;
      Convert(x.data(), n, y.data());
      for (int64_t i = 0; i < n; ++i) {
        ASSERT_EQ(y[i].bits, BFloat16(x[i]).bits) << std::bit_cast<uint32_t>(x[i]);
      }
      EXPECT_EQ(y[n].bits, 0x1234);
    }
  }
}

}  // namespace
}  // namespace fsdp
