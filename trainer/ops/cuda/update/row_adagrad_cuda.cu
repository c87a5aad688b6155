#include <type_traits>

#include "trainer/ops/cuda/launch.h"
#include "trainer/ops/cuda/philox.h"
#include "trainer/ops/step_parameters.h"
#include "trainer/ops/table_rows.h"
#include "trainer/ops/update_backends.h"

namespace fsdp {
namespace {

constexpr int kWarps = 4;  // Per block, each with a row that some rank has sent.

struct Adagrad {
  const int64_t* ids;
  int64_t ranks, capacity, width;
  float* gradients;
  const UpdateFactors* factors;
  const float *coefficient, *mean_scale, *loss_scale;  // The last may be null.
  double lr_scale;
  float eps;
  int64_t rank, world;
  uint64_t seed;
  float* sums;
};

__device__ int64_t Find(const int64_t* ids, int64_t capacity, int64_t id) {
  const uint64_t key = static_cast<uint64_t>(id) * kRowKeyFactor;
  int64_t begin = 0, behind = capacity;
  while (begin < behind) {
    const int64_t middle = (begin + behind) / 2, row = ids[middle];
    if (row >= 0 && static_cast<uint64_t>(row) * kRowKeyFactor < key) {
      begin = middle + 1;
    } else {
      behind = middle;
    }
  }
  return begin < capacity && ids[begin] == id ? begin : -1;
}

// A finite value to one of its neighbours: row_adagrad.cc.
__device__ __nv_bfloat16 Round(float value, uint32_t draw) {
  const uint32_t bits = __float_as_uint(value);
  const bool rounds = (bits & 0x7fff0000u) < 0x7f7f0000u;
  const uint32_t up = rounds && (bits & 0xffffu) + draw > 0xffffu ? 1 : 0;
  return __builtin_bit_cast(__nv_bfloat16, static_cast<uint16_t>((bits >> 16) + up));
}

// A warp a row that a rank has sent; a lane has every 32nd element of it.
template <typename T>
__global__ void AdagradRows(Adagrad a, T* table) {
  const float number = *a.coefficient;
  if (!(number - number == 0)) return;
  const int64_t i = int64_t{blockIdx.x} * kWarps + threadIdx.y;
  const int lane = static_cast<int>(threadIdx.x);
  if (i >= a.ranks * a.capacity) return;
  const int64_t id = a.ids[i], from = i / a.capacity;
  if (id < 0) return;
  float* const g = a.gradients + i * a.width;
  for (int64_t first = 0; first < a.ranks; first += kWarp) {
    const int64_t r = first + lane;
    const int64_t at = r < a.ranks && r != from ? Find(a.ids + r * a.capacity, a.capacity, id) : -1;
    if (__ballot_sync(kAllLanes, r < from && at >= 0) != 0) return;
    uint32_t left = __ballot_sync(kAllLanes, at >= 0);
    for (; left != 0; left &= left - 1) {
      const int there = __ffs(static_cast<int>(left)) - 1;
      const int64_t place = __shfl_sync(kAllLanes, at, there);
      const float* const more = a.gradients + ((first + there) * a.capacity + place) * a.width;
      for (int64_t j = lane; j < a.width; j += kWarp) g[j] += more[j];
    }
  }
  const float scale = *a.mean_scale / (a.loss_scale == nullptr ? 1.0f : *a.loss_scale);
  float squares = 0;
  for (int64_t j = lane; j < a.width; j += kWarp) {
    g[j] *= scale;
    squares += g[j] * g[j];
  }
#pragma unroll
  for (int half = kWarp / 2; half > 0; half /= 2) {
    squares += __shfl_xor_sync(kAllLanes, squares, half);
  }
  const float sum = a.sums[id] + squares / static_cast<float>(a.width);
  __syncwarp();
  if (lane == 0) a.sums[id] = sum;
  const auto lr = static_cast<float>(a.lr_scale * a.factors->lr);
  const float step = lr / (sqrtf(sum) + a.eps);
  uint32_t key[4] = {};
  if constexpr (!std::is_same_v<T, float>) {
    const auto update = static_cast<uint64_t>(a.factors->update);
    key[0] = static_cast<uint32_t>(update), key[1] = static_cast<uint32_t>(update >> 32);
    key[2] = 3;
    DevicePhilox(key, static_cast<uint32_t>(a.seed), static_cast<uint32_t>(a.seed >> 32));
  }
  for (int64_t j = lane; j < a.width; j += kWarp) {
    T& w = table[id * a.width + j];
    const float value = ToFloat(w) - step * g[j];
    if constexpr (std::is_same_v<T, float>) {
      w = value;
    } else {
      const auto element = static_cast<uint64_t>((id * a.world + a.rank) * a.width + j);
      uint32_t words[4] = {static_cast<uint32_t>(element / 8),
                           static_cast<uint32_t>(element / 8 >> 32), 0, 0};
      DevicePhilox(words, key[0], key[1]);
      const uint32_t low = element % 8 / 2 % 2 == 0 ? words[0] : words[1];
      const uint32_t high = element % 8 / 2 % 2 == 0 ? words[2] : words[3];
      const uint32_t word = element % 8 < 4 ? low : high;
      w = Round(value, word >> (element % 2 * 16) & 0xffffu);
    }
  }
}

}  // namespace

void RowAdagradCuda(CudaStreamHandle stream, const RowAdagradOptions& options,
                    const RowAdagradOperands& o) {
  const Adagrad a{.ids = o.ids.As<int64_t>(),
                  .ranks = o.ids.shape[0],
                  .capacity = o.ids.shape[1],
                  .width = o.table.shape[1],
                  .gradients = o.gradients.As<float>(),
                  .factors = o.factors.As<UpdateFactors>(),
                  .coefficient = o.coefficient.As<float>(),
                  .mean_scale = o.mean_scale.As<float>(),
                  .loss_scale = o.loss_scale ? o.loss_scale->As<float>() : nullptr,
                  .lr_scale = options.lr_scale,
                  .eps = static_cast<float>(options.eps),
                  .rank = options.rank,
                  .world = options.world,
                  .seed = options.seed,
                  .sums = o.sums.As<float>()};
  const auto blocks = static_cast<unsigned>(CeilDiv(o.ids.NumElements(), kWarps));
  const dim3 block(kWarp, kWarps);
  if (o.table.dtype == DType::kFloat32) {
    Launch<AdagradRows<float>>(stream, blocks, block, 0, a, o.table.As<float>());
  } else {
    Launch<AdagradRows<__nv_bfloat16>>(stream, blocks, block, 0, a, o.table.As<__nv_bfloat16>());
  }
}

}  // namespace fsdp
