#include "trainer/ops/dropout.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "trainer/core/philox.h"
#include "trainer/ops/arguments.h"
#include "trainer/ops/cpu/floats.h"
#include "trainer/ops/element_backends.h"
#include "trainer/runtime/operation.h"

namespace fsdp {
namespace {

constexpr int64_t kBlocks = 32;          // Counters at once: the rounds run along lanes.
constexpr int64_t kBatch = 4 * kBlocks;  // Elements.

// words[4 i + w] = Philox({low, high(block + i), site, 0}, key)[w]: trainer/core/philox.cc along
// lanes.
void Words(uint64_t block, uint32_t site, PhiloxKey key, uint32_t* words) {
  uint32_t c0[kBlocks], c1[kBlocks], c2[kBlocks], c3[kBlocks];
  for (int64_t i = 0; i < kBlocks; ++i) {
    c0[i] = static_cast<uint32_t>(block + i);
    c1[i] = static_cast<uint32_t>((block + i) >> 32);
    c2[i] = site;
    c3[i] = 0;
  }
  for (int round = 0; round < 10; ++round) {
#pragma omp simd
    for (int64_t i = 0; i < kBlocks; ++i) {
      const uint64_t p0 = uint64_t{0xD2511F53u} * c0[i], p1 = uint64_t{0xCD9E8D57u} * c2[i];
      c0[i] = static_cast<uint32_t>(p1 >> 32) ^ c1[i] ^ key[0];
      c1[i] = static_cast<uint32_t>(p1);
      c2[i] = static_cast<uint32_t>(p0 >> 32) ^ c3[i] ^ key[1];
      c3[i] = static_cast<uint32_t>(p0);
    }
    key = {key[0] + 0x9E3779B9u, key[1] + 0xBB67AE85u};
  }
  for (int64_t i = 0; i < kBlocks; ++i) {
    words[4 * i] = c0[i];
    words[4 * i + 1] = c1[i];
    words[4 * i + 2] = c2[i];
    words[4 * i + 3] = c3[i];
  }
}

// An element is kept where its word is at least `threshold`.
void DropoutCpu(ThreadPool& pool, const ConstView& x, const ConstView& keys, uint32_t site,
                uint32_t threshold, float scale, const View& y) {
  const int64_t batch = x.shape[0], size = x.shape[1];
  const int64_t pieces = (size + kBatch - 1) / kBatch;
  pool.ParallelFor(batch * pieces, 1, [&](int64_t begin, int64_t end) {
    uint32_t words[kBatch];
    float from[kBatch], to[kBatch];
    for (int64_t piece = begin; piece < end; ++piece) {
      const int64_t sample = piece / pieces, first = piece % pieces * kBatch;
      const int32_t* const words_of_key = keys.As<int32_t>() + 2 * sample;
      const PhiloxKey key = {static_cast<uint32_t>(words_of_key[0]),
                             static_cast<uint32_t>(words_of_key[1])};
      Words(static_cast<uint64_t>(first / 4), site, key, words);
      const int64_t at = sample * size + first, n = std::min(kBatch, size - first);
      const float* in = ReadFloats(x, at, n, from);
      float* out = FloatsToWrite(y, at, to);
#pragma omp simd
      for (int64_t i = 0; i < n; ++i) out[i] = words[i] >= threshold ? scale * in[i] : 0.0f;
      WriteFloats(out, n, y, at);
    }
  });
}

}  // namespace

void Dropout(Stream& stream, ConstView x, ConstView keys, uint32_t site, double rate, View y) {
  constexpr const char* kOp = "dropout";
  const Arguments args(kOp);
  args.CheckDType("x", x.dtype, kFloatDTypes);
  args.CheckRank("x", x, x.dtype, 2);
  args.Check("y", y, x.dtype, x.shape);
  args.Check("keys", keys, DType::kInt32, {x.shape[0], 2});
  args.CheckSameOrDisjoint("y", y, "x", x);
  args.CheckDisjoint("y", y, "keys", keys);
  args.Require(rate >= 0 && rate < 1, "rate is not in [0, 1)");
  const auto threshold = static_cast<uint32_t>(std::ldexp(rate, 32));
  const auto scale = static_cast<float>(1 / (1 - rate));
  const double n = static_cast<double>(x.NumElements());
  const Cost cost{.flops = 15 * n,
                  .bytes_read = static_cast<double>(x.bytes()),
                  .bytes_written = static_cast<double>(y.bytes())};
  DeviceKernels kernels{.cpu = OnCpu(DropoutCpu, x, keys, site, threshold, scale, y),
                        .cuda = OnCuda(DropoutCuda, x, keys, site, threshold, scale, y)};
  stream.Enqueue({kOp, {x, keys}, {y}, {cost}, std::move(kernels)});
}

}  // namespace fsdp
