#include <algorithm>
#include <limits>

#include "trainer/ops/cuda/attention/row_softmax.h"
#include "trainer/ops/cuda/elements.h"
#include "trainer/ops/cuda/loss/loss_terms.h"
#include "trainer/ops/loss_backends.h"

namespace fsdp {
namespace {

template <typename T>
struct ClassLossArgs {
  const T* z;
  T* dz;  // Null: the loss alone.
  int classes;
  bool packs;
  const int32_t* targets;
  const float* weights;
  const float* loss_scale;  // Null: 1.
  double* terms;
  float scale;
};

// Each block has a row: its term of the loss, and dz. dz may be z, because each thread reads its
// pieces before it writes them, and all have read the target's logit before the first write.
template <typename T>
__global__ void ClassLossOfRows(ClassLossArgs<T> args) {
  constexpr int kWide = kPack<T>;
  using Piece = Elements<T, kWide>;
  __shared__ RowSoftmaxShared shared;
  const int64_t i = blockIdx.x, row = i * args.classes;
  const int begin = static_cast<int>(threadIdx.x) * kWide;
  const int step = static_cast<int>(blockDim.x) * kWide;
  const auto write = [&](const Piece& piece, int at) {
    piece.Write(args.dz + row + at, args.classes - at, args.packs);
  };
  const float weight = args.weights[i];
  if (weight == 0) {
    if (threadIdx.x == 0) args.terms[i] = 0;
    if (args.dz == nullptr) return;
    for (int at = begin; at < args.classes; at += step) write(Piece{}, at);
    return;
  }
  const int32_t target = args.targets[i];
  const float target_logit = ToFloat(args.z[row + target]);
  const auto read = [&](int at) {
    Piece piece;
    piece.Read(args.z + row + at, args.classes - at, args.packs);
    return piece;
  };
  RunningSum mine;
  for (int at = begin; at < args.classes; at += step) {
    mine.Add(read(at), min(kWide, args.classes - at));
  }
  const RowSoftmax softmax = SoftmaxOfBlock(mine, shared);
  if (threadIdx.x == 0) args.terms[i] = weight * softmax.NegativeLog(target_logit);
  if (args.dz == nullptr) return;
  // factor (e - [target] sum).
  const float all = static_cast<float>(softmax.sum);
  const float gradient_scale = args.loss_scale == nullptr ? 1.0f : *args.loss_scale;
  const float factor = args.scale * weight / all * gradient_scale;
  for (int at = begin; at < args.classes; at += step) {
    Piece piece = read(at);
    float g[kWide];
#pragma unroll
    for (int e = 0; e < kWide; ++e) {
      g[e] = factor * (softmax.Power(piece[e]) - (at + e == target ? all : 0.0f));
    }
    piece.Set(g);
    write(piece, at);
  }
}

template <typename T>
struct CorrectClassesArgs {
  const T* z;
  int classes;
  bool packs;
  const int32_t* targets;
  const float* weights;
  double* terms;
};

// Each block has a row: its weight, or 0 where another logit comes before the target's. Comparisons
// with a NaN are false.
template <typename T>
__global__ void CorrectClassesOfRows(CorrectClassesArgs<T> args) {
  constexpr int kWide = kPack<T>;
  __shared__ float of_warps[kMostLossThreads / kWarp];
  const int64_t i = blockIdx.x, row = i * args.classes;
  const float weight = args.weights[i];
  if (weight == 0) {
    if (threadIdx.x == 0) args.terms[i] = 0;
    return;
  }
  const int32_t target = args.targets[i];
  const float highest = ToFloat(args.z[row + target]);
  float others = 0;
  const int step = static_cast<int>(blockDim.x) * kWide;
  for (int at = static_cast<int>(threadIdx.x) * kWide; at < args.classes; at += step) {
    Elements<T, kWide> piece;
    piece.Read(args.z + row + at, args.classes - at, args.packs);
#pragma unroll
    for (int e = 0; e < kWide; ++e) {
      const int v = at + e;
      const bool behind = v < target ? piece[e] < highest : piece[e] <= highest;
      if (v < args.classes && !behind) others = 1;
    }
  }
  others = BlockMax(others, of_warps);
  if (threadIdx.x == 0) args.terms[i] = others > 0 ? 0 : weight;
}

void RequireFits(const ConstView& z) {
  constexpr int64_t kMost = std::numeric_limits<int>::max();
  // A row's last piece ends beyond it.
  if (z.shape[1] > kMost / 2 || z.shape[0] > kMost) {
    throw DeviceError("a loss of 2^31 rows or 2^30 classes");
  }
}

template <typename T>
dim3 ThreadsOf(int64_t classes) {
  const int64_t warps = CeilDiv(classes, kPack<T> * kWarp);
  return dim3(std::min<int64_t>(kMostLossThreads, warps * kWarp));
}

}  // namespace

void CountCorrectClassesCuda(CudaStreamHandle stream, const LogitLoss& count) {
  const ConstView& z = count.z;
  const int64_t rows = z.shape[0], classes = z.shape[1];
  RequireFits(z);
  double* const terms = count.workspace.As<double>();
  ForFloat(z.dtype, [&](auto is) {
    using T = typename decltype(is)::type;
    const CorrectClassesArgs<T> args{.z = z.As<T>(),
                                     .classes = static_cast<int>(classes),
                                     .packs = InPacks(z.As<T>(), classes),
                                     .targets = count.targets.As<int32_t>(),
                                     .weights = count.weights.As<float>(),
                                     .terms = terms};
    Launch<CorrectClassesOfRows<T>>(stream, dim3(rows), ThreadsOf<T>(classes), 0, args);
  });
  AddLossTerms(stream, terms, rows, count.scale, count.loss.As<float>());
}

void ClassLossCuda(CudaStreamHandle stream, const LogitLoss& loss) {
  const ConstView& z = loss.z;
  const int64_t rows = z.shape[0], classes = z.shape[1];
  RequireFits(z);
  ForFloat(z.dtype, [&](auto is) {
    using T = typename decltype(is)::type;
    T* const out = loss.dz ? loss.dz->As<T>() : nullptr;
    const ClassLossArgs<T> args{
        .z = z.As<T>(),
        .dz = out,
        .classes = static_cast<int>(classes),
        .packs = InPacks(z.As<T>(), classes) && (out == nullptr || InPacks(out, classes)),
        .targets = loss.targets.As<int32_t>(),
        .weights = loss.weights.As<float>(),
        .loss_scale = loss.loss_scale ? loss.loss_scale->As<float>() : nullptr,
        .terms = loss.workspace.As<double>(),
        .scale = loss.scale};
    Launch<ClassLossOfRows<T>>(stream, dim3(rows), ThreadsOf<T>(classes), 0, args);
  });
  AddLossTerms(stream, loss.workspace.As<double>(), rows, loss.scale, loss.loss.As<float>());
}

}  // namespace fsdp
