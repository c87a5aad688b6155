#include <cmath>

#include "trainer/ops/cuda/elements.h"
#include "trainer/ops/quantize_backends.h"

namespace fsdp {
namespace {

using Kind = QuantizedRow::Kind;

constexpr int kSlots = kQuantizedUnit / kWarp;  // Per lane: some whole lanes make a block.
constexpr int kWarps = 8;                       // Per block of threads.
constexpr int kTurns = 4;                       // Units of a warp, one after the other.

// The parameters of a table that all kernels use.
struct Table {
  const QuantizedRow* rows;
  int count;
  int64_t units;
  int block_lanes, block_shift;  // Lanes of a block of elements, and log2 of its slots.
  DType raw;
};

// Slots [slot, slot + kSlots) of a row; [begin, end) among them hold elements.
struct Lane {
  __device__ Lane(const QuantizedRow& row, int64_t unit)
      : slot((unit - row.unit) * kQuantizedUnit + threadIdx.x % kWarp * kSlots),
        begin(Inside(row.first)),
        end(Inside(row.last)),
        stored(slot >= row.stored_first && slot < row.stored_last),
        element(row.element + slot),
        packed(slot - row.stored_first) {}

  int64_t slot;
  int begin, end;
  bool stored;      // All of them are, or none.
  int64_t element;  // The element in `slot`.
  int64_t packed;   // `slot` among those that are stored.

 private:
  __device__ int Inside(int64_t at) const {
    const int64_t inside = at - slot;
    return inside < 0 ? 0 : inside > kSlots ? kSlots : static_cast<int>(inside);
  }
};

// body(row, lane, unit) for those of this warp. A unit's row is all lanes'.
template <typename Body>
__device__ void ForEachUnit(const Table& table, const Body& body) {
  const int64_t warp = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp;
  int64_t unit = warp * kTurns;
  if (unit >= table.units) return;
  int row = 0;  // The last one that begins at `unit` or before.
  for (int more = table.count - 1; more > 0;) {
    const int step = (more + 1) / 2;
    if (table.rows[row + step].unit <= unit) {
      row += step;
      more -= step;
    } else {
      more = step - 1;
    }
  }
  const int64_t end = unit + kTurns < table.units ? unit + kTurns : table.units;
  for (; unit < end; ++unit) {
    while (row + 1 < table.count && table.rows[row + 1].unit <= unit) ++row;
    body(table.rows[row], Lane(table.rows[row], unit));
  }
}

// Whether all slots of a lane hold elements, which lie where packs may be used.
template <typename T>
__device__ bool InPacks(const Lane& lane, bool packs) {
  return packs && lane.begin == 0 && lane.end == kSlots && lane.element % kPack<T> == 0;
}

// Elements of a lane, zeros where there are none.
template <typename T>
__device__ void ReadElements(const T* x, const Lane& lane, bool packs, float (&values)[kSlots]) {
  if (InPacks<T>(lane, packs)) {
    Elements<T, kSlots> elements;
    elements.Read(x + lane.element, kSlots, /*packs=*/true);
#pragma unroll
    for (int i = 0; i < kSlots; ++i) values[i] = elements[i];
  } else {
#pragma unroll
    for (int i = 0; i < kSlots; ++i) {
      values[i] = i >= lane.begin && i < lane.end ? ToFloat(x[lane.element + i]) : 0.0f;
    }
  }
}
template <typename T>
__device__ void WriteElements(const float (&values)[kSlots], const Lane& lane, bool packs, T* y) {
  if (InPacks<T>(lane, packs)) {
    Elements<T, kSlots> elements;
    elements.Set(values);
    elements.Write(y + lane.element, kSlots, /*packs=*/true);
  } else {
#pragma unroll
    for (int i = 0; i < kSlots; ++i) {
      if (i >= lane.begin && i < lane.end) y[lane.element + i] = FromFloat<T>(values[i]);
    }
  }
}

// f(Is<T>()) for raw elements of this dtype.
template <typename Function>
__device__ void ForRaw(DType dtype, const Function& f) {
  if (dtype == DType::kFloat32) return f(Is<float>());
  if (dtype == DType::kBFloat16) return f(Is<__nv_bfloat16>());
  f(Is<__half>());
}

__device__ void WriteRaw(DType dtype, const float (&values)[kSlots], const Lane& lane,
                         std::byte* to) {
  ForRaw(dtype, [&](auto is) {
    using T = typename decltype(is)::type;
    Elements<T, kSlots> elements;
    elements.Set(values);
    elements.Write(reinterpret_cast<T*>(to) + lane.packed, kSlots, /*packs=*/true);
  });
}
__device__ void ReadRaw(DType dtype, const std::byte* from, const Lane& lane,
                        float (&values)[kSlots]) {
  ForRaw(dtype, [&](auto is) {
    using T = typename decltype(is)::type;
    Elements<T, kSlots> elements;
    elements.Read(reinterpret_cast<const T*>(from) + lane.packed, kSlots, /*packs=*/true);
#pragma unroll
    for (int i = 0; i < kSlots; ++i) values[i] = elements[i];
  });
}

// Forms: codes of quotients, and quotients of codes, as cpu/quantize_kernels.cc has them.
struct Int8 {
  static constexpr auto kForm = QuantizedForm::kInt8;
  static constexpr int kBits = 8;
  __device__ static uint32_t Encode(float x) {
    return static_cast<uint32_t>(__float2int_rn(x)) & 0xff;
  }
  __device__ static float Decode(uint32_t code) {
    return __int2float_rn(static_cast<int>(code ^ 0x80) - 0x80);
  }
};
struct Int4 {
  static constexpr auto kForm = QuantizedForm::kInt4;
  static constexpr int kBits = 4;
  __device__ static uint32_t Encode(float x) {
    return static_cast<uint32_t>(__float2int_rn(x)) & 0xf;
  }
  __device__ static float Decode(uint32_t code) {
    return __int2float_rn(static_cast<int>(code ^ 0x8) - 0x8);
  }
};
struct Fp8 {
  static constexpr auto kForm = QuantizedForm::kFp8;
  static constexpr int kBits = 8;
  __device__ static uint32_t Encode(float x) {
    const uint32_t sign = __float_as_uint(x) >> 24 & 0x80;
    const int bits = __float_as_int(x) & 0x7fffffff;
    const int normal = ((bits + 0x7ffff + (bits >> 20 & 1)) >> 20) - ((127 - 7) << 3);
    const int subnormal = __float_as_int(__fadd_rn(__int_as_float(bits), 0x1p14f)) & 0x7fffff;
    return sign | static_cast<uint32_t>(max(normal, min(subnormal, 8)));
  }
  __device__ static float Decode(uint32_t code) {
    const uint32_t half = (code & 0x80) << 8 | (code & 0x7f) << 7;
    return __fmul_rn(__half2float(__ushort_as_half(static_cast<uint16_t>(half))), 256.0f);
  }
};
template <typename Form>
using LaneCodes = Words<kSlots * Form::kBits / 32>;

template <typename Form>
__device__ void QuantizeLane(const Table& table, const QuantizedRow& row, const Lane& lane,
                             const float (&values)[kSlots], std::byte* packed) {
  uint32_t most = 0;
#pragma unroll
  for (const float value : values) most = max(most, __float_as_uint(value) & 0x7fffffffu);
  for (int step = 1; step < table.block_lanes; step *= 2) {
    most = max(most, __shfl_xor_sync(kAllLanes, most, step));
  }
  const bool finite = most < 0x7f800000u;
  const float quotient = __fdiv_rn(__uint_as_float(most), kLevels<Form::kForm>);
  const float scale = finite ? fminf(fmaxf(quotient, kLeastScale), kMostScale<Form::kForm>) : NAN;
  const float inverse = __frcp_rn(scale);
  LaneCodes<Form> codes{};
  if (finite) {
#pragma unroll
    for (int i = 0; i < kSlots; ++i) {
      codes.at[i * Form::kBits / 32] |= Form::Encode(__fmul_rn(values[i], inverse))
                                        << (i * Form::kBits % 32);
    }
  }
  if (lane.stored) {
    reinterpret_cast<LaneCodes<Form>*>(packed + row.data)[lane.packed / kSlots] = codes;
  }
  auto* const scales = reinterpret_cast<float*>(packed + row.scales);
  const int number = static_cast<int>(threadIdx.x % kWarp);
  const int64_t block = lane.slot >> table.block_shift;
  if (number % table.block_lanes == 0 && block < row.blocks) scales[block] = scale;
  // Behind the last scale.
  constexpr int kPadded = kQuantizedAlignment / sizeof(float);
  const int64_t first_slot = lane.slot - number * kSlots;
  if (first_slot + kQuantizedUnit >= row.last && number < kPadded - 1) {
    const int64_t behind = row.blocks + number;
    if (behind < CeilDiv(row.blocks, kPadded) * kPadded) scales[behind] = 0;
  }
}

// One rank's, where the lane has elements.
template <typename Form>
__device__ void DequantizeLane(const Table& table, const QuantizedRow& row, const Lane& lane,
                               const std::byte* packed, float (&values)[kSlots]) {
  if (row.kind == Kind::kRaw) return ReadRaw(table.raw, packed + row.data, lane, values);
  const auto codes =
      reinterpret_cast<const LaneCodes<Form>*>(packed + row.data)[lane.packed / kSlots];
  const float scale =
      reinterpret_cast<const float*>(packed + row.scales)[lane.slot >> table.block_shift];
#pragma unroll
  for (int i = 0; i < kSlots; ++i) {
    const uint32_t code = codes.at[i * Form::kBits / 32] >> (i * Form::kBits % 32);
    values[i] = __fmul_rn(Form::Decode(code & ((1u << Form::kBits) - 1)), scale);
  }
}

template <typename Form, typename T>
__global__ void QuantizeUnits(const Table table, const T* x, bool packs, std::byte* packed) {
  ForEachUnit(table, [&](const QuantizedRow& row, const Lane& lane) {
    if (row.kind == Kind::kGap) return;
    float values[kSlots];
    ReadElements(x, lane, packs, values);
    if (row.kind == Kind::kQuantized) return QuantizeLane<Form>(table, row, lane, values, packed);
    if (lane.stored) WriteRaw(table.raw, values, lane, packed + row.data);
  });
}

template <typename Form, typename T>
__global__ void DequantizeUnits(const Table table, const std::byte* packed, bool packs, T* y) {
  ForEachUnit(table, [&](const QuantizedRow& row, const Lane& lane) {
    if (lane.begin == lane.end) return;
    float values[kSlots] = {};
    if (row.kind != Kind::kGap) DequantizeLane<Form>(table, row, lane, packed, values);
    WriteElements(values, lane, packs, y);
  });
}

template <typename Form>
__global__ void SumUnits(const Table table, const std::byte* packed, int64_t ranks, int64_t stride,
                         bool packs, float* y) {
  ForEachUnit(table, [&](const QuantizedRow& row, const Lane& lane) {
    if (lane.begin == lane.end) return;
    float sums[kSlots] = {};
    if (row.kind != Kind::kGap) {
      DequantizeLane<Form>(table, row, lane, packed, sums);
      for (int64_t r = 1; r < ranks; ++r) {
        float values[kSlots];
        DequantizeLane<Form>(table, row, lane, packed + r * stride, values);
#pragma unroll
        for (int i = 0; i < kSlots; ++i) sums[i] = __fadd_rn(sums[i], values[i]);
      }
    }
    WriteElements(sums, lane, packs, y);
  });
}

Table TableOf(const QuantizedTable& table) {
  const int block = table.sizes.options.block;
  return {table.rows.As<QuantizedRow>(),
          static_cast<int>(table.rows.bytes() / sizeof(QuantizedRow)),
          table.sizes.units,
          block / kSlots,
          block == 64    ? 6
          : block == 128 ? 7
                         : 8,
          table.sizes.options.raw};
}

dim3 Grid(const QuantizedTable& table) {
  return dim3(static_cast<unsigned>(CeilDiv(table.sizes.units, kWarps * kTurns)));
}

// f(Is<Form>()) for the form of a table.
template <typename Function>
void ForForm(const QuantizedTable& table, const Function& f) {
  switch (table.sizes.options.form) {
    case QuantizedForm::kInt8:
      return f(Is<Int8>());
    case QuantizedForm::kFp8:
      return f(Is<Fp8>());
    case QuantizedForm::kInt4:
      return f(Is<Int4>());
  }
}

}  // namespace

void QuantizeCuda(CudaStreamHandle stream, const ConstView& x, const QuantizedTable& table,
                  const View& packed) {
  ForForm(table, [&](auto form) {
    ForFloat(x.dtype, [&](auto is) {
      using T = typename decltype(is)::type;
      Launch<QuantizeUnits<typename decltype(form)::type, T>>(stream, Grid(table), kWarps * kWarp,
                                                              0, TableOf(table), x.As<T>(),
                                                              IsAligned(x.data), packed.data);
    });
  });
}

void DequantizeCuda(CudaStreamHandle stream, const ConstView& packed, const QuantizedTable& table,
                    const View& y) {
  ForForm(table, [&](auto form) {
    ForFloat(y.dtype, [&](auto is) {
      using T = typename decltype(is)::type;
      Launch<DequantizeUnits<typename decltype(form)::type, T>>(stream, Grid(table), kWarps * kWarp,
                                                                0, TableOf(table), packed.data,
                                                                IsAligned(y.data), y.As<T>());
    });
  });
}

void DequantizeSumCuda(CudaStreamHandle stream, const ConstView& packed,
                       const QuantizedTable& table, const View& y) {
  ForForm(table, [&](auto form) {
    Launch<SumUnits<typename decltype(form)::type>>(
        stream, Grid(table), kWarps * kWarp, 0, TableOf(table), packed.data, packed.shape[0],
        packed.shape[1], IsAligned(y.data), y.As<float>());
  });
}

}  // namespace fsdp
