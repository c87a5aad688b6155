#include "trainer/ops/cuda/elements.h"
#include "trainer/ops/nf4.h"
#include "trainer/ops/quantize_backends.h"
#include "trainer/ops/state_codes.h"
#include "trainer/ops/weight_codes.h"

namespace fsdp {
namespace {

constexpr int kLane = 8;       // Elements that a thread decodes together.
constexpr int kTurns = 4;      // Whose codes it reads before it decodes the first ones.
constexpr int kThreads = 256;  // Per block of threads, whose elements lie in one record.
constexpr int kTurn = kThreads * kLane, kElements = kTurn * kTurns;
static_assert(kWeightRecord % kElements == 0);

struct Values {
  float nf4[16];
  float scales[256];  // By their index in ascending order.
};
constexpr Values MakeValues() {
  Values values{};
  for (int i = 0; i < 16; ++i) values.nf4[i] = kNf4Values[i];
  const StateCodeTables tables = MakeStateCodeTables(true);
  for (int i = 0; i < 256; ++i) values.scales[i] = tables.values[(i - 127) & 255];
  return values;
}
__device__ const Values kValues = MakeValues();

template <WeightCode code>
constexpr int64_t kRecordBytes = RecordBytes(code);
template <WeightCode code>
constexpr int64_t kCodeBytes = RecordCodeBytes(code);

template <WeightCode code>
__device__ float ScaleOf(const std::byte* record, int block) {
  if constexpr (code == WeightCode::kNf4Nested) {
    const auto* const nested = reinterpret_cast<const NestedScales*>(record + kCodeBytes<code>);
    const float value = kValues.scales[nested->codes[block]];
    return __fadd_rn(__fmul_rn(value, nested->maximum), nested->mean);
  } else {
    return reinterpret_cast<const float*>(record + kCodeBytes<code>)[block];
  }
}

template <WeightCode code>
constexpr int kWords = code == WeightCode::kInt8 ? kLane / 4 : kLane / 8;

// Element i of a thread's, without its scale.
template <WeightCode code>
__device__ float ValueOf(const Words<kWords<code>>& codes, int i, const float* nf4) {
  if constexpr (code == WeightCode::kInt8) {
    const uint32_t byte = codes.at[i / 4] >> (i % 4 * 8) & 0xff;
    return __int2float_rn(static_cast<int>(byte ^ 0x80) - 0x80);
  } else {
    return nf4[codes.at[0] >> (i / 2 * 8 + (i % 2 == 0 ? 4 : 0)) & 0xf];
  }
}

// A block of threads decodes kElements of one record.
template <WeightCode code, typename T>
__global__ void __launch_bounds__(kThreads)
    DecodeElements(const std::byte* records, int64_t n, bool packs, T* w) {
  __shared__ float nf4[16];
  const int64_t begin = int64_t{blockIdx.x} * kElements;  // The block's first element.
  const std::byte* const record = records + begin / kWeightRecord * kRecordBytes<code>;
  const int own = static_cast<int>(threadIdx.x) * kLane;
  const int first = static_cast<int>(begin % kWeightRecord) + own;  // In the record.
  const int64_t left = n - begin - own;
  Words<kWords<code>> codes[kTurns]{};
  float scales[kTurns]{};
#pragma unroll
  for (int t = 0; t < kTurns; ++t) {
    if (t * kTurn >= left) break;
    const int at = first + t * kTurn;
    codes[t] = reinterpret_cast<const Words<kWords<code>>*>(record)[at / kLane];
    scales[t] = ScaleOf<code>(record, at / static_cast<int>(kWeightBlock));
  }
  if constexpr (code != WeightCode::kInt8) {
    if (threadIdx.x < 16) nf4[threadIdx.x] = kValues.nf4[threadIdx.x];
    __syncthreads();
  }
#pragma unroll
  for (int t = 0; t < kTurns; ++t) {
    if (t * kTurn >= left) break;
    float values[kLane];
#pragma unroll
    for (int i = 0; i < kLane; ++i) {
      values[i] = __fmul_rn(ValueOf<code>(codes[t], i, nf4), scales[t]);
    }
    Elements<T, kLane> elements;
    elements.Set(values);
    elements.Write(w + begin + own + t * kTurn, left - t * kTurn, packs);
  }
}

template <WeightCode code>
void DecodeAs(CudaStreamHandle stream, const ConstView& records, const View& w) {
  const int64_t n = w.NumElements();
  ForFloat(w.dtype, [&](auto is) {
    using T = typename decltype(is)::type;
    Launch<DecodeElements<code, T>>(stream, dim3(static_cast<unsigned>(CeilDiv(n, kElements))),
                                    kThreads, 0, records.data, n, IsAligned(w.data), w.As<T>());
  });
}

}  // namespace

void DecodeWeightCuda(CudaStreamHandle stream, const ConstView& records, WeightCode code,
                      const View& w) {
  switch (code) {
    case WeightCode::kNone:
      return;  // Refused before.
    case WeightCode::kNf4:
      return DecodeAs<WeightCode::kNf4>(stream, records, w);
    case WeightCode::kNf4Nested:
      return DecodeAs<WeightCode::kNf4Nested>(stream, records, w);
    case WeightCode::kInt8:
      return DecodeAs<WeightCode::kInt8>(stream, records, w);
  }
}

}  // namespace fsdp
