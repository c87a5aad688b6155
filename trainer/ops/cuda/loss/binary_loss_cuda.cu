#include "trainer/ops/cuda/block_sum.h"
#include "trainer/ops/cuda/launch.h"
#include "trainer/ops/cuda/loss/loss_terms.h"
#include "trainer/ops/loss_backends.h"

namespace fsdp {
namespace {

template <typename T>
struct BinaryLossArgs {
  const T* z;
  T* dz;  // Null: the loss alone.
  int64_t rows;
  const float* targets;
  const float* weights;
  const float* loss_scale;  // Null: 1.
  double* sums;
  float scale;
};

// A row a thread, and a sum of their terms a block. dz may be z.
template <typename T>
__global__ void __launch_bounds__(kLossGroup) BinaryLossOfRows(BinaryLossArgs<T> args) {
  __shared__ double of_warps[kLossGroup / kWarp];
  const int64_t i = int64_t{blockIdx.x} * kLossGroup + threadIdx.x;
  const float weight = i < args.rows ? args.weights[i] : 0.0f;
  double term = 0;
  if (weight != 0) {
    const float z = ToFloat(args.z[i]), t = args.targets[i];
    const float e = expf(-fabsf(z)), r = 1.0f / (1.0f + e);
    // A NaN is neither above 0 nor below it.
    const double most = z < 0.0f ? 0.0f : z;
    term = weight * (most - static_cast<double>(z) * t + log1pf(e));
    if (args.dz != nullptr) {
      const float s = z < 0.0f ? e * r : r, rest = z < 0.0f ? r : e * r;
      const float gradient_scale = args.loss_scale == nullptr ? 1.0f : *args.loss_scale;
      const float factor = args.scale * weight * gradient_scale;
      args.dz[i] = FromFloat<T>(factor * (s * (1.0f - t) - rest * t));
    }
  } else if (i < args.rows && args.dz != nullptr) {
    args.dz[i] = FromFloat<T>(0);
  }
  const double sum = BlockSum(term, of_warps);
  if (threadIdx.x == 0) args.sums[blockIdx.x] = sum;
}

__global__ void __launch_bounds__(kLossGroup)
    SumTargetsOfRows(const float* targets, const float* weights, int64_t rows, double* sums) {
  __shared__ double of_warps[kLossGroup / kWarp];
  const int64_t i = int64_t{blockIdx.x} * kLossGroup + threadIdx.x;
  const float weight = i < rows ? weights[i] : 0.0f;
  const double term = weight == 0 ? 0 : static_cast<double>(weight) * targets[i];
  const double sum = BlockSum(term, of_warps);
  if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

}  // namespace

void SumOfTargetsCuda(CudaStreamHandle stream, const ConstView& targets, const ConstView& weights,
                      const View& sum, const View& workspace) {
  const int64_t rows = targets.shape[0], groups = LossGroups(rows);
  double* const sums = workspace.As<double>();
  Launch<SumTargetsOfRows>(stream, dim3(groups), dim3(kLossGroup), 0, targets.As<float>(),
                           weights.As<float>(), rows, sums);
  AddLossTerms(stream, sums, groups, 1, sum.As<float>());
}

void BinaryLossCuda(CudaStreamHandle stream, const LogitLoss& loss) {
  const int64_t rows = loss.z.shape[0], groups = LossGroups(rows);
  double* const sums = loss.workspace.As<double>();
  ForFloat(loss.z.dtype, [&](auto is) {
    using T = typename decltype(is)::type;
    const BinaryLossArgs<T> args{
        .z = loss.z.As<T>(),
        .dz = loss.dz ? loss.dz->As<T>() : nullptr,
        .rows = rows,
        .targets = loss.targets.As<float>(),
        .weights = loss.weights.As<float>(),
        .loss_scale = loss.loss_scale ? loss.loss_scale->As<float>() : nullptr,
        .sums = sums,
        .scale = loss.scale};
    Launch<BinaryLossOfRows<T>>(stream, dim3(groups), dim3(kLossGroup), 0, args);
  });
  AddLossTerms(stream, sums, groups, loss.scale, loss.loss.As<float>());
}

}  // namespace fsdp
