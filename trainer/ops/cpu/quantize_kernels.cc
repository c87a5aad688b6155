#include "trainer/ops/cpu/quantize_kernels.h"

#include <immintrin.h>

#include "trainer/ops/cpu/isa.h"
#include "trainer/ops/cpu/vector_math.h"
#include "trainer/ops/quantized_form.h"
#include "trainer/ops/quantized_row.h"

namespace fsdp {
namespace {

#ifdef __AVX512F__
constexpr int kLanes = 16;
#else
constexpr int kLanes = 8;
#endif
typedef float Floats __attribute__((vector_size(4 * kLanes)));
typedef int32_t Ints __attribute__((vector_size(4 * kLanes)));

#ifdef __AVX512F__
FSDP_ALWAYS_INLINE Ints ToInts(Floats x) { return (Ints)_mm512_cvtps_epi32(x); }
FSDP_ALWAYS_INLINE Floats ToFloats(Ints x) { return _mm512_cvtepi32_ps((__m512i)x); }
FSDP_ALWAYS_INLINE Ints FromBytes(__m128i bytes) { return (Ints)_mm512_cvtepu8_epi32(bytes); }
FSDP_ALWAYS_INLINE Ints Max(Ints a, Ints b) {
  return (Ints)_mm512_max_epi32((__m512i)a, (__m512i)b);
}
FSDP_ALWAYS_INLINE Ints Min(Ints a, Ints b) {
  return (Ints)_mm512_min_epi32((__m512i)a, (__m512i)b);
}
FSDP_ALWAYS_INLINE int Largest(Ints x) { return _mm512_reduce_max_epi32((__m512i)x); }
// The low halves of the lanes.
FSDP_ALWAYS_INLINE Floats FromFp16(Ints x) {
  return _mm512_cvtph_ps(_mm512_cvtepi32_epi16((__m512i)x));
}
#else
FSDP_ALWAYS_INLINE Ints ToInts(Floats x) { return (Ints)_mm256_cvtps_epi32(x); }
FSDP_ALWAYS_INLINE Floats ToFloats(Ints x) { return _mm256_cvtepi32_ps((__m256i)x); }
FSDP_ALWAYS_INLINE Ints FromBytes(__m128i bytes) { return (Ints)_mm256_cvtepu8_epi32(bytes); }
FSDP_ALWAYS_INLINE Ints Max(Ints a, Ints b) {
  return (Ints)_mm256_max_epi32((__m256i)a, (__m256i)b);
}
FSDP_ALWAYS_INLINE Ints Min(Ints a, Ints b) {
  return (Ints)_mm256_min_epi32((__m256i)a, (__m256i)b);
}
FSDP_ALWAYS_INLINE Floats FromFp16(Ints x) {
  const __m256i halves = _mm256_packus_epi32((__m256i)x, (__m256i)x);
  return _mm256_cvtph_ps(_mm256_castsi256_si128(_mm256_permute4x64_epi64(halves, 0x08)));
}
FSDP_ALWAYS_INLINE int Largest(Ints x) {
  int most = x[0];
  for (int i = 1; i < kLanes; ++i) most = x[i] > most ? x[i] : most;
  return most;
}
#endif

FSDP_ALWAYS_INLINE Floats AllFloats(float x) { return x - Floats{}; }
FSDP_ALWAYS_INLINE Ints AllInts(int x) { return x - Ints{}; }
FSDP_ALWAYS_INLINE Floats Load(const float* from) {
  Floats x;
  __builtin_memcpy(&x, from, sizeof(x));
  return x;
}
FSDP_ALWAYS_INLINE void Store(Floats x, float* to) { __builtin_memcpy(to, &x, sizeof(x)); }

// Codes in the low bits of each lane, zeros above. Nothing is fused: see the copts.
template <QuantizedForm form>
FSDP_ALWAYS_INLINE Ints Encode(Floats x) {
  if constexpr (form == QuantizedForm::kInt8) {
    return ToInts(x) & 0xff;
  } else if constexpr (form == QuantizedForm::kInt4) {
    return ToInts(x) & 0xf;
  } else {
    // Normal numbers keep 3 of 23 bits of the fraction, and their exponent gets the bias 7. Below
    // 2^-6 the steps are 2^-9, which floats have from 2^14 on.
    const Ints sign = ((Ints)x >> 24) & 0x80, bits = (Ints)x & 0x7fffffff;
    const Ints normal = ((bits + 0x7ffff + ((bits >> 20) & 1)) >> 20) - ((127 - 7) << 3);
    const Ints subnormal = (Ints)((Floats)bits + 0x1p14f) & 0x7fffff;
    return sign | Max(normal, Min(subnormal, AllInts(8)));
  }
}

template <QuantizedForm form>
FSDP_ALWAYS_INLINE Floats Decode(Ints code) {
  if constexpr (form == QuantizedForm::kInt8) {
    return ToFloats((code ^ 0x80) - 0x80);
  } else if constexpr (form == QuantizedForm::kInt4) {
    return ToFloats((code ^ 0x8) - 0x8);
  } else {
    // 2^-8 of it as fp16, whose exponent has one bit more.
    return FromFp16(((code & 0x80) << 8) | ((code & 0x7f) << 7)) * 256;
  }
}

// 32 codes as bytes.
FSDP_ALWAYS_INLINE __m256i Bytes(const Ints (&codes)[32 / kLanes]) {
#ifdef __AVX512F__
  return _mm256_set_m128i(_mm512_cvtepi32_epi8((__m512i)codes[1]),
                          _mm512_cvtepi32_epi8((__m512i)codes[0]));
#else
  const __m256i low = _mm256_packus_epi32((__m256i)codes[0], (__m256i)codes[1]);
  const __m256i high = _mm256_packus_epi32((__m256i)codes[2], (__m256i)codes[3]);
  return _mm256_permutevar8x32_epi32(_mm256_packus_epi16(low, high),
                                     _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
#endif
}

// Two halves of each byte of 32, as 16 bytes.
FSDP_ALWAYS_INLINE __m128i Halves(__m256i bytes) {
  const __m256i even = _mm256_and_si256(bytes, _mm256_set1_epi16(0xf));
  const __m256i odd = _mm256_srli_epi16(bytes, 4);  // The even one has nothing above its low half.
  const __m256i pairs = _mm256_or_si256(even, odd);
  return _mm256_castsi256_si128(_mm256_permute4x64_epi64(_mm256_packus_epi16(pairs, pairs), 0x08));
}

template <QuantizedForm form>
FSDP_ALWAYS_INLINE void Quantize32(const float* x, Floats inverse, uint8_t* codes) {
  Ints encoded[32 / kLanes];
  for (int i = 0; i < 32 / kLanes; ++i) encoded[i] = Encode<form>(Load(x + i * kLanes) * inverse);
  const __m256i bytes = Bytes(encoded);
  if constexpr (form == QuantizedForm::kInt4) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(codes), Halves(bytes));
  } else {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(codes), bytes);
  }
}

template <QuantizedForm form>
constexpr int kSlotsInByte = form == QuantizedForm::kInt4 ? 2 : 1;

template <QuantizedForm form>
void Quantize(const float* x, int block, float* scales, uint8_t* codes) {
  for (int at = 0; at < kQuantizedUnit; at += block) {
    Ints most{};
    for (int i = at; i < at + block; i += kLanes) {
      most = Max(most, (Ints)Load(x + i) & 0x7fffffff);
    }
    const int largest = Largest(most);
    if (largest >= 0x7f800000) {
      *scales++ = __builtin_nanf("");
      __builtin_memset(codes + at / kSlotsInByte<form>, 0, block / kSlotsInByte<form>);
      continue;
    }
    float scale = __builtin_bit_cast(float, largest) / kLevels<form>;
    scale = scale < kLeastScale ? kLeastScale : scale;
    scale = scale > kMostScale<form> ? kMostScale<form> : scale;
    *scales++ = scale;
    const Floats inverse = AllFloats(1.0f / scale);
    for (int i = at; i < at + block; i += 32) {
      Quantize32<form>(x + i, inverse, codes + i / kSlotsInByte<form>);
    }
  }
}

// As many as there are lanes, from slot `at` on.
template <QuantizedForm form>
FSDP_ALWAYS_INLINE Ints LoadCodes(const uint8_t* codes, int at) {
  if constexpr (form == QuantizedForm::kInt4) {
    uint64_t pairs = 0;
    __builtin_memcpy(&pairs, codes + at / 2, kLanes / 2);
    const __m128i bytes = _mm_cvtepu8_epi16(_mm_cvtsi64_si128(static_cast<int64_t>(pairs)));
    const __m128i both = _mm_or_si128(bytes, _mm_slli_epi16(bytes, 4));
    return FromBytes(_mm_and_si128(both, _mm_set1_epi8(0xf)));
  } else if constexpr (kLanes == 8) {
    return FromBytes(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(codes + at)));
  } else {
    return FromBytes(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes + at)));
  }
}

template <QuantizedForm form, bool adds>
void Dequantize(const uint8_t* codes, const float* scales, int block, float* y) {
  for (int at = 0; at < kQuantizedUnit; at += block) {
    const Floats scale = AllFloats(*scales++);
    for (int i = at; i < at + block; i += kLanes) {
      Floats value = Decode<form>(LoadCodes<form>(codes, i)) * scale;
      if constexpr (adds) value = Load(y + i) + value;
      Store(value, y + i);
    }
  }
}

}  // namespace

const QuantizeKernels FSDP_ISA(kQuantize) = {
    {Quantize<QuantizedForm::kInt8>, Quantize<QuantizedForm::kFp8>, Quantize<QuantizedForm::kInt4>},
    {Dequantize<QuantizedForm::kInt8, false>, Dequantize<QuantizedForm::kFp8, false>,
     Dequantize<QuantizedForm::kInt4, false>},
    {Dequantize<QuantizedForm::kInt8, true>, Dequantize<QuantizedForm::kFp8, true>,
     Dequantize<QuantizedForm::kInt4, true>}};

}  // namespace fsdp
