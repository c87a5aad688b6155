#include "trainer/ops/quantize.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

#include "trainer/core/view.h"
#include "trainer/ops/arguments.h"
#include "trainer/ops/cpu/floats.h"
#include "trainer/ops/cpu/isa.h"
#include "trainer/ops/cpu/quantize_kernels.h"
#include "trainer/ops/quantize_backends.h"
#include "trainer/runtime/operation.h"

namespace fsdp {
namespace {

using Kind = QuantizedRow::Kind;

constexpr int64_t kGrain = 8;  // Units a thread.
constexpr int64_t kUnit = kQuantizedUnit;

// A unit of a row: slots [slot, slot + kUnit). Counted from `slot`, [begin, end) hold elements and
// [stored_begin, stored_end) are packed.
struct Unit {
  Unit(const QuantizedRow& row, int64_t number)
      : row(row),
        slot((number - row.unit) * kUnit),
        begin(Inside(row.first)),
        end(Inside(row.last)),
        stored_begin(Inside(row.stored_first)),
        stored_end(Inside(row.stored_last)) {}

  int64_t size() const { return end - begin; }
  bool whole() const { return size() == kUnit; }
  // The index of its first element in the shard.
  int64_t element() const { return row.element + slot + begin; }
  // The index of its first block in its row.
  int64_t first_block(int block) const { return slot / block; }
  // The byte of its first packed slot.
  int64_t data(int64_t slots, int64_t bytes) const {
    return row.data + (slot + stored_begin - row.stored_first) / slots * bytes;
  }

  const QuantizedRow& row;
  const int64_t slot, begin, end, stored_begin, stored_end;

 private:
  int64_t Inside(int64_t at) const { return std::clamp<int64_t>(at - slot, 0, kUnit); }
};

template <typename Body>
void ForEachUnit(ThreadPool& pool, const QuantizedTable& table, const Body& body) {
  const std::span<const QuantizedRow> rows(table.rows.As<QuantizedRow>(),
                                           table.rows.bytes() / sizeof(QuantizedRow));
  pool.ParallelFor(table.sizes.units, kGrain, [&](int64_t begin, int64_t end) {
    auto next = std::upper_bound(rows.begin(), rows.end(), begin,
                                 [](int64_t unit, const auto& row) { return unit < row.unit; });
    for (int64_t unit = begin; unit < end; ++unit) {
      while (next != rows.end() && next->unit <= unit) ++next;
      body(Unit(*(next - 1), unit));
    }
  });
}

// Elements [begin, begin + n) of x to or from floats that are not x's own.
void CopyToFloats(const ConstView& x, int64_t begin, int64_t n, float* to) {
  if (n == 0) return;
  const float* from = ReadFloats(x, begin, n, to);
  if (from != to) std::memcpy(to, from, n * sizeof(float));
}
void CopyFromFloats(const float* from, int64_t n, const View& y, int64_t begin) {
  if (y.dtype != DType::kFloat32) return WriteFloats(from, n, y, begin);
  if (n > 0) std::memcpy(y.As<float>() + begin, from, n * sizeof(float));
}

// The packed bytes of a unit that a kernel handles as a whole.
struct Codes {
  Codes(const QuantizedTable& table, const Unit& unit)
      : block(table.sizes.options.block),
        form(static_cast<int>(table.sizes.options.form)),
        slots(table.sizes.options.form == QuantizedForm::kInt4 ? 2 : 1),
        at(unit.data(slots, 1)),
        bytes((unit.stored_end - unit.stored_begin) / slots),
        first_scale(unit.row.scales + unit.first_block(block) * int64_t{sizeof(float)}),
        scales(std::min(kUnit / block, unit.row.blocks - unit.first_block(block))) {}

  const int block, form;
  const int64_t slots;  // A byte.
  const int64_t at, bytes, first_scale, scales;
};

void QuantizeUnit(const QuantizeKernels& kernels, const QuantizedTable& table, const Unit& unit,
                  const float* x, std::byte* packed) {
  const Codes codes(table, unit);
  auto* scales = reinterpret_cast<float*>(packed + codes.first_scale);
  auto* to = reinterpret_cast<uint8_t*>(packed + codes.at);
  if (unit.whole()) {
    kernels.quantize[codes.form](x, codes.block, scales, to);
  } else {
    float own_scales[4];
    uint8_t own[kUnit];
    kernels.quantize[codes.form](x, codes.block, own_scales, own);
    std::memcpy(scales, own_scales, codes.scales * sizeof(float));
    std::memcpy(to, own + unit.stored_begin / codes.slots, codes.bytes);
  }
  if (unit.slot + kUnit < unit.row.last) return;
  std::byte* const end = packed + unit.row.scales + unit.row.blocks * sizeof(float);
  const int64_t rest = unit.row.blocks * sizeof(float) % kQuantizedAlignment;
  if (rest > 0) std::memset(end, 0, kQuantizedAlignment - rest);
}

// y: kUnit floats.
void DequantizeUnit(const QuantizeKernels& kernels, const QuantizedTable& table, const Unit& unit,
                    bool adds, const std::byte* packed, float* y) {
  const Codes codes(table, unit);
  const auto dequantize = adds ? kernels.add[codes.form] : kernels.dequantize[codes.form];
  const auto* scales = reinterpret_cast<const float*>(packed + codes.first_scale);
  const auto* from = reinterpret_cast<const uint8_t*>(packed + codes.at);
  if (unit.whole()) return dequantize(from, scales, codes.block, y);
  float own_scales[4] = {};
  uint8_t own[kUnit] = {};
  std::memcpy(own_scales, scales, codes.scales * sizeof(float));
  std::memcpy(own + unit.stored_begin / codes.slots, from, codes.bytes);
  dequantize(own, own_scales, codes.block, y);
}

template <typename AnyView>
AnyView Raw(const QuantizedTable& table, const Unit& unit, const AnyView& packed) {
  const DType dtype = table.sizes.options.raw;
  return {packed.data + unit.data(1, SizeOf(dtype)), dtype,
          Shape{unit.stored_end - unit.stored_begin}};
}

void AddUnit(const QuantizeKernels& kernels, const QuantizedTable& table, const Unit& unit,
             const ConstView& packed, float* y) {
  if (unit.row.kind == Kind::kQuantized) {
    return DequantizeUnit(kernels, table, unit, /*adds=*/true, packed.data, y);
  }
  FloatPiece buffer;
  const float* raw = ReadFloats(Raw(table, unit, packed), 0, unit.size(), buffer);
#pragma omp simd
  for (int64_t i = 0; i < unit.size(); ++i) y[unit.begin + i] += raw[i];
}

// Writes the first term of a sum, or the only one. y: kUnit floats; only those of the unit's
// elements matter.
void ReadUnit(const QuantizeKernels& kernels, const QuantizedTable& table, const Unit& unit,
              const ConstView& packed, float* y) {
  switch (unit.row.kind) {
    case Kind::kQuantized:
      return DequantizeUnit(kernels, table, unit, /*adds=*/false, packed.data, y);
    case Kind::kRaw:
      return CopyToFloats(Raw(table, unit, packed), 0, unit.size(), y + unit.begin);
    case Kind::kGap:
      std::fill_n(y + unit.begin, unit.size(), 0.0f);
  }
}

const QuantizeKernels& Kernels() { return ForThisCpu(kQuantizeAvx2, kQuantizeAvx512); }

void QuantizeCpu(ThreadPool& pool, const ConstView& x, const QuantizedTable& table,
                 const View& packed) {
  ForEachUnit(pool, table, [&](const Unit& unit) {
    if (unit.row.kind == Kind::kGap) return;
    FloatPiece buffer;
    const float* from = buffer;
    if (unit.whole()) {
      from = ReadFloats(x, unit.element(), kUnit, buffer);
    } else {
      std::fill_n(buffer, unit.begin, 0.0f);
      CopyToFloats(x, unit.element(), unit.size(), buffer + unit.begin);
      std::fill_n(buffer + unit.end, kUnit - unit.end, 0.0f);
    }
    if (unit.row.kind == Kind::kQuantized) {
      return QuantizeUnit(Kernels(), table, unit, from, packed.data);
    }
    const View raw = Raw(table, unit, packed);
    CopyFromFloats(from, raw.NumElements(), raw, 0);
  });
}

void DequantizeCpu(ThreadPool& pool, const ConstView& packed, const QuantizedTable& table,
                   const View& y) {
  ForEachUnit(pool, table, [&](const Unit& unit) {
    if (unit.size() == 0) return;
    FloatPiece buffer;
    const bool in_place = unit.whole() && y.dtype == DType::kFloat32;
    float* const to = in_place ? y.As<float>() + unit.element() : buffer;
    ReadUnit(Kernels(), table, unit, packed, to);
    if (!in_place) CopyFromFloats(to + unit.begin, unit.size(), y, unit.element());
  });
}

void DequantizeSumCpu(ThreadPool& pool, const ConstView& packed, const QuantizedTable& table,
                      const View& y) {
  const int64_t ranks = packed.shape[0], stride = packed.shape[1];
  const ConstView all = packed.Reshape({ranks * stride});
  ForEachUnit(pool, table, [&](const Unit& unit) {
    if (unit.size() == 0) return;
    FloatPiece buffer;
    float* const to = unit.whole() ? y.As<float>() + unit.element() : buffer;
    ReadUnit(Kernels(), table, unit, all.Slice(0, stride), to);
    if (unit.row.kind != Kind::kGap) {
      for (int64_t r = 1; r < ranks; ++r) {
        AddUnit(Kernels(), table, unit, all.Slice(r * stride, stride), to);
      }
    }
    if (!unit.whole()) CopyFromFloats(to + unit.begin, unit.size(), y, unit.element());
  });
}

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
