#include <gtest/gtest.h>

#include "trainer/core/philox.h"
#include "trainer/ops/cuda/philox.h"

namespace fsdp {
namespace {

TEST(DevicePhilox, HasTheWordsOfTheCpu) {
  const RandomStream stream(1, "counters and keys");
  for (uint64_t i = 0; i < 1000; ++i) {
    uint32_t words[4], key[2];
    for (uint64_t j = 0; j < 4; ++j) words[j] = stream.Bits(6 * i + j);
    for (uint64_t j = 0; j < 2; ++j) key[j] = stream.Bits(6 * i + 4 + j);
    const PhiloxCounter want = Philox({words[0], words[1], words[2], words[3]}, {key[0], key[1]});
    DevicePhilox(words, key[0], key[1]);
    EXPECT_EQ((PhiloxCounter{words[0], words[1], words[2], words[3]}), want) << i;
  }
}

}  // namespace
}  // namespace fsdp
