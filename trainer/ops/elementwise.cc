#include "trainer/ops/elementwise.h"

#include <bit>
#include <cmath>

#include "trainer/ops/arguments.h"
#include "trainer/ops/cpu/elementwise_cpu.h"
#include "trainer/ops/cuda/elementwise_cuda.h"
#include "trainer/runtime/operation.h"

namespace fsdp {
namespace {

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
      if (!IsInt32(value)) args.Fail("int32 does not hold " + std::to_string(value));
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
