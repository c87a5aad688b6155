#include <algorithm>
#include <cstring>
#include <vector>

#include "trainer/ops/convolution_backends.h"
#include "trainer/ops/cpu/floats.h"
#include "trainer/ops/cpu/gemm/gemm.h"

namespace fsdp {
namespace {

// A thread's memory for unfolded pixels, and for results that are not stored in place at once.
constexpr int64_t kTileBytes = int64_t{1} << 20;
constexpr int64_t kFewestRows = 16;

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

// A thread's own memory, which it keeps.
template <int n>
std::byte* Scratch(int64_t bytes) {
  thread_local std::vector<std::byte> memory;
  if (static_cast<int64_t>(memory.size()) < bytes) memory.resize(static_cast<size_t>(bytes));
  return memory.data();
}

// Where a tap looks, from the pixel of the source that belongs to a pixel of the target.
struct Tap {
  int64_t down, right;
};

// Images whose pixels are read by taps: pixel (i, j) of the target reads (i step + down, j step +
// right), which is zero outside the image. `begin`: the first of a group's channels.
struct Unfolding {
  ConstView source;  // [samples, height, width, all channels]
  int64_t begin, channels;
  int64_t step;
  int64_t down, along;  // Pixels of the target's sides.
  std::vector<Tap> taps;

  int64_t cols() const { return static_cast<int64_t>(taps.size()) * channels; }
  int64_t pixels() const { return source.shape[0] * down * along; }
};

// memcpy, without a call for the sizes of narrow groups.
void CopyBytes(std::byte* to, const std::byte* from, int64_t bytes) {
  switch (bytes) {
    case 16:
      std::memcpy(to, from, 16);
      return;
    case 32:
      std::memcpy(to, from, 32);
      return;
    case 64:
      std::memcpy(to, from, 64);
      return;
    default:
      std::memcpy(to, from, static_cast<size_t>(bytes));
  }
}

// Rows [first, first + rows) of the unfolded matrix [pixels, taps * channels].
void Unfold(const Unfolding& u, int64_t first, int64_t rows, std::byte* to) {
  const int64_t height = u.source.shape[1], width = u.source.shape[2], all = u.source.shape[3];
  const int64_t size = SizeOf(u.source.dtype), bytes = u.channels * size;
  for (int64_t row = first; row < first + rows; ++row) {
    const int64_t sample = row / (u.down * u.along), place = row % (u.down * u.along);
    const int64_t i = place / u.along * u.step, j = place % u.along * u.step;
    const std::byte* const image = u.source.data + (sample * height * width * all + u.begin) * size;
    for (const Tap& tap : u.taps) {
      const int64_t y = i + tap.down, x = j + tap.right;
      if (0 <= y && y < height && 0 <= x && x < width) {
        CopyBytes(to, image + (y * width + x) * all * size, bytes);
      } else {
        std::memset(to, 0, static_cast<size_t>(bytes));
      }
      to += bytes;
    }
  }
}

// The number of rows of the unfolded matrix that are made at a time: as many as a tile holds, and
// for small images few enough that there are several tiles. The shape alone decides it.
int64_t RowsOfTile(int64_t pixels, int64_t cols, int64_t size, int64_t groups) {
  constexpr int64_t kTiles = 8, kFewest = 64;
  const int64_t hold = kTileBytes / std::max<int64_t>(1, cols * size);
  const int64_t share = std::max(kFewest, CeilDiv(pixels * groups, kTiles));
  return std::max(kFewestRows, std::min({hold, share, pixels}) / 8 * 8);
}

std::vector<Tap> ForwardTaps(const ConvolutionShape& s) {
  std::vector<Tap> taps;
  for (int64_t a = 0; a < s.kernel_height; ++a) {
    for (int64_t b = 0; b < s.kernel_width; ++b) {
      taps.push_back({a - s.window.padding_height, b - s.window.padding_width});
    }
  }
  return taps;
}

// w [out, c, taps] becomes [groups][taps, c][group's outputs], which the unfolded pixels are
// multiplied by.
template <typename T>
void FoldedWeights(ThreadPool& pool, const ConvolutionShape& s, const T* w, T* to) {
  constexpr int64_t kOutputs = 16;  // At a time: a cache line of floats.
  const int64_t outputs = s.group_out(), channels = s.group_in(), taps = s.taps();
  const int64_t terms = s.terms(), pieces = CeilDiv(outputs, kOutputs);
  pool.ParallelFor(s.window.groups * pieces, 1, [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      const int64_t group = task / pieces, first = task % pieces * kOutputs;
      const int64_t n = std::min(kOutputs, outputs - first);
      const T* const from = w + (group * outputs + first) * terms;
      T* const at = to + group * terms * outputs + first;
      for (int64_t c = 0; c < channels; ++c) {
        for (int64_t t = 0; t < taps; ++t) {
          T* const row = at + (t * channels + c) * outputs;
          for (int64_t o = 0; o < n; ++o) row[o] = from[o * terms + c * taps + t];
        }
      }
    }
  });
}

// Calls f(T*) for the unsigned type T of an element's size.
template <typename Function>
void ForBits(DType dtype, const Function& f) {
  if (SizeOf(dtype) == 4) return f(static_cast<uint32_t*>(nullptr));
  f(static_cast<uint16_t*>(nullptr));
}

void CopyOrFold(ThreadPool& pool, const ConvolutionShape& s, const ConstView& w, std::byte* to) {
  ForBits(w.dtype, [&](auto* bits) {
    using T = std::remove_pointer_t<decltype(bits)>;
    FoldedWeights(pool, s, reinterpret_cast<const T*>(w.data), reinterpret_cast<T*>(to));
  });
}

// Pixels of dx that the same taps look at: every stride-th, from (down, right) on.
struct Phase {
  int64_t down, right;
  std::vector<int64_t> taps;  // Numbers of the kernel's.
  Unfolding of_dy;            // Without a group.
  int64_t weights = 0;        // Elements of the folded weights before its own.
};

std::vector<Phase> PhasesOf(const ConvolutionShape& s, const ConstView& dy) {
  const int64_t stride = s.window.stride;
  std::vector<Phase> phases;
  int64_t weights = 0;
  for (int64_t down = 0; down < std::min(stride, s.height); ++down) {
    for (int64_t right = 0; right < std::min(stride, s.width); ++right) {
      Phase phase{down, right, {}, {dy, 0, s.group_out(), 1, 0, 0, {}}, weights};
      phase.of_dy.down = CeilDiv(s.height - down, stride);
      phase.of_dy.along = CeilDiv(s.width - right, stride);
      const int64_t above = down + s.window.padding_height;
      const int64_t before = right + s.window.padding_width;
      for (int64_t a = above % stride; a < s.kernel_height; a += stride) {
        for (int64_t b = before % stride; b < s.kernel_width; b += stride) {
          phase.taps.push_back(a * s.kernel_width + b);
          // Both differences are multiples of the stride.
          phase.of_dy.taps.push_back({(above - a) / stride, (before - b) / stride});
        }
      }
      weights += static_cast<int64_t>(phase.taps.size()) * s.out * s.group_in();
      phases.push_back(std::move(phase));
    }
  }
  return phases;
}

// w becomes, phase by phase, [groups][phase's taps, group's outputs][c].
template <typename T>
void WeightsOfPhases(ThreadPool& pool, const ConvolutionShape& s, const std::vector<Phase>& phases,
                     const T* w, T* to) {
  const int64_t outputs = s.group_out(), channels = s.group_in(), taps = s.taps();
  pool.ParallelFor(s.out, 1, [&](int64_t begin, int64_t end) {
    for (int64_t out = begin; out < end; ++out) {
      const int64_t group = out / outputs, o = out % outputs;
      for (const Phase& phase : phases) {
        const auto count = static_cast<int64_t>(phase.taps.size());
        for (int64_t t = 0; t < count; ++t) {
          T* const row = to + phase.weights + ((group * count + t) * outputs + o) * channels;
          const T* const from = w + out * channels * taps + phase.taps[static_cast<size_t>(t)];
          for (int64_t c = 0; c < channels; ++c) row[c] = from[c * taps];
        }
      }
    }
  });
}

// Rows of x that a pointwise kernel looks at, or back to their places with zeros between them.
void PickPixels(ThreadPool& pool, const ConvolutionShape& s, const ConstView& x, std::byte* to) {
  const Unfolding all{x, 0, s.in, s.window.stride, s.out_height(), s.out_width(), {{0, 0}}};
  const int64_t bytes = s.in * SizeOf(x.dtype);
  pool.ParallelFor(s.out_pixels(), 1, [&](int64_t begin, int64_t end) {
    Unfold(all, begin, end - begin, to + begin * bytes);
  });
}
void SpreadPixels(ThreadPool& pool, const ConvolutionShape& s, const std::byte* from,
                  const View& dx) {
  const int64_t bytes = s.in * SizeOf(dx.dtype), stride = s.window.stride;
  pool.ParallelFor(s.samples * s.height, 1, [&](int64_t begin, int64_t end) {
    for (int64_t line = begin; line < end; ++line) {
      const int64_t sample = line / s.height, i = line % s.height;
      std::byte* const to = dx.data + line * s.width * bytes;
      std::memset(to, 0, static_cast<size_t>(s.width * bytes));
      if (i % stride != 0) continue;
      const std::byte* const row =
          from + (sample * s.out_height() + i / stride) * s.out_width() * bytes;
      for (int64_t j = 0; j < s.out_width(); ++j) {
        CopyBytes(to + j * stride * bytes, row + j * bytes, bytes);
      }
    }
  });
}

// dx of one phase of a group: rows [first, first + rows) of the phase's pixels.
void PhaseRows(const ConvolutionShape& s, const Phase& phase, int64_t group, int64_t first,
               int64_t rows, const ConstView& weights, const View& dx) {
  Unfolding u = phase.of_dy;
  u.begin = group * u.channels;
  const int64_t size = SizeOf(dx.dtype), channels = s.group_in(), cols = u.cols();
  const int64_t stride = s.window.stride, bytes = channels * size;
  std::byte* const unfolded = Scratch<0>(rows * cols * size);
  Unfold(u, first, rows, unfolded);
  const bool in_place = stride == 1;
  std::byte* const sums = in_place ? nullptr : Scratch<1>(rows * bytes);
  ThreadPool here(1, /*spin=*/false);
  const GemmResult result = in_place ? Result(dx, first * s.in + group * channels, s.in)
                                     : GemmResult{sums, channels, dx.dtype};
  if (cols > 0) {
    const GemmOperand a{unfolded, cols, false, dx.dtype};
    Gemm(here, rows, channels, cols, a,
         Factor(weights, phase.weights + group * cols * channels, channels), result);
  } else if (!in_place) {
    std::memset(sums, 0, static_cast<size_t>(rows * bytes));
  }
  if (in_place) return;
  for (int64_t row = first; row < first + rows; ++row) {
    const int64_t sample = row / (u.down * u.along), place = row % (u.down * u.along);
    const int64_t i = place / u.along * stride + phase.down;
    const int64_t j = place % u.along * stride + phase.right;
    const int64_t pixel = (sample * s.height + i) * s.width + j;
    CopyBytes(dx.data + (pixel * s.in + group * channels) * size, sums + (row - first) * bytes,
              bytes);
  }
}

void DxCpu(ThreadPool& pool, const ConvolutionShape& s, const ConstView& w, const ConstView& dy,
           const View& dx, const View& workspace) {
  const std::vector<Phase> phases = PhasesOf(s, dy);
  ForBits(w.dtype, [&](auto* bits) {
    using T = std::remove_pointer_t<decltype(bits)>;
    WeightsOfPhases(pool, s, phases, reinterpret_cast<const T*>(w.data),
                    reinterpret_cast<T*>(workspace.data));
  });
  const ConstView weights(workspace.data, w.dtype, Shape{s.weights()});
  for (const Phase& phase : phases) {
    const int64_t pixels = phase.of_dy.pixels();
    const int64_t rows = RowsOfTile(pixels, phase.of_dy.cols(), SizeOf(dx.dtype), s.window.groups);
    const int64_t tiles = CeilDiv(pixels, rows);
    pool.ParallelFor(s.window.groups * tiles, 1, [&](int64_t begin, int64_t end) {
      for (int64_t task = begin; task < end; ++task) {
        const int64_t first = task % tiles * rows;
        PhaseRows(s, phase, task / tiles, first, std::min(rows, pixels - first), weights, dx);
      }
    });
  }
}

// The sums of a group over a part of the pixels: [group's outputs, taps, c], fp32.
void WeightPart(const ConvolutionShape& s, const ConstView& x, const ConstView& dy, int64_t group,
                int64_t begin, int64_t end, float* sums) {
  const int64_t outputs = s.group_out(), size = SizeOf(x.dtype);
  const Unfolding u{x,
                    group * s.group_in(),
                    s.group_in(),
                    s.window.stride,
                    s.out_height(),
                    s.out_width(),
                    ForwardTaps(s)};
  const int64_t cols = u.cols(), rows = RowsOfTile(s.out_pixels(), cols, size, 1);
  std::byte* const unfolded = Scratch<0>(rows * cols * size);
  ThreadPool here(1, /*spin=*/false);
  for (int64_t first = begin; first < end; first += rows) {
    const int64_t n = std::min(rows, end - first);
    Unfold(u, first, n, unfolded);
    Gemm(here, outputs, cols, n, Transposed(dy, first * s.out + group * outputs, s.out),
         {unfolded, cols, false, x.dtype}, {sums, cols, DType::kFloat32},
         {.beta = first > begin ? 1.0f : 0.0f});
  }
}

void DwCpu(ThreadPool& pool, const ConvolutionShape& s, const ConstView& x, const ConstView& dy,
           const View& dw, const View& workspace) {
  const int64_t slices = s.WeightSlicesOnCpu(), groups = s.window.groups;
  const int64_t of_group = s.group_out() * s.terms(), pixels = s.out_pixels();
  auto* const parts = reinterpret_cast<float*>(workspace.data);
  pool.ParallelFor(groups * slices, 1, [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      const int64_t group = task / slices, slice = task % slices;
      WeightPart(s, x, dy, group, pixels * slice / slices, pixels * (slice + 1) / slices,
                 parts + slice * s.weights() + group * of_group);
    }
  });
  const int64_t channels = s.group_in(), taps = s.taps(), terms = s.terms();
  pool.ParallelFor(s.out, 1, [&](int64_t begin, int64_t end) {
    RowBuffers sums(DType::kBFloat16, 1, terms);
    for (int64_t out = begin; out < end; ++out) {
      float* const sum = sums[0];
      std::fill_n(sum, terms, 0.0f);
      for (int64_t slice = 0; slice < slices; ++slice) {
        const float* const part = parts + slice * s.weights() + out * terms;
        for (int64_t t = 0; t < taps; ++t) {
          for (int64_t c = 0; c < channels; ++c) sum[c * taps + t] += part[t * channels + c];
        }
      }
      AddFloats(sum, terms, dw, out * terms);
    }
  });
}

}  // namespace

void ConvolutionForwardCpu(ThreadPool& pool, const ConvolutionShape& s, const ConstView& x,
                           const ConstView& w, const View& y, const View& workspace) {
  if (s.is_pointwise()) {
    if (!s.is_product()) PickPixels(pool, s, x, workspace.data);
    const GemmOperand a =
        s.is_product() ? Factor(x, 0, s.in) : GemmOperand{workspace.data, s.in, false, x.dtype};
    return Gemm(pool, s.out_pixels(), s.out, s.in, a, Transposed(w, 0, s.in), Result(y, 0, s.out));
  }
  CopyOrFold(pool, s, w, workspace.data);
  const ConstView weights(workspace.data, w.dtype, Shape{s.weights()});
  const std::vector<Tap> taps = ForwardTaps(s);
  const int64_t outputs = s.group_out(), cols = s.terms(), pixels = s.out_pixels();
  const int64_t size = SizeOf(x.dtype), rows = RowsOfTile(pixels, cols, size, s.window.groups);
  const int64_t tiles = CeilDiv(pixels, rows);
  pool.ParallelFor(s.window.groups * tiles, 1, [&](int64_t begin, int64_t end) {
    ThreadPool here(1, /*spin=*/false);
    std::byte* const unfolded = Scratch<0>(rows * cols * size);
    for (int64_t task = begin; task < end; ++task) {
      const int64_t group = task / tiles, first = task % tiles * rows;
      const int64_t n = std::min(rows, pixels - first);
      Unfold({x, group * s.group_in(), s.group_in(), s.window.stride, s.out_height(), s.out_width(),
              taps},
             first, n, unfolded);
      Gemm(here, n, outputs, cols, {unfolded, cols, false, x.dtype},
           Factor(weights, group * cols * outputs, outputs),
           Result(y, first * s.out + group * outputs, s.out));
    }
  });
}

void ConvolutionBackwardCpu(ThreadPool& pool, const ConvolutionShape& s, const ConstView& x,
                            const ConstView& w, const ConstView& dy, const std::optional<View>& dx,
                            const std::optional<View>& dw, const View& workspace) {
  if (!s.is_pointwise()) {
    if (dx) DxCpu(pool, s, w, dy, *dx, workspace);
    if (dw) DwCpu(pool, s, x, dy, *dw, workspace);
    return;
  }
  const int64_t pixels = s.out_pixels();
  if (dx) {
    const GemmResult result =
        s.is_product() ? Result(*dx, 0, s.in) : GemmResult{workspace.data, s.in, dx->dtype};
    Gemm(pool, pixels, s.in, s.out, Factor(dy, 0, s.out), Factor(w, 0, s.in), result);
    if (!s.is_product()) SpreadPixels(pool, s, workspace.data, *dx);
  }
  if (dw) {
    if (!s.is_product()) PickPixels(pool, s, x, workspace.data);
    const GemmOperand b =
        s.is_product() ? Factor(x, 0, s.in) : GemmOperand{workspace.data, s.in, false, x.dtype};
    Gemm(pool, s.out, s.in, pixels, Transposed(dy, 0, s.out), b, Result(*dw, 0, s.in), {.beta = 1});
  }
}

}  // namespace fsdp
