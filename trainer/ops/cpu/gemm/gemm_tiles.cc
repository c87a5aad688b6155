#include "trainer/ops/cpu/gemm/gemm_tiles.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <random>
#include <vector>

namespace fsdp {
namespace {

constexpr int64_t kRows = 45, kCols = 40, kK = 100;  // Edges in all directions.

struct Free {
  void operator()(char* memory) const { std::free(memory); }  // NOLINT: of aligned_alloc.
};

std::vector<float> Sums(const GemmTileKernels& kernels, const std::vector<uint16_t>& a,
                        const std::vector<uint16_t>& b, bool a_turned, bool b_turned) {
  const std::unique_ptr<char, Free> memory(
      static_cast<char*>(std::aligned_alloc(64, kTileProductBytes)));
  if (memory == nullptr) throw std::bad_alloc();
  const auto factor = [](const std::vector<uint16_t>& x, int64_t n, bool turned) {
    return TileFactor{reinterpret_cast<const char*>(x.data()), turned ? 2 : kK * 2,
                      turned ? n * 2 : 2};
  };
  std::vector<float> sums(kRows * kCols);
  TileProduct p = {};
  p.a = factor(a, kRows, a_turned);
  p.b = factor(b, kCols, b_turned);
  p.rows = kRows;
  p.cols = kCols;
  p.k = kK;
  p.memory = memory.get();
  p.c = reinterpret_cast<char*>(sums.data());
  p.c_row = kCols * 4;
  p.dtype = DType::kFloat32;
  kernels.multiply(p);
  return sums;
}

}  // namespace

bool TilesGiveTheDefinition(const GemmTileKernels& kernels) {
  std::mt19937 random(1);
  for (int times = 0; times < 8; ++times) {
    // At last any bits, before of exponents that make sums round and cancel.
    const uint32_t keep = times == 7 ? 0xffff : 0x81ff, set = times == 7 ? 0 : 0x3e00;
    const auto draw = [&](int64_t n) {
      std::vector<uint16_t> x(n);
      for (uint16_t& bits : x) bits = static_cast<uint16_t>((random() & keep) | set);
      return x;
    };
    const std::vector<uint16_t> a = draw(kRows * kK), b = draw(kCols * kK);
    const bool a_turned = times & 1, b_turned = times & 2;
    const std::vector<float> got = Sums(kernels, a, b, a_turned, b_turned);
    const std::vector<float> want = Sums(kGemmTilesAvx2, a, b, a_turned, b_turned);
    for (size_t i = 0; i < got.size(); ++i) {
      const bool same = std::bit_cast<uint32_t>(got[i]) == std::bit_cast<uint32_t>(want[i]);
      if (!same && !(std::isnan(got[i]) && std::isnan(want[i]))) return false;
    }
  }
  return true;
}

}  // namespace fsdp
