#include "trainer/ops/cuda/update/adamw_rule.h"
#include "trainer/ops/cuda/update/update_shard.h"
#include "trainer/ops/state_codes.h"
#include "trainer/ops/update_backends.h"

namespace fsdp {
namespace {

constexpr int kWarps = 4;  // Per block of threads, each with a block of elements.
static_assert(kCodeBlock == kEight * kWarp);

__device__ const StateCodeTables kTables[2] = {MakeStateCodeTables(true),
                                               MakeStateCodeTables(false)};

// A moment: [0] is signed, [1] unsigned.
struct CodedState {
  uint8_t* codes;
  float* absmax;
};
struct CodedStates {
  CodedState of[2];
};

// The rule that covers the element; the default one where none does.
__device__ ElementRule RuleOf(const UpdateAddresses& t, int64_t element) {
  int low = 0, high = t.rule_count;
  while (low < high) {
    const int middle = (low + high) / 2;
    if (t.rules[middle].end <= element) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  if (low < t.rule_count && t.rules[low].begin <= element) return t.rules[low];
  return ElementRule();
}

// A thread's eight elements of x from `at` on. `quads`: four of them are one access.
template <typename T>
__device__ void Load(const void* x, int64_t at, bool quads, float (&to)[kEight]) {
  if (quads) return LoadEight<T>(x, at, to);
#pragma unroll
  for (int i = 0; i < kEight; ++i) to[i] = ToFloat(static_cast<const T*>(x)[PlaceOf(at, i)]);
}
template <typename T>
__device__ void Store(const float (&x)[kEight], int64_t at, bool quads, void* y) {
  if (quads) return StoreEight<T>(x, at, y);
#pragma unroll
  for (int i = 0; i < kEight; ++i) static_cast<T*>(y)[PlaceOf(at, i)] = FromFloat<T>(x[i]);
}

__device__ void Decode(const CodedState& state, const StateCodeTables& tables, int64_t cell,
                       int64_t at, bool quads, float (&x)[kEight]) {
  const float absmax = state.absmax[cell];
#pragma unroll
  for (int q = 0; q < kQuads; ++q) {
    const uint8_t* const from = state.codes + PlaceOf(at, q * kQuad);
    Pack<uint8_t, kQuad> quad;
    if (quads) {
      quad = *reinterpret_cast<const Pack<uint8_t, kQuad>*>(from);
    } else {
      for (int i = 0; i < kQuad; ++i) quad.at[i] = from[i];
    }
#pragma unroll
    for (int i = 0; i < kQuad; ++i) x[q * kQuad + i] = tables.values[quad.at[i]] * absmax;
  }
}

// EncodeBlock() of state_codes.h, by a warp. least: the code of the smallest x above zero.
__device__ void Encode(const float (&x)[kEight], const StateCodeTables& tables, uint32_t least,
                       int64_t cell, int64_t at, bool quads, const CodedState& state) {
  using T = StateCodeTables;
  uint32_t largest = 0;
#pragma unroll
  for (int i = 0; i < kEight; ++i) {
    const uint32_t magnitude = __float_as_uint(x[i]) & 0x7fffffffu;
    largest = magnitude > largest ? magnitude : largest;
  }
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) {
    const uint32_t other = __shfl_xor_sync(kAllLanes, largest, step);
    largest = other > largest ? other : largest;
  }
  const float absmax = __uint_as_float(largest);
  uint8_t codes[kEight];
#pragma unroll
  for (int i = 0; i < kEight; ++i) {
    const uint32_t bits = __float_as_uint(largest == 0 ? 0.0f : x[i] / absmax);
    const bool negative = bits >> 31 != 0;
    int bucket = static_cast<int>((bits & 0x7fffffffu) >> 16) - T::kFirst;
    bucket = bucket < 0 ? 0 : bucket >= T::kBuckets ? T::kBuckets - 1 : bucket;
    uint32_t code = (tables.entries[negative ? 1 : 0][bucket] + (bits & 0xffffu)) >> 16;
    if (x[i] > 0 && code < least) code = least;
    codes[i] = static_cast<uint8_t>(negative ? 0 - code : code);
  }
#pragma unroll
  for (int q = 0; q < kQuads; ++q) {
    uint8_t* const to = state.codes + PlaceOf(at, q * kQuad);
    Pack<uint8_t, kQuad> quad;
    for (int i = 0; i < kQuad; ++i) quad.at[i] = codes[q * kQuad + i];
    if (quads) {
      *reinterpret_cast<Pack<uint8_t, kQuad>*>(to) = quad;
    } else {
      for (int i = 0; i < kQuad; ++i) to[i] = quad.at[i];
    }
  }
  if (threadIdx.x % kWarp == 0) state.absmax[cell] = absmax;
}

// A warp a block of elements. P: float or bf16, the type of the masters.
template <typename Rule, typename P>
__global__ void __launch_bounds__(kWarps* kWarp)
    CodedKernel(const UpdateAddresses t, const typename Rule::Constants constants,
                const CodedStates states) {
  const float c = *t.coefficient;
  const int64_t cell = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp;
  if (cell * kCodeBlock >= t.n) return;
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  const int64_t at = cell * kCodeBlock + lane / 8 * kDrawChunk + lane % 8 * kQuad;
  float p[kEight];
  Load<P>(t.p, at, t.quads, p);
  const auto copy = [&] {
    if (t.copy == nullptr) return;
    ForDeviceFloat(t.copy_dtype,
                   [&](auto is) { Store<typename decltype(is)::type>(p, at, t.quads, t.copy); });
  };
  if (!IsFinite(c)) return copy();  // The only output of a skipped step.
  const ElementRule rule = RuleOf(t, cell * kCodeBlock);
  const typename Rule::Factors factors = Rule::FactorsOf(constants, c, rule, *t.factors);
  float g[kEight], moments[2][kEight] = {};
  ForDeviceFloat(t.g_dtype,
                 [&](auto is) { Load<typename decltype(is)::type>(t.g, at, t.quads, g); });
#pragma unroll
  for (int s = 0; s < Rule::kStates; ++s) {
    Decode(states.of[s], kTables[s], cell, at, t.quads, moments[s]);
  }
  __syncwarp();  // All have read the block's absmax.
#pragma unroll
  for (int i = 0; i < kEight; ++i) {
    Rule::Update(factors, g[i], p[i], moments[0][i], moments[1][i]);
  }
#pragma unroll
  for (int s = 0; s < Rule::kStates; ++s) {
    Encode(moments[s], kTables[s], static_cast<uint32_t>(s), cell, at, t.quads, states.of[s]);
  }
  if constexpr (!std::is_same_v<P, float>) {
    const uint64_t update = t.factors->update;
    uint32_t key[4] = {static_cast<uint32_t>(update), static_cast<uint32_t>(update >> 32), 0, 0};
    DevicePhilox(key, static_cast<uint32_t>(t.seed), static_cast<uint32_t>(t.seed >> 32));
    const uint64_t element = rule.element + at - rule.begin;
    uint32_t words[4];
    DrawEight(element / kDrawChunk * 8 + lane % 8, rule.tensor, {key[0], key[1]}, words);
#pragma unroll
    for (int i = 0; i < kEight; ++i) p[i] = RoundByDraw(p[i], DrawOfEight(words, i));
  }
  Store<P>(p, at, t.quads, t.p);
  copy();
  if (t.average == nullptr) return;
  float average[kEight];
  Load<float>(t.average, at, t.quads, average);
#pragma unroll
  for (int i = 0; i < kEight; ++i) {
    average[i] = __fmaf_rn(t.average_rate, p[i] - average[i], average[i]);
  }
  Store<float>(average, at, t.quads, t.average);
}

template <typename Rule, typename P>
void UpdateCoded(CudaStreamHandle stream, const typename Rule::Constants& constants,
                 const UpdateOperands& o) {
  const UpdateAddresses t = AddressesOf(o);
  CodedStates states;
  for (int s = 0; s < Rule::kStates; ++s) {
    states.of[s] = {o.states[s].As<uint8_t>(), o.absmax[s].As<float>()};
  }
  const auto blocks = static_cast<unsigned>(CeilDiv(t.n, kCodeBlock * kWarps));
  Launch<CodedKernel<Rule, P>>(stream, blocks, kWarps * kWarp, 0, t, constants, states);
}

}  // namespace

void AdamWCodedCuda(CudaStreamHandle stream, const AdamWConstants& constants,
                    const UpdateOperands& o) {
  if (o.p.dtype == DType::kFloat32) {
    UpdateCoded<AdamWRule, float>(stream, constants, o);
  } else {
    UpdateCoded<AdamWRule, __nv_bfloat16>(stream, constants, o);
  }
}

void MomentumCodedCuda(CudaStreamHandle stream, const MomentumConstants& constants,
                       const UpdateOperands& o) {
  UpdateCoded<MomentumRule, float>(stream, constants, o);
}

}  // namespace fsdp
