#include "trainer/ops/elementwise.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "trainer/core/units.h"
#include "trainer/ops/arguments.h"
#include "trainer/ops/cpu/floats.h"
#include "trainer/ops/element_backends.h"
#include "trainer/runtime/operation.h"

namespace fsdp {
namespace {

constexpr int64_t kGrain = 1024;  // Elements: at least a page a thread.

// glibc 2.36 turns to `rep movsb` above 4 KiB, which took 3 to 6 times as long for copies of 128
// to 256 KiB (Zen 3); below, it uses plain vector moves.
constexpr int64_t kCopyBytes = 4096;

template <typename Bits>
void FillBits(ThreadPool& pool, Bits bits, int64_t n, Bits* y) {
  pool.ParallelFor(n, kGrain,
                   [&](int64_t begin, int64_t end) { std::fill(y + begin, y + end, bits); });
}

// fp32, bf16 or fp16: all operands have y's dtype.
void AddCpu(ThreadPool& pool, const ConstView& a, const ConstView& b, const View& y) {
  pool.ParallelFor(y.NumElements(), kGrain, [&](int64_t begin, int64_t end) {
    FloatPiece first_buffer, second_buffer, sum_buffer;
    ForEachPiece(y.dtype, begin, end, [&](int64_t at, int64_t n) {
      const float* first = ReadFloats(a, at, n, first_buffer);
      const float* second = ReadFloats(b, at, n, second_buffer);
      float* sum = FloatsToWrite(y, at, sum_buffer);
#pragma omp simd
      for (int64_t i = 0; i < n; ++i) sum[i] = first[i] + second[i];
      WriteFloats(sum, n, y, at);
    });
  });
}

void ScaleCpu(ThreadPool& pool, float factor, const View& y) {
  pool.ParallelFor(y.NumElements(), kGrain, [&](int64_t begin, int64_t end) {
    FloatPiece from_buffer, to_buffer;
    ForEachPiece(y.dtype, begin, end, [&](int64_t at, int64_t n) {
      const float* from = ReadFloats(y, at, n, from_buffer);
      float* to = FloatsToWrite(y, at, to_buffer);
#pragma omp simd
      for (int64_t i = 0; i < n; ++i) to[i] = factor * from[i];
      WriteFloats(to, n, y, at);
    });
  });
}

// bits: the low ones of each element of 2 or 4 bytes.
void FillCpu(ThreadPool& pool, uint32_t bits, const View& y) {
  const int64_t n = y.NumElements();
  if (SizeOf(y.dtype) == 4) return FillBits(pool, bits, n, y.As<uint32_t>());
  FillBits(pool, static_cast<uint16_t>(bits), n, y.As<uint16_t>());
}

void CopyCpu(ThreadPool& pool, const ConstView& x, const View& y) {
  if (x.data == y.data) return;
  pool.ParallelFor(y.bytes(), kCopyBytes, [&](int64_t begin, int64_t end) {
    for (int64_t at = begin; at < end; at += kCopyBytes) {
      std::memcpy(y.data + at, x.data + at, std::min(kCopyBytes, end - at));
    }
  });
}

bool IsInt32(float value) {
  return value >= -0x1p31f && value < 0x1p31f && std::trunc(value) == value;
}

// The cost of one addition per element.
Cost AddCost(const ConstView& a, const ConstView& b, const View& y) {
  return {.flops = static_cast<double>(y.NumElements()),
          .bytes_read = static_cast<double>(a.bytes() + b.bytes()),
          .bytes_written = static_cast<double>(y.bytes())};
}

}  // namespace

void Add(Stream& stream, ConstView a, ConstView b, View y) {
  constexpr const char* kOp = "add";
  const Arguments args(kOp);
  const int64_t n = y.NumElements();
  args.CheckDType("y", y.dtype, kFloatDTypes);
  args.CheckElements("a", a, y.dtype, n);
  args.CheckElements("b", b, y.dtype, n);
  args.CheckElements("y", y, y.dtype, n);
  args.CheckSameOrDisjoint("y", y, "a", a);
  args.CheckSameOrDisjoint("y", y, "b", b);
  stream.Enqueue(
      {kOp, {a, b}, {y}, {AddCost(a, b, y)}, {OnCpu(AddCpu, a, b, y), OnCuda(AddCuda, a, b, y)}});
}

void Accumulate(Stream& stream, ConstView x, View y) {
  constexpr const char* kOp = "accumulate";
  const Arguments args(kOp);
  const int64_t n = y.NumElements();
  args.CheckDType("y", y.dtype, kFloatDTypes);
  args.CheckElements("x", x, y.dtype, n);
  args.CheckElements("y", y, y.dtype, n);
  args.CheckSameOrDisjoint("y", y, "x", x);
  stream.Enqueue(
      {kOp, {x}, {y}, {AddCost(x, y, y)}, {OnCpu(AddCpu, y, x, y), OnCuda(AddCuda, y, x, y)}});
}

void Scale(Stream& stream, float factor, View y) {
  constexpr const char* kOp = "scale";
  const Arguments args(kOp);
  args.CheckDType("y", y.dtype, kFloatDTypes);
  args.CheckElements("y", y, y.dtype, y.NumElements());
  const double bytes = static_cast<double>(y.bytes());
  const Cost cost{
      .flops = static_cast<double>(y.NumElements()), .bytes_read = bytes, .bytes_written = bytes};
  stream.Enqueue(
      {kOp, {}, {y}, {cost}, {OnCpu(ScaleCpu, factor, y), OnCuda(ScaleCuda, factor, y)}});
}

void Fill(Stream& stream, float value, View y) {
  constexpr const char* kOp = "fill";
  const Arguments args(kOp);
  const int64_t n = y.NumElements();
  args.CheckElements("y", y, y.dtype, n);
  const Cost cost{.bytes_written = static_cast<double>(y.bytes())};
  const auto enqueue = [&](uint32_t bits) {
    stream.Enqueue({kOp, {}, {y}, {cost}, {OnCpu(FillCpu, bits, y), OnCuda(FillCuda, bits, y)}});
  };
  switch (y.dtype) {
    case DType::kFloat32:
      return enqueue(std::bit_cast<uint32_t>(value));
    case DType::kBFloat16:
      return enqueue(BFloat16(value).bits);
    case DType::kFloat16:
      return enqueue(Float16(value).bits);
    case DType::kInt32:
      if (!IsInt32(value)) args.Fail("int32 does not hold " + Shortest(value));
      return enqueue(static_cast<uint32_t>(static_cast<int32_t>(value)));
    default:
      args.CheckDType("y", y.dtype,
                      {DType::kFloat32, DType::kBFloat16, DType::kFloat16, DType::kInt32});
  }
}

void Copy(Stream& stream, ConstView x, View y) {
  constexpr const char* kOp = "copy";
  const Arguments args(kOp);
  args.CheckElements("x", x, y.dtype, y.NumElements());
  args.CheckSameOrDisjoint("y", y, "x", x);
  const double bytes = static_cast<double>(y.bytes());
  const Cost cost{.bytes_read = bytes, .bytes_written = bytes};
  const OnGpu gpu{.launches = bytes > 0 && x.data != y.data};
  stream.Enqueue({kOp,
                  {x},
                  {y},
                  {{KernelKind::kCopy, cost, gpu}},
                  {OnCpu(CopyCpu, x, y), OnCuda(CopyCuda, x, y)}});
}

}  // namespace fsdp
