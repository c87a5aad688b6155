#include "trainer/ops/elementwise.h"

#include <bit>
#include <cmath>

#include "trainer/ops/arguments.h"
#include "trainer/ops/cpu/elementwise_cpu.h"

namespace fsdp {
namespace {

bool IsInt32(float value) {
  return value >= -0x1p31f && value < 0x1p31f && std::trunc(value) == value;
}

// y = a + b, which have been checked. One addition an element.
void EnqueueAdd(Stream& stream, const Arguments& args, Operation operation, ConstView a,
                ConstView b, View y) {
  const int64_t n = y.NumElements();
  operation.cost = {.flops = 1.0 * n,
                    .bytes_read = static_cast<double>(a.bytes() + b.bytes()),
                    .bytes_written = static_cast<double>(y.bytes())};
  const auto enqueue = [&](auto of) {
    using T = decltype(of);
    stream.Enqueue(operation,
                   [=](ThreadPool& pool) { AddCpu(pool, a.As<T>(), b.As<T>(), n, y.As<T>()); });
  };
  switch (y.dtype) {
    case DType::kFloat32:
      return enqueue(float());
    case DType::kBFloat16:
      return enqueue(BFloat16());
    case DType::kFloat16:
      return enqueue(Float16());
    default:
      args.Fail("y is " + std::string(Name(y.dtype)) + ", want fp32, bf16 or fp16");
  }
}

}  // namespace

void Add(Stream& stream, ConstView a, ConstView b, View y) {
  constexpr const char* kOp = "add";
  const Arguments args(kOp);
  const int64_t n = y.NumElements();
  args.CheckElements("a", a, y.dtype, n);
  args.CheckElements("b", b, y.dtype, n);
  args.CheckElements("y", y, y.dtype, n);
  args.CheckSameOrDisjoint("y", y, "a", a);
  args.CheckSameOrDisjoint("y", y, "b", b);
  EnqueueAdd(stream, args, {kOp, {a, b}, {y}, {}}, a, b, y);
}

void Accumulate(Stream& stream, ConstView x, View y) {
  constexpr const char* kOp = "accumulate";
  const Arguments args(kOp);
  const int64_t n = y.NumElements();
  args.CheckElements("x", x, y.dtype, n);
  args.CheckElements("y", y, y.dtype, n);
  args.CheckSameOrDisjoint("y", y, "x", x);
  EnqueueAdd(stream, args, {kOp, {x}, {y}, {}}, y, x, y);
}

void Fill(Stream& stream, float value, View y) {
  constexpr const char* kOp = "fill";
  const Arguments args(kOp);
  const int64_t n = y.NumElements();
  args.CheckElements("y", y, y.dtype, n);
  const Operation operation{kOp, {}, {y}, {.bytes_written = static_cast<double>(y.bytes())}};
  const auto enqueue = [&](auto bits) {
    stream.Enqueue(operation,
                   [=](ThreadPool& pool) { FillCpu(pool, bits, n, y.As<decltype(bits)>()); });
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
      args.Fail("y is " + std::string(Name(y.dtype)) + ", want fp32, bf16, fp16 or int32");
  }
}

void Copy(Stream& stream, ConstView x, View y) {
  constexpr const char* kOp = "copy";
  const Arguments args(kOp);
  args.CheckElements("x", x, y.dtype, y.NumElements());
  args.CheckSameOrDisjoint("y", y, "x", x);
  const double bytes = static_cast<double>(y.bytes());
  stream.Enqueue({kOp, {x}, {y}, {.bytes_read = bytes, .bytes_written = bytes}},
                 [=](ThreadPool& pool) { CopyCpu(pool, x.data, y.bytes(), y.data); });
}

}  // namespace fsdp
