#include "trainer/ops/weight_codes.h"

#include <immintrin.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>

#include "trainer/ops/arguments.h"
#include "trainer/ops/cpu/floats.h"
#include "trainer/ops/cpu/isa.h"
#include "trainer/ops/cpu/quantize_kernels.h"
#include "trainer/ops/nf4.h"
#include "trainer/ops/quantize_backends.h"
#include "trainer/ops/state_codes.h"
#include "trainer/runtime/operation.h"

namespace fsdp {
namespace {

constexpr int64_t kUnit = 256, kUnitBlocks = kUnit / kWeightBlock;  // A kernel's elements.
constexpr int64_t kPairs = kWeightBlock / 2;                        // Bytes of a block in nf4.
constexpr int64_t kGrain = 8;                                       // Units a thread.
constexpr int kInt8 = 0;                                            // Among QuantizeKernels.
constexpr int kZeroIndex = 127;                                     // The scale value 0.
constexpr uint8_t kZeroPair = 0x77;                                 // Two codes of 0 in nf4.
constexpr float kLeastDivisor = 1e-38f;

const QuantizeKernels& Int8Kernels() { return ForThisCpu(kQuantizeAvx2, kQuantizeAvx512); }

// A block, or fewer elements and zeros behind them. Returns its scale.
float EncodeNf4(const float* x, bool whole, uint8_t* codes) {
  uint32_t largest = 0;
#pragma omp simd reduction(max : largest)
  for (int64_t i = 0; i < kWeightBlock; ++i) {
    largest = std::max(largest, std::bit_cast<uint32_t>(x[i]) & 0x7fffffffu);
  }
  if (largest >= 0x7f800000u) {
    std::memset(codes, kZeroPair, kPairs);
    return NAN;
  }
  const auto absmax = std::bit_cast<float>(largest);
  const float divisor = std::max(absmax, kLeastDivisor), inverse = 1 / divisor;
  int32_t numbers[kWeightBlock];
#pragma omp simd
  for (int64_t i = 0; i < kWeightBlock; ++i) {
    const float quotient = whole ? x[i] * inverse : x[i] / divisor;
    int32_t number = 0;
    for (const float last : kNf4LastOf) number += quotient > last;
    numbers[i] = number;
  }
  for (int64_t i = 0; i < kPairs; ++i) {
    codes[i] = static_cast<uint8_t>(numbers[2 * i] << 4 | numbers[2 * i + 1]);
  }
  return whole ? absmax : divisor;
}

// Four blocks, and zeros behind them: count elements.
void EncodeUnit(WeightCode code, const float* x, int64_t count, float* scales, uint8_t* codes) {
  if (code == WeightCode::kInt8) {
    Int8Kernels().quantize[kInt8](x, kWeightBlock, scales, codes);
    std::fill(scales + (count + kWeightBlock - 1) / kWeightBlock, scales + kUnitBlocks, 0.0f);
    return;
  }
  for (int64_t b = 0; b < kUnitBlocks; ++b) {
    const int64_t left = count - b * kWeightBlock;
    uint8_t* const to = codes + b * kPairs;
    if (left > 0) {
      scales[b] = EncodeNf4(x + b * kWeightBlock, left >= kWeightBlock, to);
    } else {
      scales[b] = 0;
      std::memset(to, kZeroPair, kPairs);
    }
  }
}

void EncodeRecord(WeightCode code, std::span<const float> x, float* scales, uint8_t* codes) {
  const int64_t unit_bytes = RecordCodeBytes(code) / (kWeightRecord / kUnit);
  for (int64_t at = 0; at < kWeightRecord;
       at += kUnit, scales += kUnitBlocks, codes += unit_bytes) {
    const int64_t count = std::clamp<int64_t>(std::ssize(x) - at, 0, kUnit);
    if (count == kUnit) {
      EncodeUnit(code, x.data() + at, count, scales, codes);
    } else {
      float padded[kUnit] = {};
      std::copy_n(x.begin() + std::min<int64_t>(at, std::ssize(x)), count, padded);
      EncodeUnit(code, padded, count, scales, codes);
    }
  }
}

// y: the block's 64 values.
void DecodeNf4(const uint8_t* codes, float scale, float* y) {
  const __m256 scales = _mm256_set1_ps(scale);
  const __m256 low = _mm256_mul_ps(_mm256_loadu_ps(kNf4Values.data()), scales);
  const __m256 high = _mm256_mul_ps(_mm256_loadu_ps(kNf4Values.data() + 8), scales);
  const __m128i four_bits = _mm_set1_epi8(0xf);
  for (int64_t i = 0; i < kWeightBlock; i += 16) {
    const __m128i pairs = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(codes + i / 2));
    const __m128i even = _mm_and_si128(_mm_srli_epi16(pairs, 4), four_bits);
    const __m128i all = _mm_unpacklo_epi8(even, _mm_and_si128(pairs, four_bits));
    for (const int64_t half : {0, 8}) {
      const __m256i number = _mm256_cvtepu8_epi32(half == 0 ? all : _mm_srli_si128(all, 8));
      const __m256 in_high = _mm256_castsi256_ps(_mm256_slli_epi32(number, 28));  // By its sign.
      const __m256 values = _mm256_blendv_ps(_mm256_permutevar8x32_ps(low, number),
                                             _mm256_permutevar8x32_ps(high, number), in_high);
      _mm256_storeu_ps(y + i + half, values);
    }
  }
}

float ScaleOf(const NestedScales& scales, int64_t block) {
  const auto code = static_cast<uint8_t>(scales.codes[block] - kZeroIndex);
  return kSignedCodes.values[code] * scales.maximum + scales.mean;
}

// y: 256 values, those of the tensor's unit of this number.
void DecodeUnit(WeightCode code, const uint8_t* records, int64_t number, float* y) {
  constexpr int64_t kUnits = kWeightRecord / kUnit;
  const uint8_t* const record = records + number / kUnits * RecordBytes(code);
  const uint8_t* const after = record + RecordCodeBytes(code);
  const int64_t unit = number % kUnits, first = unit * kUnitBlocks;
  const auto* const scales = reinterpret_cast<const float*>(after) + first;
  if (code == WeightCode::kInt8) {
    return Int8Kernels().dequantize[kInt8](record + unit * kUnit, scales, kWeightBlock, y);
  }
  for (int64_t b = 0; b < kUnitBlocks; ++b) {
    const float scale = code == WeightCode::kNf4
                            ? scales[b]
                            : ScaleOf(*reinterpret_cast<const NestedScales*>(after), first + b);
    DecodeNf4(record + (first + b) * kPairs, scale, y + b * kWeightBlock);
  }
}

// Units [begin, end) of w.
void DecodeUnits(WeightCode code, const uint8_t* records, int64_t begin, int64_t end,
                 const View& w) {
  for (int64_t at = begin * kUnit; at < end * kUnit; at += kUnit) {
    const int64_t count = std::min(kUnit, w.NumElements() - at);
    FloatPiece buffer;
    float* const values = count == kUnit ? FloatsToWrite(w, at, buffer) : buffer;
    DecodeUnit(code, records, at / kUnit, values);
    if (w.dtype != DType::kFloat32) {
      WriteFloats(values, count, w, at);
    } else if (values == buffer) {
      std::copy_n(buffer, count, w.As<float>() + at);
    }
  }
}

int64_t Units(int64_t elements) { return (elements + kUnit - 1) / kUnit; }

void DecodeWeightCpu(ThreadPool& pool, const ConstView& records, WeightCode code, const View& w) {
  pool.ParallelFor(Units(w.NumElements()), kGrain, [&](int64_t begin, int64_t end) {
    DecodeUnits(code, records.As<uint8_t>(), begin, end, w);
  });
}

}  // namespace

void EncodeRecords(WeightCode code, std::span<const float> x, uint8_t* records,
                   std::span<float> scales) {
  for (; !x.empty(); records += RecordBytes(code)) {
    const auto own = x.first(std::min<size_t>(x.size(), kWeightRecord));
    x = x.subspan(own.size());
    uint8_t* const after = records + RecordCodeBytes(code);
    if (code != WeightCode::kNf4Nested) {
      EncodeRecord(code, own, reinterpret_cast<float*>(after), records);
      continue;
    }
    float all[kRecordBlocks];
    EncodeRecord(code, own, all, records);
    const size_t blocks = (own.size() + kWeightBlock - 1) / kWeightBlock;
    std::copy_n(all, blocks, scales.begin());
    scales = scales.subspan(blocks);
    std::memset(after, 0, sizeof(NestedScales));
  }
}

double SumScales(std::span<const float> scales) {
  double sum = 0;
  for (const float scale : scales) sum += scale;
  return sum;
}

void EncodeScales(float mean, std::span<const float> scales, uint8_t* records) {
  for (; !scales.empty(); records += RecordBytes(WeightCode::kNf4Nested)) {
    const auto own = scales.first(std::min<size_t>(scales.size(), kRecordBlocks));
    scales = scales.subspan(own.size());
    NestedScales nested{.mean = mean};
    for (const float scale : own) nested.maximum = std::max(nested.maximum, std::abs(scale - mean));
    for (size_t b = 0; b < own.size(); ++b) {
      const float quotient = nested.maximum == 0 ? 0 : (own[b] - mean) / nested.maximum;
      nested.codes[b] = static_cast<uint8_t>(EncodeQuotient(kSignedCodes, quotient) + kZeroIndex);
    }
    std::memcpy(records + RecordCodeBytes(WeightCode::kNf4Nested), &nested, sizeof(nested));
  }
}

void DecodeRecords(WeightCode code, const uint8_t* records, std::span<float> x) {
  const View w(reinterpret_cast<std::byte*>(x.data()), DType::kFloat32, Shape{std::ssize(x)});
  DecodeUnits(code, records, 0, Units(std::ssize(x)), w);
}

void DecodeWeight(Stream& stream, ConstView records, WeightCode code, View w) {
  constexpr const char* kOp = "decode_weight";
  const Arguments args(kOp);
  args.Require(code != WeightCode::kNone, "code is none");
  const int64_t n = w.NumElements();
  args.CheckElements("records", records, DType::kUInt8, CodedBytes(code, n));
  args.Require(reinterpret_cast<uintptr_t>(records.data) % 16 == 0,
               "records, want their begin at a multiple of 16 bytes");
  args.CheckDType("w", w.dtype, kFloatDTypes);
  args.CheckElements("w", w, w.dtype, n);
  args.CheckDisjoint("w", w, "records", records);
  const Cost cost{.flops = static_cast<double>(n),
                  .bytes_read = static_cast<double>(records.bytes()),
                  .bytes_written = static_cast<double>(w.bytes())};
  stream.Enqueue(
      {kOp,
       {records},
       {w},
       {{cost, {.launches = n > 0}}},
       {OnCpu(DecodeWeightCpu, records, code, w), OnCuda(DecodeWeightCuda, records, code, w)}});
}

}  // namespace fsdp
