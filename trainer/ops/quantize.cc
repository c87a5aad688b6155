#include "trainer/ops/quantize.h"

#include <utility>

#include "trainer/ops/arguments.h"
#include "trainer/ops/cpu/quantize_cpu.h"
#include "trainer/ops/cuda/quantize_cuda.h"
#include "trainer/runtime/operation.h"

namespace fsdp {
namespace {

constexpr int64_t kAlignment = 16;

void CheckTable(const Arguments& args, const QuantizedTable& table) {
  const ConstView& rows = table.rows;
  args.Require(rows.dtype == DType::kUInt8 && rows.bytes() % sizeof(QuantizedRow) == 0,
               "rows, want a table of WriteQuantizedRows()");
  args.CheckElements("rows", rows, DType::kUInt8, rows.bytes());
}

// `bytes` of it: a rank's.
void CheckPacked(const Arguments& args, const QuantizedTable& table, const ConstView& packed,
                 int64_t bytes) {
  args.CheckElements("packed", packed, DType::kUInt8, packed.NumElements());
  if (bytes < table.sizes.bytes) {
    args.Fail("packed has " + std::to_string(bytes) + " bytes, want at least " +
              std::to_string(table.sizes.bytes));
  }
  args.Require(reinterpret_cast<uintptr_t>(packed.data) % kAlignment == 0,
               "packed, want its begin at a multiple of 16 bytes");
}

void CheckElements(const Arguments& args, const char* name, const ConstView& view,
                   const QuantizedTable& table, const ConstView& packed) {
  args.CheckDType(name, view.dtype, kFloatDTypes);
  args.Check(name, view, view.dtype, {table.sizes.n});
  args.CheckDisjoint(name, view, "packed", packed);
}

double RowBytes(const QuantizedTable& table) { return static_cast<double>(table.rows.bytes()); }

}  // namespace

void Quantize(Stream& stream, ConstView x, const QuantizedTable& table, View packed) {
  constexpr const char* kOp = "quantize";
  const Arguments args(kOp);
  CheckTable(args, table);
  CheckPacked(args, table, packed, packed.bytes());
  CheckElements(args, "x", x, table, packed);
  const QuantizedSizes& sizes = table.sizes;
  const View written = packed.Reshape({packed.NumElements()}).Slice(0, sizes.bytes);
  const auto carried = static_cast<double>((sizes.quantized + sizes.raw) * SizeOf(x.dtype));
  const Cost cost{.flops = 2 * static_cast<double>(sizes.quantized),
                  .bytes_read = carried + RowBytes(table),
                  .bytes_written = static_cast<double>(sizes.bytes)};
  stream.Enqueue(
      {kOp,
       {x, table.rows},
       {written},
       {{cost, {.launches = sizes.units > 0}}},
       {OnCpu(QuantizeCpu, x, table, written), OnCuda(QuantizeCuda, x, table, written)}});
}

void Dequantize(Stream& stream, ConstView packed, const QuantizedTable& table, View y) {
  constexpr const char* kOp = "dequantize";
  const Arguments args(kOp);
  CheckTable(args, table);
  CheckPacked(args, table, packed, packed.bytes());
  CheckElements(args, "y", y, table, packed);
  const QuantizedSizes& sizes = table.sizes;
  const ConstView read = packed.Reshape({packed.NumElements()}).Slice(0, sizes.bytes);
  const Cost cost{.flops = static_cast<double>(sizes.quantized),
                  .bytes_read = static_cast<double>(sizes.bytes) + RowBytes(table),
                  .bytes_written = static_cast<double>(y.bytes())};
  stream.Enqueue({kOp,
                  {read, table.rows},
                  {y},
                  {{cost, {.launches = sizes.units > 0}}},
                  {OnCpu(DequantizeCpu, read, table, y), OnCuda(DequantizeCuda, read, table, y)}});
}

void DequantizeSum(Stream& stream, ConstView packed, const QuantizedTable& table, View y) {
  constexpr const char* kOp = "dequantize_sum";
  const Arguments args(kOp);
  CheckTable(args, table);
  args.CheckRank("packed", packed, DType::kUInt8, 2);
  const int64_t ranks = packed.shape[0], stride = packed.shape[1];
  args.Require(ranks > 0, "packed of no rank");
  args.Require(stride % kAlignment == 0, "a rank's part of packed, want a multiple of 16 bytes");
  CheckPacked(args, table, packed, stride);
  args.CheckElements("y", y, DType::kFloat32, table.sizes.n);
  CheckElements(args, "y", y, table, packed);
  const QuantizedSizes& sizes = table.sizes;
  const auto parts = static_cast<double>(ranks);
  const Cost cost{.flops = (2 * parts - 1) * static_cast<double>(sizes.quantized) +
                           (parts - 1) * static_cast<double>(sizes.raw),
                  .bytes_read = parts * static_cast<double>(sizes.bytes) + RowBytes(table),
                  .bytes_written = static_cast<double>(y.bytes())};
  stream.Enqueue(
      {kOp,
       {packed, table.rows},
       {y},
       {{cost, {.launches = sizes.units > 0}}},
       {OnCpu(DequantizeSumCpu, packed, table, y), OnCuda(DequantizeSumCuda, packed, table, y)}});
}

}  // namespace fsdp
