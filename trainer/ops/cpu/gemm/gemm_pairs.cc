#include "trainer/ops/cpu/gemm/gemm_pairs.h"

#include <xmmintrin.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <functional>
#include <random>
#include <vector>

#include "trainer/ops/cpu/gemm/gemm_kernels.h"
#include "trainer/ops/cpu/gemm/gemm_pack.h"
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

// A product of packed factors, whose elements are between 1 and 2 in either form.
class Measured {
 public:
  // steps: of k.
  Measured(const GemmKernels& kernels, int64_t steps, int64_t tiles)
      : kernels_(kernels),
        tile_(GemmTileSteps(steps, kernels.cols)),
        a_(Elements(steps * kernels.rows)),
        b_(Elements(tiles * tile_)),
        c_(kernels.rows * tiles * kernels.cols),
        strip_() {
    strip_.a = reinterpret_cast<const char*>(a_.data());
    strip_.a_row = kStep;
    strip_.a_k = kernels.rows * kStep;
    strip_.b = reinterpret_cast<const char*>(b_.data());
    strip_.b_tile = tile_ * kStep;
    strip_.b_k = kernels.cols * kStep;
    strip_.c = c_.data();
    strip_.c_row = strip_.cols = tiles * kernels.cols;
    strip_.rows = kernels.rows;
    strip_.k = steps;
    strip_.alpha = 1;
  }
  Measured(const Measured&) = delete;
  Measured& operator=(const Measured&) = delete;

  double Seconds(int calls) const {
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < calls; ++i) kernels_.strip(strip_);
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }

 private:
  static constexpr int64_t kStep = sizeof(uint32_t);

  static std::vector<uint32_t> Elements(int64_t n) {
    std::minstd_rand random(1);
    std::vector<uint32_t> elements(n);
    for (uint32_t& x : elements) x = (static_cast<uint32_t>(random()) & 0x007f007f) | 0x3f803f80;
    return elements;
  }

  const GemmKernels& kernels_;
  const int64_t tile_;
  const std::vector<uint32_t> a_, b_;
  std::vector<float> c_;
  GemmStrip strip_;
};

}  // namespace

float AddPair(float sum, uint32_t a, uint32_t b) {
  const auto even = [](uint32_t pair) { return std::bit_cast<float>(pair << 16); };
  const auto odd = [](uint32_t pair) { return std::bit_cast<float>(pair & 0xffff0000); };
  return std::fma(even(a), even(b), std::fma(odd(a), odd(b), sum));
}

bool HasPairs() {
  static const bool has = UseAvx512Bf16() && GivesTheDefinition();
  return has;
}

PairTimes MeasurePairs() {
  constexpr int kRounds = 16, kCalls = 8;
  constexpr int64_t kK = 512, kTiles = 2;
  const Measured instruction(kGemmBf16, GemmSteps(GemmForm::kPairs, kK), kTiles);
  const Measured floats(kGemmAvx512, GemmSteps(GemmForm::kSwappedFloats, kK), kTiles);
  PairTimes best{instruction.Seconds(kCalls), floats.Seconds(kCalls)};
  for (int round = 1; round < kRounds; ++round) {
    best.instruction = std::min(best.instruction, instruction.Seconds(kCalls));
    best.floats = std::min(best.floats, floats.Seconds(kCalls));
  }
  return best;
}

bool UsePairs(PairWay way, bool has_pairs, const std::function<PairTimes()>& measure) {
  if (!has_pairs) return false;
  if (way != PairWay::kFaster) return way == PairWay::kInstruction;
  const PairTimes times = measure();
  return times.instruction <= times.floats;
}

bool MultiplyPairs() {
  static const bool use = UsePairs(ThisIsa().pairs, HasPairs(), MeasurePairs);
  return use;
}

}  // namespace fsdp
