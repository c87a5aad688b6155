#include "trainer/ops/cpu/gemm/gemm_pairs.h"

#include <xmmintrin.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <random>

#include "trainer/ops/cpu/gemm/gemm_kernels.h"
#include "trainer/ops/cpu/isa.h"

namespace fsdp {
namespace {

// Subnormals are zero for as long as it lives.
class NoSubnormals {
 public:
  NoSubnormals() : before_(_mm_getcsr()) { _mm_setcsr(before_ | 0x8040); }
  ~NoSubnormals() { _mm_setcsr(before_); }
  NoSubnormals(const NoSubnormals&) = delete;
  NoSubnormals& operator=(const NoSubnormals&) = delete;

 private:
  const unsigned before_;
};

bool SameOrNan(float x, float y) {
  return std::bit_cast<uint32_t>(x) == std::bit_cast<uint32_t>(y) ||
         (std::isnan(x) && std::isnan(y));
}

bool GivesTheDefinition() {
  constexpr int kCases = 4096, kLanes = 16;
  const NoSubnormals no_subnormals;
  std::mt19937 random(1);
  for (int i = 0; i < kCases; i += kLanes) {
    // Every fourth time of any bits; otherwise of exponents that make sums round and cancel.
    const uint32_t keep = i / kLanes % 4 == 0 ? 0xffffffff : 0x81ff81ff;
    const uint32_t set = keep == 0xffffffff ? 0 : 0x3e003e00;
    uint32_t a[kLanes], b[kLanes];
    float sums[kLanes], want[kLanes];
    for (int lane = 0; lane < kLanes; ++lane) {
      a[lane] = (random() & keep) | set;
      b[lane] = (random() & keep) | set;
      sums[lane] = std::bit_cast<float>((static_cast<uint32_t>(random()) & keep) | set);
      want[lane] = AddPair(sums[lane], a[lane], b[lane]);
    }
    AddPairsBf16(a, b, sums);
    for (int lane = 0; lane < kLanes; ++lane) {
      if (!SameOrNan(sums[lane], want[lane])) return false;
    }
  }
  return true;
}

}  // namespace

float AddPair(float sum, uint32_t a, uint32_t b) {
  const auto even = [](uint32_t pair) { return std::bit_cast<float>(pair << 16); };
  const auto odd = [](uint32_t pair) { return std::bit_cast<float>(pair & 0xffff0000); };
  return std::fma(even(a), even(b), std::fma(odd(a), odd(b), sum));
}

bool MultiplyPairs() {
  static const bool use = UseAvx512Bf16() && GivesTheDefinition();
  return use;
}

}  // namespace fsdp
