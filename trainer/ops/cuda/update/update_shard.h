// The pass over a shard that updates make (update.h). Not an op itself: adamw_rule.h and
// sgd_cuda.cu compute an element. They use the CPU's fused operations and roundings, so results
// have the CPU's bits.
//
// A thread has the eight elements of a tensor whose draws are words of one Philox block
// (cpu/stochastic_rounding.h): four neighbours, and the four that are 32 behind them. So eight
// neighbouring threads have 64 elements in a row, and one access moves four.
// Tests: tests/trainer/ops/update_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPS_CUDA_UPDATE_UPDATE_SHARD_H_
#define FSDP_TRAIN_TRAINER_OPS_CUDA_UPDATE_UPDATE_SHARD_H_

#include <cstdint>
#include <initializer_list>
#include <type_traits>

#include "trainer/ops/cuda/elements.h"
#include "trainer/ops/cuda/launch.h"
#include "trainer/ops/cuda/philox.h"
#include "trainer/ops/element_rules.h"
#include "trainer/ops/step_parameters.h"
#include "trainer/ops/update_backends.h"

namespace fsdp {

inline constexpr int kUpdateThreads = 128, kUpdateBlocks = 5;  // Per multiprocessor.
inline constexpr int64_t kUpdateElements = 4096;               // Per block of threads.
inline constexpr int kDrawChunk = 64;  // Elements that share a row of Philox blocks.
inline constexpr int kQuads = 2, kQuad = 4, kEight = kQuads * kQuad;

// UpdateOperands on the device; null for operands that are left out.
struct UpdateAddresses {
  const ElementRule* rules;
  int rule_count;
  const UpdateFactors* factors;
  const float* coefficient;
  const void* g;
  void *p, *states[2], *copy;
  float* average;
  int64_t n;
  uint64_t seed;
  float average_rate;  // 1 - decay.
  DType g_dtype, copy_dtype;
  bool quads;  // Four elements from a multiple of four on are one access, in every tensor.
};

// The common properties of the shard's elements up to `end`: they share a rule, and element i is
// element i + offset of the tensor.
template <typename Factors>
struct UpdateStretch {
  int64_t end, offset;
  uint64_t tensor;
  Factors factors;
};

// The place of element i of a thread's eight, where the first is at `at`.
__device__ inline int64_t PlaceOf(int64_t at, int i) {
  return at + i / kQuad * (kDrawChunk / kQuads) + i % kQuad;
}

template <typename T>
__device__ void LoadEight(const void* x, int64_t at, float (&to)[kEight]) {
  Pack<T, kQuad> quads[kQuads];
#pragma unroll
  for (int q = 0; q < kQuads; ++q) {
    const T* const from = static_cast<const T*>(x) + PlaceOf(at, q * kQuad);
    quads[q] = *reinterpret_cast<const Pack<T, kQuad>*>(from);
  }
#pragma unroll
  for (int i = 0; i < kEight; ++i) to[i] = ToFloat(quads[i / kQuad].at[i % kQuad]);
}

template <typename T>
__device__ void StoreEight(const float (&x)[kEight], int64_t at, void* y) {
#pragma unroll
  for (int q = 0; q < kQuads; ++q) {
    Pack<T, kQuad> quad;
#pragma unroll
    for (int i = 0; i < kQuad; ++i) quad.at[i] = FromFloat<T>(x[q * kQuad + i]);
    T* const to = static_cast<T*>(y) + PlaceOf(at, q * kQuad);
    *reinterpret_cast<Pack<T, kQuad>*>(to) = quad;
  }
}

// Calls f(Is<T>()), like ForFloat() on the host; every thread takes the same branch.
template <typename Function>
__device__ void ForDeviceFloat(DType dtype, const Function& f) {
  if (dtype == DType::kFloat32) return f(Is<float>());
  if (dtype == DType::kBFloat16) return f(Is<__nv_bfloat16>());
  f(Is<__half>());
}

// The draws of kind 0 of the eight elements in block number `block` of a tensor, two to a word.
__device__ inline void DrawEight(uint64_t block, uint64_t tensor, const uint32_t (&key)[2],
                                 uint32_t (&words)[4]) {
  words[0] = static_cast<uint32_t>(block), words[1] = static_cast<uint32_t>(block >> 32);
  words[2] = static_cast<uint32_t>(tensor), words[3] = static_cast<uint32_t>(tensor >> 32);
  DevicePhilox<7>(words, key[0], key[1]);
}

// Those of kind kKind, from those of kind 0 (cpu/stochastic_rounding.h).
template <int kKind>
__device__ void DrawsOfKind(const uint32_t (&words)[4], uint32_t (&draws)[4]) {
#pragma unroll
  for (int half = 0; half < 4; half += 2) {  // The first quad's words, the second's.
    const uint32_t first = words[2 - half], second = words[3 - half];  // The other quad's.
    const uint32_t pairs[2] = {first ^ (first >> 16 | second << 16),
                               second ^ (second >> 16 | first << 16)};
#pragma unroll
    for (int w = 0; w < 2; ++w) {
      draws[half + w] = words[half + w];
      if (kKind > 0) draws[half + w] ^= pairs[kKind == 1 ? w : 1 - w];
    }
  }
}

// The draw of element i of the eight.
__device__ inline uint32_t DrawOfEight(const uint32_t (&draws)[4], int i) {
  const uint32_t first = i / kQuad == 0 ? draws[0] : draws[2];
  const uint32_t second = i / kQuad == 0 ? draws[1] : draws[3];
  return (i % kQuad < 2 ? first : second) >> i % 2 * 16 & 0xffffu;
}

// Rounds to one of the two neighbours in bf16. A finite value beyond the largest becomes the
// largest.
__device__ inline float RoundByDraw(float x, uint32_t draw) {
  const uint32_t bits = __float_as_uint(x);
  const bool rounds = (bits & 0x7fff0000u) < 0x7f7f0000u;
  return __uint_as_float((rounds ? bits + draw : bits) & 0xffff0000u);
}

// Stores x, rounded to T, and returns the rounded values in x, with which the caller goes on.
// words: of DrawEight(), if T is not float.
template <typename T, int kKind>
__device__ void KeepEight(float (&x)[kEight], const uint32_t (&words)[4], int64_t at, void* to) {
  if constexpr (!std::is_same_v<T, float>) {
    uint32_t draws[4];
    DrawsOfKind<kKind>(words, draws);
#pragma unroll
    for (int i = 0; i < kEight; ++i) x[i] = RoundByDraw(x[i], DrawOfEight(draws, i));
  }
  StoreEight<T>(x, at, to);
}
// The same for element i of the eight alone, which is at `at`.
template <typename T, int kKind>
__device__ void KeepOne(float& x, const uint32_t (&words)[4], int i, int64_t at, void* to) {
  if constexpr (!std::is_same_v<T, float>) {
    uint32_t draws[4];
    DrawsOfKind<kKind>(words, draws);
    x = RoundByDraw(x, DrawOfEight(draws, i));
  }
  static_cast<T*>(to)[at] = FromFloat<T>(x);
}

// Whether an update keeps something in bf16.
template <typename Rule, typename P, typename S>
inline constexpr bool kDraws =
    !std::is_same_v<P, float> || (Rule::kStates > 0 && !std::is_same_v<S, float>);

// Updates the eight elements from `at` on; their draws are of block number `block` of their tensor.
// One access moves a quad of each tensor.
template <typename Rule, typename P, typename S>
__device__ void UpdateEight(const UpdateAddresses& t, const typename Rule::Factors& factors,
                            const uint32_t (&key)[2], uint64_t block, uint64_t tensor, int64_t at) {
  float g[kEight], p[kEight], states[2][kEight] = {}, average[kEight];
  LoadEight<P>(t.p, at, p);
#pragma unroll
  for (int s = 0; s < Rule::kStates; ++s) LoadEight<S>(t.states[s], at, states[s]);
  if (t.average != nullptr) LoadEight<float>(t.average, at, average);
  ForDeviceFloat(t.g_dtype, [&](auto is) { LoadEight<typename decltype(is)::type>(t.g, at, g); });
#pragma unroll
  for (int i = 0; i < kEight; ++i) {
    Rule::Update(factors, g[i], p[i], states[0][i], states[1][i]);
  }
  uint32_t words[4] = {};
  if constexpr (kDraws<Rule, P, S>) DrawEight(block, tensor, key, words);
  if constexpr (Rule::kStates > 0) KeepEight<S, 1>(states[0], words, at, t.states[0]);
  if constexpr (Rule::kStates > 1) KeepEight<S, 2>(states[1], words, at, t.states[1]);
  KeepEight<P, 0>(p, words, at, t.p);
  if (t.copy != nullptr) {
    ForDeviceFloat(t.copy_dtype,
                   [&](auto is) { StoreEight<typename decltype(is)::type>(p, at, t.copy); });
  }
  if (t.average != nullptr) {
#pragma unroll
    for (int i = 0; i < kEight; ++i) {
      average[i] = __fmaf_rn(t.average_rate, p[i] - average[i], average[i]);
    }
    StoreEight<float>(average, at, t.average);
  }
}

// Updates element i of such eight alone, which is at `at`: for eights that a stretch or the shard
// cuts, and where quads are no single accesses.
template <typename Rule, typename P, typename S>
__device__ void UpdateOne(const UpdateAddresses& t, const typename Rule::Factors& factors,
                          const uint32_t (&key)[2], uint64_t block, int i, uint64_t tensor,
                          int64_t at) {
  float p = ToFloat(static_cast<const P*>(t.p)[at]), states[2] = {}, g;
#pragma unroll
  for (int s = 0; s < Rule::kStates; ++s) states[s] = ToFloat(static_cast<S*>(t.states[s])[at]);
  ForDeviceFloat(t.g_dtype, [&](auto is) {
    g = ToFloat(static_cast<const typename decltype(is)::type*>(t.g)[at]);
  });
  Rule::Update(factors, g, p, states[0], states[1]);
  uint32_t words[4] = {};
  if constexpr (kDraws<Rule, P, S>) DrawEight(block, tensor, key, words);
  if constexpr (Rule::kStates > 0) KeepOne<S, 1>(states[0], words, i, at, t.states[0]);
  if constexpr (Rule::kStates > 1) KeepOne<S, 2>(states[1], words, i, at, t.states[1]);
  KeepOne<P, 0>(p, words, i, at, t.p);
  if (t.copy != nullptr) {
    ForDeviceFloat(t.copy_dtype, [&](auto is) {
      using T = typename decltype(is)::type;
      static_cast<T*>(t.copy)[at] = FromFloat<T>(p);
    });
  }
  if (t.average != nullptr) {
    t.average[at] = __fmaf_rn(t.average_rate, p - t.average[at], t.average[at]);
  }
}

template <typename Rule>
__device__ UpdateStretch<typename Rule::Factors> StretchFrom(
    int64_t begin, int64_t end, const UpdateAddresses& t, const typename Rule::Constants& constants,
    float c) {
  // The first rule that ends behind `begin`.
  int low = 0, high = t.rule_count;
  while (low < high) {
    const int middle = (low + high) / 2;
    if (t.rules[middle].end <= begin) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  ElementRule rule;
  if (low < t.rule_count) {
    const bool covers = t.rules[low].begin <= begin;
    if (covers) rule = t.rules[low];
    const int64_t stop = covers ? rule.end : t.rules[low].begin;
    if (stop < end) end = stop;
  }
  return {end, rule.element - rule.begin, rule.tensor,
          Rule::FactorsOf(constants, c, rule, *t.factors)};
}

// The only output of a skipped step: the copy.
template <typename P>
__device__ void CopyOfSkipped(const UpdateAddresses& t) {
  if (t.copy == nullptr) return;
  const int64_t begin = blockIdx.x * kUpdateElements;
  const int64_t end = begin + kUpdateElements < t.n ? begin + kUpdateElements : t.n;
  ForDeviceFloat(t.copy_dtype, [&](auto is) {
    using T = typename decltype(is)::type;
    for (int64_t at = begin + threadIdx.x; at < end; at += kUpdateThreads) {
      static_cast<T*>(t.copy)[at] = FromFloat<T>(ToFloat(static_cast<const P*>(t.p)[at]));
    }
  });
}

// A Rule has Constants from the host, Factors that a stretch's elements share, and kStates. P and
// S: float or bf16, the types of the masters and of the states.
template <typename Rule, typename P, typename S>
__global__ void __launch_bounds__(kUpdateThreads, kUpdateBlocks)
    UpdateKernel(const UpdateAddresses t, const typename Rule::Constants constants) {
  const float c = *t.coefficient;
  if (!IsFinite(c)) return CopyOfSkipped<P>(t);
  __shared__ UpdateStretch<typename Rule::Factors> stretch;
  __shared__ uint32_t key[2];
  if (kDraws<Rule, P, S> && threadIdx.x == 0) {
    const uint64_t update = t.factors->update;
    uint32_t words[4] = {static_cast<uint32_t>(update), static_cast<uint32_t>(update >> 32), 0, 0};
    DevicePhilox(words, static_cast<uint32_t>(t.seed), static_cast<uint32_t>(t.seed >> 32));
    key[0] = words[0], key[1] = words[1];
  }
  int64_t begin = blockIdx.x * kUpdateElements;
  const int64_t end = begin + kUpdateElements < t.n ? begin + kUpdateElements : t.n;
  while (begin < end) {
    if (threadIdx.x == 0) stretch = StretchFrom<Rule>(begin, end, t, constants, c);
    __syncthreads();
    const typename Rule::Factors factors = stretch.factors;
    const int64_t offset = stretch.offset, stop = stretch.end;
    const uint64_t tensor = stretch.tensor;
    const int64_t chunk = (begin + offset) / kDrawChunk;
    const auto blocks = static_cast<int>((stop + offset - 1) / kDrawChunk - chunk + 1) * 8;
    for (int b = static_cast<int>(threadIdx.x); b < blocks; b += kUpdateThreads) {
      const uint64_t block = chunk * 8 + b;
      const int64_t at = (chunk + b / 8) * kDrawChunk + b % 8 * kQuad - offset;
      const bool whole = at >= begin && PlaceOf(at, kEight - 1) < stop;
      if (whole && t.quads && offset % kQuad == 0) {
        UpdateEight<Rule, P, S>(t, factors, key, block, tensor, at);
        continue;
      }
#pragma unroll 1
      for (int i = 0; i < kEight; ++i) {
        const int64_t place = PlaceOf(at, i);
        if (place < begin || place >= stop) continue;
        UpdateOne<Rule, P, S>(t, factors, key, block, i, tensor, place);
      }
    }
    begin = stop;
    __syncthreads();  // All have read the stretch.
  }
}

// The operands' addresses, on the host.
inline UpdateAddresses AddressesOf(const UpdateOperands& o) {
  UpdateAddresses t{.rules = o.rules.As<ElementRule>(),
                    .rule_count = static_cast<int>(o.rules.bytes() / sizeof(ElementRule)),
                    .factors = o.factors.As<UpdateFactors>(),
                    .coefficient = o.coefficient.As<float>(),
                    .g = o.g.data,
                    .p = o.p.data,
                    .states = {o.states[0].data, o.states[1].data},
                    .copy = o.extras.copy.data,
                    .average = o.extras.average.As<float>(),
                    .n = o.p.NumElements(),
                    .seed = o.extras.seed,
                    .average_rate = static_cast<float>(1 - o.extras.decay),
                    .g_dtype = o.g.dtype,
                    .copy_dtype = o.extras.copy.dtype,
                    .quads = true};
  for (const ConstView& view : std::initializer_list<ConstView>{o.g, o.p, o.states[0], o.states[1],
                                                                o.extras.copy, o.extras.average}) {
    t.quads &= reinterpret_cast<uintptr_t>(view.data) % (kQuad * SizeOf(view.dtype)) == 0;
  }
  return t;
}

template <typename Function>
void ForKeptType(DType dtype, const Function& f) {
  dtype == DType::kBFloat16 ? f(Is<__nv_bfloat16>()) : f(Is<float>());
}

template <typename Rule, typename Function>
void ForParameterType(DType dtype, const Function& f) {  // Rule::P: of one type, for every state.
  if constexpr (requires { typename Rule::P; }) {
    f(Is<typename Rule::P>());
  } else {
    ForKeptType(dtype, f);
  }
}

template <typename Rule>
void UpdateShardCuda(CudaStreamHandle stream, const UpdateOperands& o,
                     const typename Rule::Constants& constants) {
  const UpdateAddresses t = AddressesOf(o);
  const auto blocks = static_cast<unsigned>(CeilDiv(t.n, kUpdateElements));
  ForParameterType<Rule>(o.p.dtype, [&](auto p) {
    using P = typename decltype(p)::type;
    if constexpr (Rule::kStates == 0) {
      Launch<UpdateKernel<Rule, P, P>>(stream, blocks, kUpdateThreads, 0, t, constants);
    } else {
      ForKeptType(o.states[0].dtype, [&](auto s) {
        using S = typename decltype(s)::type;
        Launch<UpdateKernel<Rule, P, S>>(stream, blocks, kUpdateThreads, 0, t, constants);
      });
    }
  });
}

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CUDA_UPDATE_UPDATE_SHARD_H_
