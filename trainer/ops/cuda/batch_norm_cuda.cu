#include "trainer/ops/batch_norm_backends.h"
#include "trainer/ops/cuda/elements.h"

namespace fsdp {
namespace {

constexpr int kRowsAtOnce = 8;  // Per block: each by a warp, with a channel for each lane.
constexpr int kThreads = 128;
constexpr int kJoiners = 16;  // Warps of a block that joins pieces, with a column for each lane.

// A channel's norm as y = scale x + shift, and what backward needs.
struct Channel {
  float scale, shift, mean, r;
};
template <typename T>
__device__ inline Channel ChannelOf(const float* statistics, const DeviceWeight<T>& w,
                                    const DeviceWeight<T>& b, int64_t channels, int64_t c) {
  const float mean = statistics[1 + c], r = statistics[1 + channels + c];
  const float scale = w.At(c) * r;
  return {scale, __fmaf_rn(-mean, scale, b.At(c)), mean, r};
}

// The pixels of piece blockIdx.y, as rows of all samples'.
struct Piece {
  int64_t sample, first, rows;
};
__device__ inline Piece PieceAt(const BatchNormShape& s, int64_t index) {
  const int64_t of_sample = (s.pixels + BatchNormShape::kPiece - 1) / BatchNormShape::kPiece;
  const int64_t sample = index / of_sample;
  const int64_t pixel = index % of_sample * BatchNormShape::kPiece, left = s.pixels - pixel;
  return {sample, sample * s.pixels + pixel,
          left < BatchNormShape::kPiece ? left : int64_t{BatchNormShape::kPiece}};
}

// The sum over a block's warps of each lane's values; all threads get it.
__device__ inline float SumOfWarps(float value, float (&shared)[kRowsAtOnce][kWarp]) {
  shared[threadIdx.y][threadIdx.x] = value;
  __syncthreads();
  float sum = 0;
#pragma unroll
  for (int w = 0; w < kRowsAtOnce; ++w) sum += shared[w][threadIdx.x];
  __syncthreads();
  return sum;
}

template <typename T>
__global__ void MomentsOfPieces(BatchNormShape s, const T* x, const float* weights, float* to) {
  __shared__ float shared[kRowsAtOnce][kWarp];
  const int64_t index = blockIdx.x, c = int64_t{blockIdx.y} * kWarp + threadIdx.x;
  const Piece piece = PieceAt(s, index);
  if (weights[piece.sample] == 0) return;  // The whole block.
  const bool has = c < s.channels;
  float sum = 0;
  for (int64_t i = threadIdx.y; has && i < piece.rows; i += kRowsAtOnce) {
    sum += ToFloat(x[(piece.first + i) * s.channels + c]);
  }
  const float mean = SumOfWarps(sum, shared) / static_cast<float>(piece.rows);
  float squares = 0;
  for (int64_t i = threadIdx.y; has && i < piece.rows; i += kRowsAtOnce) {
    const float d = ToFloat(x[(piece.first + i) * s.channels + c]) - mean;
    squares += d * d;
  }
  squares = SumOfWarps(squares, shared);
  if (threadIdx.y != 0 || !has) return;
  to[index * 2 * s.channels + c] = mean;
  to[(index * 2 + 1) * s.channels + c] = squares;
}

// Means and squares of more and more pixels. It has no value of its own: shared memory keeps some.
struct Joined {
  double count, mean, squares;

  __device__ void Add(double n, double its_mean, double its_squares) {
    if (n == 0) return;
    const double all = count + n, apart = its_mean - mean;
    mean += apart * n / all;
    squares += its_squares + apart * apart * count * n / all;
    count = all;
  }
  __device__ void Add(const Joined& other) { Add(other.count, other.mean, other.squares); }
};

struct Sum {
  double value;

  __device__ void Add(const Sum& other) { value += other.value; }
};

// Adds up what the threads of a column have, in a tree whose shape is always the same. The first
// warp gets it; all threads of the block call.
template <typename T>
__device__ inline T AddColumns(const T& mine) {
  __shared__ T shared[kJoiners][kWarp];
  T& at = shared[threadIdx.y][threadIdx.x];
  at = mine;
  for (int half = kJoiners / 2; half > 0; half /= 2) {
    __syncthreads();
    if (static_cast<int>(threadIdx.y) < half) at.Add(shared[threadIdx.y + half][threadIdx.x]);
  }
  return at;
}

__global__ void JoinPieces(BatchNormShape s, int64_t pieces, const float* of_pieces,
                           const float* weights, float* part) {
  const int64_t c = int64_t{blockIdx.x} * kWarp + threadIdx.x;
  Joined joined = {};
  for (int64_t i = threadIdx.y; c < s.channels && i < pieces; i += kJoiners) {
    const Piece piece = PieceAt(s, i);
    if (weights[piece.sample] == 0) continue;
    joined.Add(static_cast<double>(piece.rows), of_pieces[i * 2 * s.channels + c],
               of_pieces[(i * 2 + 1) * s.channels + c]);
  }
  joined = AddColumns(joined);
  if (threadIdx.y != 0 || c >= s.channels) return;
  if (c == 0) part[0] = static_cast<float>(joined.count);
  part[1 + c] = static_cast<float>(joined.mean);
  part[1 + s.channels + c] = static_cast<float>(joined.squares);
}

__device__ inline void Remember(float* running, int64_t c, float momentum, double value) {
  if (running == nullptr) return;
  const double before = running[c];
  running[c] = static_cast<float>(before + momentum * (value - before));
}

__global__ void JoinParts(const float* parts, int64_t ranks, int64_t channels, float eps,
                          float* statistics, float momentum, float* mean, float* variance) {
  const int64_t c = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (c >= channels) return;
  Joined joined = {};
  for (int64_t rank = 0; rank < ranks; ++rank) {
    const float* const part = parts + rank * (1 + 2 * channels);
    joined.Add(part[0], part[1 + c], part[1 + channels + c]);
  }
  const bool counts = joined.count > 0;
  const double of_batch = counts ? joined.squares / joined.count : 0;
  if (c == 0) statistics[0] = static_cast<float>(joined.count);
  statistics[1 + c] = static_cast<float>(joined.mean);
  statistics[1 + channels + c] =
      counts ? static_cast<float>(1 / sqrt(of_batch + static_cast<double>(eps))) : 0.0f;
  if (!counts) return;
  Remember(mean, c, momentum, joined.mean);
  Remember(variance, c, momentum, joined.squares / (joined.count > 2 ? joined.count - 1 : 1));
}

__global__ void UseRunning(const float* mean, const float* variance, int64_t channels, float eps,
                           float* statistics) {
  const int64_t c = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (c >= channels) return;
  if (c == 0) statistics[0] = 0;
  statistics[1 + c] = mean[c];
  const double of_channel = static_cast<double>(variance[c]) + static_cast<double>(eps);
  statistics[1 + channels + c] = static_cast<float>(1 / sqrt(of_channel));
}

template <typename T>
__global__ void NormRows(BatchNormShape s, int64_t rows, const T* x, const float* statistics,
                         DeviceWeight<T> w, DeviceWeight<T> b, bool relu, T* y) {
  ForEachPiece(rows, s.channels, [&](int64_t row, int64_t c) {
    const Channel at = ChannelOf(statistics, w, b, s.channels, c);
    const float value = __fmaf_rn(ToFloat(x[row * s.channels + c]), at.scale, at.shift);
    y[row * s.channels + c] = FromFloat<T>(relu && value <= 0 ? 0.0f : value);
  });
}

template <typename T>
__global__ void SumsOfPieces(BatchNormShape s, const T* x, const float* statistics,
                             DeviceWeight<T> w, DeviceWeight<T> b, bool relu, const T* dy,
                             float* to) {
  __shared__ float shared[kRowsAtOnce][kWarp];
  const int64_t index = blockIdx.x, c = int64_t{blockIdx.y} * kWarp + threadIdx.x;
  const Piece piece = PieceAt(s, index);
  const bool has = c < s.channels;
  float first = 0, second = 0;
  if (has) {
    const Channel at = ChannelOf(statistics, w, b, s.channels, c);
    for (int64_t i = threadIdx.y; i < piece.rows; i += kRowsAtOnce) {
      const int64_t element = (piece.first + i) * s.channels + c;
      const float in = ToFloat(x[element]);
      const bool off = relu && __fmaf_rn(in, at.scale, at.shift) <= 0;
      const float d = off ? 0.0f : ToFloat(dy[element]);
      first += d;
      second += d * ((in - at.mean) * at.r);
    }
  }
  first = SumOfWarps(first, shared);
  second = SumOfWarps(second, shared);
  if (threadIdx.y != 0 || !has) return;
  to[index * 2 * s.channels + c] = first;
  to[(index * 2 + 1) * s.channels + c] = second;
}

__device__ inline void AddTo(void* gradient, DType dtype, int64_t c, float value) {
  if (gradient == nullptr) return;
  const auto add = [&](auto* to) {
    using G = std::remove_pointer_t<decltype(to)>;
    to[c] = FromFloat<G>(ToFloat(to[c]) + value);
  };
  if (dtype == DType::kFloat32) {
    add(static_cast<float*>(gradient));
  } else if (dtype == DType::kBFloat16) {
    add(static_cast<__nv_bfloat16*>(gradient));
  } else {
    add(static_cast<__half*>(gradient));
  }
}

// Columns of sums: those of g, then those of g h.
__global__ void AddPieces(int64_t pieces, int64_t channels, const float* of_pieces, float* sums,
                          void* dw, DType dw_dtype, void* db, DType db_dtype) {
  const int64_t c = int64_t{blockIdx.x} * kWarp + threadIdx.x;
  Sum sum = {};
  for (int64_t i = threadIdx.y; c < 2 * channels && i < pieces; i += kJoiners) {
    sum.value += of_pieces[i * 2 * channels + c];
  }
  sum = AddColumns(sum);
  if (threadIdx.y != 0 || c >= 2 * channels) return;
  const auto rounded = static_cast<float>(sum.value);
  sums[c] = rounded;
  if (c < channels) {
    AddTo(db, db_dtype, c, rounded);
  } else {
    AddTo(dw, dw_dtype, c - channels, rounded);
  }
}

template <typename T>
__global__ void BackwardRows(BatchNormShape s, int64_t rows, const T* x, const float* weights,
                             const float* statistics, DeviceWeight<T> w, DeviceWeight<T> b,
                             bool relu, const float* sums, const T* dy, T* dx) {
  ForEachPiece(rows, s.channels, [&](int64_t row, int64_t c) {
    const Channel at = ChannelOf(statistics, w, b, s.channels, c);
    const float count = statistics[0], part = count > 0 ? 1 / count : 0.0f;
    const float in = ToFloat(x[row * s.channels + c]);
    const bool off = relu && __fmaf_rn(in, at.scale, at.shift) <= 0;
    const float d = off ? 0.0f : ToFloat(dy[row * s.channels + c]);
    const float slope = sums[s.channels + c] * part * at.r;
    const float along = sums[c] * part + (in - at.mean) * slope;
    const float counts = weights[row / s.pixels] != 0 ? 1.0f : 0.0f;
    dx[row * s.channels + c] = FromFloat<T>(at.scale * (d - counts * along));
  });
}

dim3 GridOfPieces(const BatchNormShape& s) {
  return dim3(static_cast<unsigned>(s.pieces()), static_cast<unsigned>(CeilDiv(s.channels, kWarp)));
}
dim3 GridOfChannels(int64_t channels) {
  return dim3(static_cast<unsigned>(CeilDiv(channels, kThreads)));
}
dim3 GridOfColumns(int64_t columns) { return dim3(static_cast<unsigned>(CeilDiv(columns, kWarp))); }

}  // namespace

void BatchMomentsCuda(CudaStreamHandle stream, const BatchNormShape& s, const ConstView& x,
                      const ConstView& weights, const View& part, const View& workspace) {
  auto* const of_pieces = reinterpret_cast<float*>(workspace.data);
  ForFloat(x.dtype, [&](auto is) {
    using T = typename decltype(is)::type;
    Launch<MomentsOfPieces<T>>(stream, GridOfPieces(s), dim3(kWarp, kRowsAtOnce), 0, s, x.As<T>(),
                               weights.As<float>(), of_pieces);
  });
  Launch<JoinPieces>(stream, GridOfColumns(s.channels), dim3(kWarp, kJoiners), 0, s, s.pieces(),
                     of_pieces, weights.As<float>(), part.As<float>());
}

void JoinMomentsCuda(CudaStreamHandle stream, const ConstView& parts, float eps,
                     const View& statistics, float momentum, const std::optional<View>& mean,
                     const std::optional<View>& variance) {
  const int64_t channels = parts.shape[1] / 2;
  Launch<JoinParts>(stream, GridOfChannels(channels), dim3(kThreads), 0, parts.As<float>(),
                    parts.shape[0], channels, eps, statistics.As<float>(), momentum,
                    mean ? mean->As<float>() : nullptr, variance ? variance->As<float>() : nullptr);
}

void UseRunningMomentsCuda(CudaStreamHandle stream, const ConstView& mean,
                           const ConstView& variance, float eps, const View& statistics) {
  const int64_t channels = mean.shape[0];
  Launch<UseRunning>(stream, GridOfChannels(channels), dim3(kThreads), 0, mean.As<float>(),
                     variance.As<float>(), channels, eps, statistics.As<float>());
}

void BatchNormForwardCuda(CudaStreamHandle stream, const BatchNormShape& s, const ConstView& x,
                          const ConstView& statistics, const ConstView& w, const ConstView& b,
                          bool relu, const View& y) {
  ForFloat(x.dtype, [&](auto is) {
    using T = typename decltype(is)::type;
    const RowGrid on = GridOfRows(s.rows(), s.channels);
    Launch<NormRows<T>>(stream, on.grid, on.block, 0, s, s.rows(), x.As<T>(),
                        statistics.As<float>(), WeightOf<T>(w), WeightOf<T>(b), relu, y.As<T>());
  });
}

void BatchNormSumsCuda(CudaStreamHandle stream, const BatchNormShape& s, const ConstView& x,
                       const ConstView& statistics, const ConstView& w, const ConstView& b,
                       bool relu, const ConstView& dy, const std::optional<View>& dw,
                       const std::optional<View>& db, const View& sums, const View& workspace) {
  auto* const of_pieces = reinterpret_cast<float*>(workspace.data);
  ForFloat(x.dtype, [&](auto is) {
    using T = typename decltype(is)::type;
    Launch<SumsOfPieces<T>>(stream, GridOfPieces(s), dim3(kWarp, kRowsAtOnce), 0, s, x.As<T>(),
                            statistics.As<float>(), WeightOf<T>(w), WeightOf<T>(b), relu,
                            dy.As<T>(), of_pieces);
  });
  const auto data = [](const std::optional<View>& view) {
    return view ? static_cast<void*>(view->data) : nullptr;
  };
  const auto dtype = [](const std::optional<View>& view) {
    return view ? view->dtype : DType::kFloat32;
  };
  Launch<AddPieces>(stream, GridOfColumns(2 * s.channels), dim3(kWarp, kJoiners), 0, s.pieces(),
                    s.channels, of_pieces, sums.As<float>(), data(dw), dtype(dw), data(db),
                    dtype(db));
}

void BatchNormBackwardCuda(CudaStreamHandle stream, const BatchNormShape& s, const ConstView& x,
                           const ConstView& weights, const ConstView& statistics,
                           const ConstView& w, const ConstView& b, bool relu, const ConstView& sums,
                           const ConstView& dy, const View& dx) {
  ForFloat(x.dtype, [&](auto is) {
    using T = typename decltype(is)::type;
    const RowGrid on = GridOfRows(s.rows(), s.channels);
    Launch<BackwardRows<T>>(stream, on.grid, on.block, 0, s, s.rows(), x.As<T>(),
                            weights.As<float>(), statistics.As<float>(), WeightOf<T>(w),
                            WeightOf<T>(b), relu, sums.As<float>(), dy.As<T>(), dx.As<T>());
  });
}

}  // namespace fsdp
