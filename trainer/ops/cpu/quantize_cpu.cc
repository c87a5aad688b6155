#include "trainer/ops/cpu/quantize_cpu.h"

#include <algorithm>
#include <cstring>
#include <span>

#include "trainer/ops/cpu/floats.h"
#include "trainer/ops/cpu/isa.h"
#include "trainer/ops/cpu/quantize_kernels.h"

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

}  // namespace

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

}  // namespace fsdp
