#include "trainer/ops/cuda/elements.h"
#include "trainer/ops/image_backends.h"

namespace fsdp {
namespace {

struct PatchGrid {
  int64_t height, width, channels, patch, cols;
  bool channel_first;
};

template <typename T>
__global__ void CutRows(const float* pixels, PatchGrid g, int64_t rows, T* patches) {
  ForEachPiece(rows, g.cols, [&](int64_t row, int64_t at) {
    const int64_t along = g.width / g.patch, all = g.height / g.patch * along;
    const int64_t sample = row / all, place = row % all;
    int64_t channel, y, x;
    if (g.channel_first) {
      channel = at / (g.patch * g.patch), y = at / g.patch % g.patch, x = at % g.patch;
    } else {
      channel = at % g.channels, x = at / g.channels % g.patch, y = at / g.channels / g.patch;
    }
    const int64_t line = sample * g.height + place / along * g.patch + y;
    const int64_t from = (line * g.width + place % along * g.patch + x) * g.channels + channel;
    patches[row * g.cols + at] = FromFloat<T>(pixels[from]);
  });
}

template <typename T>
__global__ void JoinRows(const T* x, DeviceWeight<T> first, DeviceWeight<T> positions, int64_t rows,
                         int64_t all, int64_t cols, bool packs, T* y) {
  constexpr int kPiece = kPack<T>;
  ForEachPiece(rows, CeilDiv(cols, kPiece), [&](int64_t row, int64_t piece) {
    const int64_t col = piece * kPiece, count = cols - col;
    const int64_t sample = row / all, place = row % all;
    float sum[kPiece], position[kPiece];
    positions.Read(place * cols + col, count, packs, position);
    if (place == 0) {
      first.Read(col, count, packs, sum);
    } else {
      Elements<T, kPiece> token;
      token.Read(x + (sample * (all - 1) + place - 1) * cols + col, count, packs);
#pragma unroll
      for (int j = 0; j < kPiece; ++j) sum[j] = token[j];
    }
#pragma unroll
    for (int j = 0; j < kPiece; ++j) sum[j] += position[j];
    Elements<T, kPiece> out;
    out.Set(sum);
    out.Write(y + row * cols + col, count, packs);
  });
}

// The first `rows` of every `all` rows of dy, summed over samples.
template <typename T, typename G>
__global__ void AddSamples(const T* dy, int64_t samples, int64_t rows, int64_t all, int64_t cols,
                           G* sums) {
  ForEachPiece(rows, cols, [&](int64_t row, int64_t col) {
    G* const to = sums + row * cols + col;
    float sum = ToFloat(*to);
    for (int64_t s = 0; s < samples; ++s) sum += ToFloat(dy[(s * all + row) * cols + col]);
    *to = FromFloat<G>(sum);
  });
}

// Row r of `to` is row r / count * all + skipped + r % count of `from`.
template <typename T>
__global__ void CopyRows(const T* from, int64_t rows, int64_t count, int64_t all, int64_t skipped,
                         int64_t cols, bool packs, T* to) {
  ForEachPiece(rows, CeilDiv(cols, kPack<T>), [&](int64_t row, int64_t piece) {
    const int64_t col = piece * kPack<T>;
    Elements<T, kPack<T>> elements;
    elements.Read(from + (row / count * all + skipped + row % count) * cols + col, cols - col,
                  packs);
    elements.Write(to + row * cols + col, cols - col, packs);
  });
}

// Every `all`-th row is the next one of dy, all others are zero.
template <typename T>
__global__ void SpreadRows(const T* dy, int64_t rows, int64_t all, int64_t cols, bool packs,
                           T* dx) {
  ForEachPiece(rows, CeilDiv(cols, kPack<T>), [&](int64_t row, int64_t piece) {
    const int64_t col = piece * kPack<T>;
    Elements<T, kPack<T>> elements{};
    if (row % all == 0) elements.Read(dy + row / all * cols + col, cols - col, packs);
    elements.Write(dx + row * cols + col, cols - col, packs);
  });
}

}  // namespace

void CutPatchesCuda(CudaStreamHandle stream, const ConstView& pixels, int64_t patch,
                    PatchOrder order, const View& patches) {
  ForFloat(patches.dtype, [&](auto is) {
    using T = typename decltype(is)::type;
    const int64_t rows = patches.shape[0], cols = patches.shape[1];
    const PatchGrid g{pixels.shape[1],
                      pixels.shape[2],
                      pixels.shape[3],
                      patch,
                      cols,
                      order == PatchOrder::kChannelFirst};
    const RowGrid on = GridOfRows(rows, cols);
    Launch<CutRows<T>>(stream, on.grid, on.block, 0, pixels.As<float>(), g, rows, patches.As<T>());
  });
}

void JoinTokensForwardCuda(CudaStreamHandle stream, const ConstView& x, const ConstView& first,
                           const ConstView& positions, int64_t samples, const View& y) {
  ForFloat(y.dtype, [&](auto is) {
    using T = typename decltype(is)::type;
    const int64_t rows = y.shape[0], cols = y.shape[1];
    const RowGrid on = GridOfRows(rows, CeilDiv(cols, kPack<T>));
    const bool packs = InPacks(y.As<T>(), cols) && IsAligned(x.data) && IsAligned(first.data) &&
                       IsAligned(positions.data);
    Launch<JoinRows<T>>(stream, on.grid, on.block, 0, x.As<T>(), WeightOf<T>(first),
                        WeightOf<T>(positions), rows, rows / samples, cols, packs, y.As<T>());
  });
}

void JoinTokensBackwardCuda(CudaStreamHandle stream, const ConstView& dy, int64_t samples,
                            const View& dx, const std::optional<View>& dfirst,
                            const std::optional<View>& dpositions) {
  const int64_t cols = dy.shape[1], all = dy.shape[0] / samples;
  ForFloat(dy.dtype, [&](auto is) {
    using T = typename decltype(is)::type;
    const int64_t rows = dx.shape[0];
    const RowGrid on = GridOfRows(rows, CeilDiv(cols, kPack<T>));
    const bool packs = InPacks(dy.As<T>(), cols) && IsAligned(dx.data);
    Launch<CopyRows<T>>(stream, on.grid, on.block, 0, dy.As<T>(), rows, all - 1, all, int64_t{1},
                        cols, packs, dx.As<T>());
    const auto add = [&](const std::optional<View>& sums, int64_t of) {
      if (!sums) return;
      ForFloat(sums->dtype, [&](auto sums_are) {
        using G = typename decltype(sums_are)::type;
        const RowGrid over = GridOfRows(of, cols);
        Launch<AddSamples<T, G>>(stream, over.grid, over.block, 0, dy.As<T>(), samples, of, all,
                                 cols, sums->As<G>());
      });
    };
    add(dfirst, 1);
    add(dpositions, all);
  });
}

void FirstTokensForwardCuda(CudaStreamHandle stream, const ConstView& x, const View& y) {
  const int64_t samples = y.shape[0], cols = y.shape[1];
  ForFloat(y.dtype, [&](auto is) {
    using T = typename decltype(is)::type;
    const RowGrid on = GridOfRows(samples, CeilDiv(cols, kPack<T>));
    const bool packs = InPacks(x.As<T>(), cols) && IsAligned(y.data);
    Launch<CopyRows<T>>(stream, on.grid, on.block, 0, x.As<T>(), samples, int64_t{1},
                        x.shape[0] / samples, int64_t{0}, cols, packs, y.As<T>());
  });
}

void FirstTokensBackwardCuda(CudaStreamHandle stream, const ConstView& dy, const View& dx) {
  const int64_t samples = dy.shape[0], cols = dy.shape[1], rows = dx.shape[0];
  ForFloat(dx.dtype, [&](auto is) {
    using T = typename decltype(is)::type;
    const RowGrid on = GridOfRows(rows, CeilDiv(cols, kPack<T>));
    const bool packs = InPacks(dy.As<T>(), cols) && IsAligned(dx.data);
    Launch<SpreadRows<T>>(stream, on.grid, on.block, 0, dy.As<T>(), rows, rows / samples, cols,
                          packs, dx.As<T>());
  });
}

}  // namespace fsdp
