#include "trainer/ops/cpu/update_kernels.h"

#include <immintrin.h>

#include "trainer/ops/cpu/isa.h"
#include "trainer/ops/cpu/stochastic_rounding.h"
#include "trainer/ops/cpu/vector_math.h"
#include "trainer/ops/state_codes.h"

namespace fsdp {
namespace {

constexpr int kLanes = sizeof(Words) / 4;
constexpr int kPair = 2 * kLanes;  // Elements: as many as draws in a vector.

typedef float Floats __attribute__((vector_size(sizeof(Words))));
typedef int32_t Ints __attribute__((vector_size(sizeof(Words)), may_alias));
typedef uint32_t Bits __attribute__((vector_size(sizeof(Words))));
typedef uint16_t Halves __attribute__((vector_size(sizeof(Words) / 2)));

struct Pair {
  Floats a, b;
};

#ifdef __AVX512F__
FSDP_ALWAYS_INLINE Floats Fma(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
FSDP_ALWAYS_INLINE Floats Sqrt(Floats a) { return _mm512_sqrt_ps(a); }
FSDP_ALWAYS_INLINE Floats FromFp16(Halves h) { return _mm512_cvtph_ps((__m256i)h); }
FSDP_ALWAYS_INLINE Halves ToFp16(Floats x) {
  return (Halves)_mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT);
}
FSDP_ALWAYS_INLINE Bits Widened(Halves h) { return (Bits)_mm512_cvtepu16_epi32((__m256i)h); }
FSDP_ALWAYS_INLINE Ints Larger(Ints a, Ints b) {
  return (Ints)_mm512_max_epi32((__m512i)a, (__m512i)b);
}
FSDP_ALWAYS_INLINE Ints Smaller(Ints a, Ints b) {
  return (Ints)_mm512_min_epi32((__m512i)a, (__m512i)b);
}
// The lower bytes.
FSDP_ALWAYS_INLINE void StoreBytes(Ints x, uint8_t* to) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm512_cvtepi32_epi8((__m512i)x));
}
#else
FSDP_ALWAYS_INLINE Floats Fma(Floats a, Floats b, Floats c) { return _mm256_fmadd_ps(a, b, c); }
FSDP_ALWAYS_INLINE Floats Sqrt(Floats a) { return _mm256_sqrt_ps(a); }
FSDP_ALWAYS_INLINE Floats FromFp16(Halves h) { return _mm256_cvtph_ps((__m128i)h); }
FSDP_ALWAYS_INLINE Halves ToFp16(Floats x) {
  return (Halves)_mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT);
}
FSDP_ALWAYS_INLINE Bits Widened(Halves h) { return (Bits)_mm256_cvtepu16_epi32((__m128i)h); }
FSDP_ALWAYS_INLINE Ints Larger(Ints a, Ints b) {
  return (Ints)_mm256_max_epi32((__m256i)a, (__m256i)b);
}
FSDP_ALWAYS_INLINE Ints Smaller(Ints a, Ints b) {
  return (Ints)_mm256_min_epi32((__m256i)a, (__m256i)b);
}
// The lower bytes.
FSDP_ALWAYS_INLINE void StoreBytes(Ints x, uint8_t* to) {
  for (int i = 0; i < kLanes; ++i) to[i] = static_cast<uint8_t>(x[i]);
}
#endif
FSDP_ALWAYS_INLINE Floats AllFloats(float x) { return x - Floats{}; }  // -0 stays what it is.
FSDP_ALWAYS_INLINE Floats FromBf16(Halves h) { return (Floats)(Widened(h) << 16); }

template <typename T>
FSDP_ALWAYS_INLINE T LoadAs(const std::byte* from) {  // Not aligned.
  T x;
  __builtin_memcpy(&x, from, sizeof(x));
  return x;
}
template <typename T>
FSDP_ALWAYS_INLINE void StoreAs(std::byte* to, const T& x) {
  __builtin_memcpy(to, &x, sizeof(x));
}

// Elements [at, at + kPair) of x.
FSDP_ALWAYS_INLINE Pair Load(const std::byte* x, DType dtype, int64_t at) {
  if (dtype == DType::kFloat32) {
    return {LoadAs<Floats>(x + 4 * at), LoadAs<Floats>(x + 4 * (at + kLanes))};
  }
  const Halves a = LoadAs<Halves>(x + 2 * at), b = LoadAs<Halves>(x + 2 * (at + kLanes));
  if (dtype == DType::kBFloat16) return {FromBf16(a), FromBf16(b)};
  return {FromFp16(a), FromFp16(b)};
}

FSDP_ALWAYS_INLINE void StoreFloats(Pair x, std::byte* to, int64_t at) {
  StoreAs(to + 4 * at, x.a);
  StoreAs(to + 4 * (at + kLanes), x.b);
}

// BFloat16(x) of dtype.h, in the upper half of each lane.
FSDP_ALWAYS_INLINE Words ToNearest(Floats x) {
  const Bits u = (Bits)x;
  const Ints magnitude = (Ints)(u & 0x7fffffffu);
  return (Words)(magnitude > 0x7f800000 ? u | 0x400000u : u + 0x7fffu + ((u >> 16) & 1u));
}

FSDP_ALWAYS_INLINE void StoreNearest(Pair x, std::byte* to, DType dtype, int64_t at) {
  if (dtype == DType::kFloat32) return StoreFloats(x, to, at);
  if (dtype == DType::kBFloat16) {
    return StoreAs(to + 2 * at, UpperHalves(ToNearest(x.a), ToNearest(x.b)));
  }
  StoreAs(to + 2 * at, ToFp16(x.a));
  StoreAs(to + 2 * (at + kLanes), ToFp16(x.b));
}

// draws: not looked at where nothing is rounded.
template <bool kRounds>
FSDP_ALWAYS_INLINE void Keep(Pair x, const Words& draws, std::byte* to, int64_t at) {
  if constexpr (kRounds) {
    StoreAs(to + 2 * at, RoundByDraws((Words)x.a, (Words)x.b, draws));
  } else {
    StoreFloats(x, to, at);
  }
}

// Rules: the update of elements of p and of their states. Fused operations are written out: nothing
// is left for a compiler to choose.
struct AdamWRule {
  using Factors = AdamWFactors;
  static constexpr int kStates = 2;

  FSDP_ALWAYS_INLINE explicit AdamWRule(const AdamWFactors& f)
      : c(AllFloats(f.c)),
        beta1_new(AllFloats(f.beta1_new)),
        beta2_old(AllFloats(f.beta2_old)),
        beta2_new(AllFloats(f.beta2_new)),
        eps(AllFloats(f.eps)),
        root_factor(AllFloats(f.root_factor)),
        keep(AllFloats(f.keep)),
        step_size(AllFloats(f.step_size)) {}

  FSDP_ALWAYS_INLINE void Update(Floats g, Floats& p, Floats& m, Floats& v) const {
    const Floats gradient = c * g;
    m = Fma(beta1_new, gradient - m, m);
    v = Fma(beta2_old, v, beta2_new * gradient * gradient);
    p = Fma(keep, p, -(step_size * (m / Fma(Sqrt(v), root_factor, eps))));
  }

  Floats c, beta1_new, beta2_old, beta2_new, eps, root_factor, keep, step_size;
};

template <bool kMomentum>
struct SgdRule {
  using Factors = SgdFactors;
  static constexpr int kStates = kMomentum ? 1 : 0;

  FSDP_ALWAYS_INLINE explicit SgdRule(const SgdFactors& f)
      : c(AllFloats(f.c)),
        momentum(AllFloats(f.momentum)),
        lr(AllFloats(f.lr)),
        weight_decay(AllFloats(f.weight_decay)) {}

  FSDP_ALWAYS_INLINE void Update(Floats g, Floats& p, Floats& b, Floats&) const {
    Floats d = Fma(c, g, weight_decay * p);
    if constexpr (kMomentum) b = d = Fma(momentum, b, d);
    p = Fma(-lr, d, p);
  }

  Floats c, momentum, lr, weight_decay;
};

struct MomentumRule {
  using Factors = MomentumFactors;
  static constexpr int kStates = 1;

  FSDP_ALWAYS_INLINE explicit MomentumRule(const MomentumFactors& f)
      : c(AllFloats(f.c)), fresh(AllFloats(f.fresh)), ahead(AllFloats(f.ahead)) {}

  FSDP_ALWAYS_INLINE void Update(Floats g, Floats& u, Floats& m, Floats&) const {
    const Floats gradient = c * g;
    m = Fma(fresh, gradient - m, m);
    u = Fma(ahead, gradient - m, m);
  }

  Floats c, fresh, ahead;
};

// Elements [at, at + kChunk) of t: the chunk of that number in their tensor.
template <typename Rule, bool kRoundsP, bool kRoundsStates>
FSDP_ALWAYS_INLINE void UpdateChunk(const UpdateTensors& t, int64_t at, const Rule& rule,
                                    const DrawSchedule& schedule, uint64_t number) {
  constexpr DType kP = kRoundsP ? DType::kBFloat16 : DType::kFloat32;
  constexpr DType kState = kRoundsStates ? DType::kBFloat16 : DType::kFloat32;
  constexpr int kFirst = kRoundsP ? 0 : 1, kEnd = kRoundsStates ? 1 + Rule::kStates : 1;
  Draws draws[3];
  if constexpr (kFirst < kEnd) {
    DrawChunk<kFirst, kEnd>(schedule, number, draws);
  }
  for (int i = 0; i < 2 * kParts; ++i, at += kPair) {
    const Pair g = Load(t.g, t.g_dtype, at);
    Pair p = Load(t.p, kP, at), states[2];
    for (int s = 0; s < Rule::kStates; ++s) states[s] = Load(t.states[s], kState, at);
    rule.Update(g.a, p.a, states[0].a, states[1].a);
    rule.Update(g.b, p.b, states[0].b, states[1].b);
    for (int s = 0; s < Rule::kStates; ++s) {
      Keep<kRoundsStates>(states[s], draws[1 + s][i], t.states[s], at);
    }
    Keep<kRoundsP>(p, draws[0][i], t.p, at);
    if (t.copy == nullptr && t.average == nullptr) continue;
    if constexpr (kRoundsP) p = Load(t.p, kP, at);  // The kept, rounded p.
    if (t.copy != nullptr) StoreNearest(p, t.copy, t.copy_dtype, at);
    if (t.average != nullptr) {
      const Floats rate = AllFloats(t.average_rate);
      Pair average = Load(t.average, DType::kFloat32, at);
      average.a = Fma(rate, p.a - average.a, average.a);
      average.b = Fma(rate, p.b - average.b, average.b);
      StoreFloats(average, t.average, at);
    }
  }
}

FSDP_ALWAYS_INLINE int64_t SizeInBytes(DType dtype) { return dtype == DType::kFloat32 ? 4 : 2; }

// Asks for the lines of a chunk that is updated eight chunks later: the arithmetic of a chunk hides
// no more than its own memory's latency otherwise. Memory behind a tensor's end may be asked for,
// too. By this an update of tensors that no cache holds takes 0.95 of the time in fp32 and 0.76 in
// bf16, with AVX2 0.90 and 0.67 (one thread, Xeon with AMX, 2026-11-30); 256 or 1,024 elements
// ahead do the same, and in a cache it costs 0 to 3 %.
template <typename Rule, bool kRoundsP, bool kRoundsStates>
FSDP_ALWAYS_INLINE void FetchAhead(const UpdateTensors& t, int64_t at) {
  const auto fetch = [at](const std::byte* x, DType dtype) __attribute__((always_inline)) {
    const int64_t size = SizeInBytes(dtype);
    const std::byte* const from = x + (at + 8 * kChunk) * size;
    for (int64_t i = 0; i < kChunk * size; i += 64) __builtin_prefetch(from + i, 1);
  };
  fetch(t.g, t.g_dtype);
  fetch(t.p, kRoundsP ? DType::kBFloat16 : DType::kFloat32);
  for (int s = 0; s < Rule::kStates; ++s) {
    fetch(t.states[s], kRoundsStates ? DType::kBFloat16 : DType::kFloat32);
  }
  if (t.copy != nullptr) fetch(t.copy, t.copy_dtype);
  if (t.average != nullptr) fetch(t.average, DType::kFloat32);
}

// Updates elements [at, at + n) of t through a whole chunk, in which they begin at `skipped`.
template <typename Rule, bool kRoundsP, bool kRoundsStates>
[[gnu::noinline]] void UpdatePart(const UpdateTensors& t, int64_t at, int64_t n, int64_t skipped,
                                  const typename Rule::Factors& factors,
                                  const DrawSchedule& schedule, uint64_t number) {
  UpdateTensors own = t;
  std::byte buffers[6][4 * kChunk] = {};
  const auto read = [&](const std::byte* x, DType dtype, int buffer) -> std::byte* {
    if (x == nullptr) return nullptr;
    const int64_t size = SizeInBytes(dtype);
    __builtin_memcpy(buffers[buffer] + skipped * size, x + at * size, n * size);
    return buffers[buffer];
  };
  const auto write = [&](std::byte* x, DType dtype, int buffer) {
    if (x == nullptr) return;
    const int64_t size = SizeInBytes(dtype);
    __builtin_memcpy(x + at * size, buffers[buffer] + skipped * size, n * size);
  };
  own.g = read(t.g, t.g_dtype, 0);
  own.p = read(t.p, t.p_dtype, 1);
  for (int s = 0; s < Rule::kStates; ++s) own.states[s] = read(t.states[s], t.state_dtype, 2 + s);
  own.copy = read(t.copy, t.copy_dtype, 4);
  own.average = read(t.average, DType::kFloat32, 5);
  UpdateChunk<Rule, kRoundsP, kRoundsStates>(own, 0, Rule(factors), schedule, number);
  write(t.p, t.p_dtype, 1);
  for (int s = 0; s < Rule::kStates; ++s) write(t.states[s], t.state_dtype, 2 + s);
  write(t.copy, t.copy_dtype, 4);
  write(t.average, DType::kFloat32, 5);
}

template <typename Rule, bool kRoundsP, bool kRoundsStates>
void UpdateAll(const UpdateTensors& tensors, const UpdateRun& run,
               const typename Rule::Factors& factors) {
  const UpdateTensors t = tensors;  // In registers: no store can change it.
  const DrawSchedule schedule = ScheduleOf(t.draw_key, run.tensor);
  int64_t at = run.at, left = run.n;
  uint64_t number = run.element / kChunk;
  const int64_t skipped = run.element % kChunk;
  if (skipped > 0) {
    const int64_t n = kChunk - skipped < left ? kChunk - skipped : left;
    UpdatePart<Rule, kRoundsP, kRoundsStates>(tensors, at, n, skipped, factors, schedule, number);
    at += n, left -= n, ++number;
  }
  const Rule rule(factors);
  for (; left >= kChunk; at += kChunk, left -= kChunk, ++number) {
    FetchAhead<Rule, kRoundsP, kRoundsStates>(t, at);
    UpdateChunk<Rule, kRoundsP, kRoundsStates>(t, at, rule, schedule, number);
  }
  if (left > 0) {
    UpdatePart<Rule, kRoundsP, kRoundsStates>(tensors, at, left, 0, factors, schedule, number);
  }
}

template <typename Rule>
void Update(const UpdateTensors& t, const UpdateRun& run, const typename Rule::Factors& factors) {
  const bool rounds_p = t.p_dtype == DType::kBFloat16;
  const bool rounds_states = t.state_dtype == DType::kBFloat16;
  if (rounds_p && rounds_states) return UpdateAll<Rule, true, true>(t, run, factors);
  if (rounds_p) return UpdateAll<Rule, true, false>(t, run, factors);
  if (rounds_states) return UpdateAll<Rule, false, true>(t, run, factors);
  UpdateAll<Rule, false, false>(t, run, factors);
}

void AdamW(const UpdateTensors& t, const UpdateRun& run, const AdamWFactors& factors) {
  Update<AdamWRule>(t, run, factors);
}

void Sgd(const UpdateTensors& t, const UpdateRun& run, const SgdFactors& factors) {
  if (t.states[0] == nullptr) return Update<SgdRule<false>>(t, run, factors);
  Update<SgdRule<true>>(t, run, factors);
}

void Momentum(const UpdateTensors& t, const UpdateRun& run, const MomentumFactors& factors) {
  Update<MomentumRule>(t, run, factors);
}

constexpr int kBlock = 256;  // kCodeBlock.

// to[i] = table[index[i]], one by one: an instruction that gathers takes twice the time (AMD EPYC,
// 2026-11, `bench ops --only adamw`).
template <typename Index, typename T>
FSDP_ALWAYS_INLINE void LookUp(const T* table, const Index* index, T* to) {
  for (int i = 0; i < kBlock; i += 4) {
    for (int j = i; j < i + 4; ++j) {
      int64_t at = index[j];
      asm("" : "+r"(at));  // Not to be joined.
      to[j] = table[at];
    }
  }
}

FSDP_ALWAYS_INLINE void Decode(const StateCodeTables& tables, const uint8_t* codes, float absmax,
                               float* x) {
  LookUp(tables.values, codes, x);
  for (int i = 0; i < kBlock; ++i) x[i] *= absmax;
}

// EncodeBlock() of state_codes.h. kSign: x has both signs.
template <bool kSign>
FSDP_ALWAYS_INLINE void Encode(const StateCodeTables& tables, const float* x, uint8_t* codes,
                               float* absmax) {
  using T = StateCodeTables;
  Ints largest = {};
  for (int i = 0; i < kBlock; i += kLanes) {
    largest = Larger(largest, LoadAs<Ints>(reinterpret_cast<const std::byte*>(x + i)) & 0x7fffffff);
  }
  int32_t most = 0;
  for (int i = 0; i < kLanes; ++i) most = largest[i] > most ? largest[i] : most;
  *absmax = __builtin_bit_cast(float, most);
  if (most == 0) {
    __builtin_memset(codes, 0, kBlock);
    return;
  }
  const Floats scale = AllFloats(*absmax);
  alignas(sizeof(Words)) int32_t bits[kBlock], buckets[kBlock];
  alignas(sizeof(Words)) uint32_t entries[kBlock];
  const auto in = [](auto* buffer, int i) -> Ints& { return *reinterpret_cast<Ints*>(buffer + i); };
  for (int i = 0; i < kBlock; i += kLanes) {
    const auto value = LoadAs<Floats>(reinterpret_cast<const std::byte*>(x + i));
    const Ints quotient = in(bits, i) = (Ints)(value / scale);
    Ints bucket = ((quotient & 0x7fffffff) >> 16) - T::kFirst;
    bucket = Smaller(Larger(bucket, Ints{}), Ints{} + (T::kBuckets - 1));
    if constexpr (kSign) bucket -= (quotient >> 31) * T::kBuckets;
    in(buckets, i) = bucket;
  }
  LookUp(tables.entries[0], buckets, entries);
  for (int i = 0; i < kBlock; i += kLanes) {
    const Ints quotient = in(bits, i);
    Ints code = (in(entries, i) + (quotient & 0xffff)) >> 16;
    if constexpr (kSign) {
      const Ints sign = quotient >> 31;
      code = (code ^ sign) - sign;
    } else {
      const auto value = LoadAs<Floats>(reinterpret_cast<const std::byte*>(x + i));
      code = Larger(code, (value > 0) & 1);
    }
    StoreBytes(code, codes + i);
  }
}

template <typename Rule, bool kRoundsP>
void UpdateCoded(const UpdateTensors& tensors, const CodedTensors& coded, const UpdateRun& run,
                 const typename Rule::Factors& factors) {
  constexpr bool kSecond = Rule::kStates == 2;
  const DrawSchedule schedule = ScheduleOf(tensors.draw_key, run.tensor);
  const Rule rule(factors);
  alignas(sizeof(Words)) float moments[2][kBlock];
  UpdateTensors t = tensors;
  const auto behind = [](auto* x, DType dtype, int64_t at) {
    return x == nullptr ? x : x + at * SizeInBytes(dtype);
  };
  for (int64_t at = run.at; at < run.at + run.n; at += kBlock) {
    const int64_t block = at / kBlock;
    uint8_t* const m = coded.codes[0] + at;
    Decode(kSignedCodes, m, coded.absmax[0][block], moments[0]);
    if constexpr (kSecond) {
      Decode(kUnsignedCodes, coded.codes[1] + at, coded.absmax[1][block], moments[1]);
    }
    t.g = behind(tensors.g, t.g_dtype, at);
    t.p = behind(tensors.p, t.p_dtype, at);
    t.copy = behind(tensors.copy, t.copy_dtype, at);
    t.average = behind(tensors.average, DType::kFloat32, at);
    for (int s = 0; s < 2; ++s) t.states[s] = reinterpret_cast<std::byte*>(moments[s]);
    const uint64_t number = (run.element + at - run.at) / kChunk;
    for (int chunk = 0; chunk < kBlock / kChunk; ++chunk) {
      UpdateChunk<Rule, kRoundsP, false>(t, chunk * kChunk, rule, schedule, number + chunk);
    }
    Encode<true>(kSignedCodes, moments[0], m, coded.absmax[0] + block);
    if constexpr (kSecond) {
      Encode<false>(kUnsignedCodes, moments[1], coded.codes[1] + at, coded.absmax[1] + block);
    }
  }
}

void AdamWCoded(const UpdateTensors& t, const CodedTensors& coded, const UpdateRun& run,
                const AdamWFactors& factors) {
  if (t.p_dtype == DType::kBFloat16) return UpdateCoded<AdamWRule, true>(t, coded, run, factors);
  UpdateCoded<AdamWRule, false>(t, coded, run, factors);
}

void MomentumCoded(const UpdateTensors& t, const CodedTensors& coded, const UpdateRun& run,
                   const MomentumFactors& factors) {
  UpdateCoded<MomentumRule, false>(t, coded, run, factors);
}

}  // namespace

const UpdateKernels FSDP_ISA(kUpdate) = {AdamW, Sgd, Momentum, AdamWCoded, MomentumCoded};

}  // namespace fsdp
