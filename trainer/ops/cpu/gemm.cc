#include "trainer/ops/cpu/gemm.h"

#include <immintrin.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <new>
#include <tuple>
#include <utility>

#include "trainer/core/check.h"
#include "trainer/ops/cpu/gemm_kernels.h"
#include "trainer/ops/cpu/isa.h"

#if defined(__SANITIZE_THREAD__)
extern "C" {
void __tsan_read_range(void* data, unsigned long bytes);   // NOLINT: the runtime's own types.
void __tsan_write_range(void* data, unsigned long bytes);  // NOLINT
}
#elif defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

namespace fsdp {
namespace {

// An element's sum is rounded to memory after this many terms. Of any machine the same, because it
// decides about bits. 512: the rows of a strip of A stay in a first-level cache of 32 KB, and C
// passes by seldom. GFLOP/s of one core that can do 176 (Xeon of 2023, 2 MiB of second-level
// cache; kernel alone, strips of 480 columns): 256: 168, 384: 171, 512: 172.
constexpr int64_t kMaxK = 512;

// Rows of a transposed A that are packed at a time.
constexpr int64_t kMaxPackedRows = 2048;

// Of B that is packed at a time: half of a second-level cache, at most this.
constexpr int64_t kMaxPackedBytes = int64_t{1} << 20;

// Below this many multiplications a thread more costs about what it saves: 5 us of one core
// against the hand-over to another thread and back.
constexpr double kMinProductsPerThread = 5e5;

// Products of so few rows are bound by reading B, so B is read where it lies.
constexpr int64_t kFewRows = 16;

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

const GemmKernels& Kernels() { return ForThisCpu(kGemmAvx2, kGemmAvx512); }

// Columns of B that are packed at a time.
int64_t PackedCols(const GemmKernels& kernels) {
  static const int64_t bytes =
      std::clamp<int64_t>(sysconf(_SC_LEVEL2_CACHE_SIZE) / 2, int64_t{128} << 10, kMaxPackedBytes);
  const int64_t tile_bytes = kMaxK * kernels.cols * static_cast<int64_t>(sizeof(float));
  return std::max<int64_t>(1, bytes / tile_bytes) * kernels.cols;
}

// A thread's memory for packing. Straight from the system, on large pages where there are any: what
// no product needs costs nothing.
class Scratch {
 public:
  ~Scratch() {
    if (mapped_ != nullptr) munmap(mapped_, kBytes + kLargePage);
  }
  float* b() { return Data(); }
  float* a() { return Data() + kB; }

 private:
  // Floats, with what TileStep() adds.
  static constexpr int64_t kA = kMaxPackedRows * (kMaxK + 16);
  static constexpr int64_t kB = kMaxPackedBytes / int64_t{sizeof(float)} + 1024;
  static constexpr int64_t kLargePage = int64_t{2} << 20;
  static constexpr int64_t kBytes =
      ((kA + kB) * int64_t{sizeof(float)} + kLargePage - 1) / kLargePage * kLargePage;

  float* Data() {
    if (mapped_ == nullptr) {
      void* mapped = mmap(nullptr, kBytes + kLargePage, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      if (mapped == MAP_FAILED) throw std::bad_alloc();
      mapped_ = mapped;
      const auto address = reinterpret_cast<uintptr_t>(mapped);
      data_ = reinterpret_cast<float*>((address + kLargePage - 1) / kLargePage * kLargePage);
      madvise(data_, kBytes, MADV_HUGEPAGE);
    }
    return data_;
  }

  void* mapped_ = nullptr;
  float* data_ = nullptr;
};
thread_local Scratch scratch;

// The kernels are not instrumented, for their speed: what they touch is announced instead.
void AnnounceRow([[maybe_unused]] const float* data, [[maybe_unused]] int64_t n,
                 [[maybe_unused]] bool write) {
#if defined(__SANITIZE_THREAD__)
  (write ? __tsan_write_range : __tsan_read_range)(const_cast<float*>(data), n * sizeof(float));
#elif defined(__SANITIZE_ADDRESS__)
  FSDP_CHECK(__asan_region_is_poisoned(const_cast<float*>(data), n * sizeof(float)) == nullptr)
      << "a product " << (write ? "writes" : "reads") << " what is not its own";
#endif
}

// op(X) as the loops see it.
struct Matrix {
  const float* data;
  int64_t row, col;  // Steps in elements from an element to the next of its column, of its row.

  explicit Matrix(const GemmOperand& x)
      : data(x.data), row(x.transposed ? 1 : x.stride), col(x.transposed ? x.stride : 1) {}
  const float* At(int64_t i, int64_t j) const { return data + i * row + j * col; }
};

void Announce(const Matrix& x, int64_t rows, int64_t cols) {
  if (x.col == 1) {
    for (int64_t i = 0; i < rows; ++i) AnnounceRow(x.At(i, 0), cols, false);
  } else {
    for (int64_t j = 0; j < cols; ++j) AnnounceRow(x.At(0, j), rows, false);
  }
}

// to[j][i] = from[i][j], 8 x 8.
void Transpose8(const float* from, int64_t from_row, float* to, int64_t to_row) {
  __m256 r[8], t[8];
  for (int i = 0; i < 8; ++i) r[i] = _mm256_loadu_ps(from + i * from_row);
  for (int i = 0; i < 8; i += 2) {
    t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
    t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
  }
  for (int i = 0; i < 8; i += 4) {
    r[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
    r[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xee);
    r[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
    r[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xee);
  }
  for (int i = 0; i < 4; ++i) {
    _mm256_storeu_ps(to + i * to_row, _mm256_permute2f128_ps(r[i], r[i + 4], 0x20));
    _mm256_storeu_ps(to + (i + 4) * to_row, _mm256_permute2f128_ps(r[i], r[i + 4], 0x31));
  }
}

// From tile to tile of a packed factor: a cache line more than its k x width elements, or the same
// lines of all tiles would fall into one set of the cache.
int64_t TileStep(int64_t k, int64_t width) { return k * width + 16; }

// to[l][i] = x[i][l], i < width, for all l < k; rows of `to` are to_row apart. x's rows are
// contiguous.
void PackTransposed(const Matrix& x, int64_t width, int64_t k, float* to, int64_t to_row) {
  // A stretch of 8 rows at a time: what is written stays in a first-level cache meanwhile.
  constexpr int64_t kStretch = 64;
  for (int64_t first = 0; first < k; first += kStretch) {
    const int64_t last = std::min(k, first + kStretch);
    int64_t i = 0;
    for (; i + 8 <= width; i += 8) {
      for (int64_t r = i; r < i + 8; ++r) {
        for (int64_t l = first; l < last; l += 16) __builtin_prefetch(x.At(r, l + kStretch));
      }
      int64_t l = first;
      for (; l + 8 <= last; l += 8) Transpose8(x.At(i, l), x.row, to + l * to_row + i, to_row);
      for (; l < last; ++l) {
        for (int64_t r = i; r < i + 8; ++r) to[l * to_row + r] = *x.At(r, l);
      }
    }
    for (; i < width; ++i) {
      for (int64_t l = first; l < last; ++l) to[l * to_row + i] = *x.At(i, l);
    }
  }
}

// Tiles of `width` columns of x[k, cols], each [k, width]; x's rows are contiguous. What the last
// tile has beyond `cols` stays as it is: whatever it is, nobody keeps what comes of it.
void PackRows(const Matrix& x, int64_t k, int64_t cols, int64_t width, float* to) {
  // So many columns at a time that the lines being written stay in a first-level cache.
  constexpr int64_t kCols = 512;
  const int64_t step = TileStep(k, width), together = std::max<int64_t>(1, kCols / width) * width;
  for (int64_t first = 0; first < cols; first += together) {
    const int64_t last = std::min(cols, first + together);
    for (int64_t l = 0; l < k; ++l) {
      const float* row = x.At(l, 0);
      const float* ahead = x.At(std::min(k - 1, l + 8), 0);
      for (int64_t j = first; j < last; j += 16) __builtin_prefetch(ahead + j);
      float* out = to + first / width * step + l * width;
      int64_t j = first;
      if (width == 8) {
        for (; j + 8 <= last; j += 8, out += step) _mm256_storeu_ps(out, _mm256_loadu_ps(row + j));
      } else if (width % 16 == 0) {
        for (; j + width <= last; j += width, out += step) {
          for (int64_t d = 0; d < width; d += 8) {
            _mm256_storeu_ps(out + d, _mm256_loadu_ps(row + j + d));
          }
        }
      }
      for (; j < last; j += width, out += step) {
        std::memcpy(out, row + j, std::min(width, last - j) * int64_t{sizeof(float)});
      }
    }
  }
}

// x[k, cols] as tiles of `width` columns, whichever way it lies.
void Pack(const Matrix& x, int64_t k, int64_t cols, int64_t width, float* to) {
  if (x.col == 1) return PackRows(x, k, cols, width, to);
  const Matrix turned = [&] {
    Matrix t = x;
    std::swap(t.row, t.col);
    return t;
  }();
  for (int64_t j = 0; j < cols; j += width) {
    Matrix tile = turned;
    tile.data = turned.At(j, 0);
    PackTransposed(tile, std::min(width, cols - j), k, to + j / width * TileStep(k, width), width);
  }
}

// Where blocks of k begin: of equal length but for a few elements.
int64_t BlockBorder(int64_t k, int64_t block, int64_t blocks) {
  return std::min(k, CeilDiv(CeilDiv(k, blocks), 8) * 8 * block);
}

struct Product {
  Matrix a, b;
  int64_t k;
  float* c;
  int64_t c_stride;
  const GemmOptions& options;

  int64_t Blocks() const { return std::max<int64_t>(1, CeilDiv(k, kMaxK)); }

  // What is the same in all strips of block p of k.
  GemmStrip Strip(int64_t p) const {
    const int64_t blocks = Blocks(), first = BlockBorder(k, p, blocks);
    GemmStrip s = {};
    s.c_row = c_stride;
    s.k = BlockBorder(k, p + 1, blocks) - first;
    s.alpha = options.alpha;
    s.add = p > 0 || options.beta != 0;
    return s;
  }
};

// Rows [row, row + rows) of a block, whose columns of B have been packed or lie as the strip says.
void RunStrips(const GemmKernels& kernels, const Product& p, const GemmTile& tile, GemmStrip s,
               const float* a, int64_t a_strip, bool last) {
  if (last && p.options.bias != nullptr) s.bias = p.options.bias + tile.col;
  s.cols = tile.cols;
  for (int64_t i = 0; i < tile.rows; i += kernels.rows) {
    s.a = a + i / kernels.rows * a_strip;
    s.rows = std::min(kernels.rows, tile.rows - i);
    s.c = p.c + (tile.row + i) * p.c_stride + tile.col;
    s.next_rows = std::min(kernels.rows, tile.rows - i - s.rows);
    s.next = s.a_k == 1 && s.next_rows > 0 ? s.a + a_strip : nullptr;
    kernels.strip(s);
    if (last && p.options.finish) {
      p.options.finish({tile.row + i, s.rows, tile.col, tile.cols});
    }
  }
}

// A's rows are contiguous: no need to pack them. All rows for some columns, k to its end, then the
// next columns.
void ProductInPlace(const GemmKernels& kernels, const Product& p, const GemmTile& tile) {
  const bool in_place = p.b.col == 1 && tile.rows <= kFewRows;
  const int64_t width = in_place ? tile.cols : PackedCols(kernels);
  for (int64_t col = 0; col < tile.cols; col += width) {
    GemmTile part = tile;
    part.col = tile.col + col;
    part.cols = std::min(width, tile.cols - col);
    for (int64_t block = 0; block < p.Blocks(); ++block) {
      const int64_t first = BlockBorder(p.k, block, p.Blocks());
      GemmStrip s = p.Strip(block);
      s.a_row = p.a.row;
      s.a_k = 1;
      Matrix b = p.b;
      b.data = p.b.At(first, part.col);
      const bool last = block + 1 == p.Blocks();
      const float* a = p.a.At(part.row, first);
      const int64_t whole = in_place ? part.cols / kernels.cols * kernels.cols : 0;
      if (whole > 0) {
        s.b = b.data;
        s.b_tile = kernels.cols;
        s.b_k = b.row;
        RunStrips(kernels, p, {part.row, part.rows, part.col, whole}, s, a, kernels.rows * p.a.row,
                  last);
      }
      if (whole == part.cols) continue;
      b.data = b.At(0, whole);
      Pack(b, s.k, part.cols - whole, kernels.cols, scratch.b());
      s.b = scratch.b();
      s.b_tile = TileStep(s.k, kernels.cols);
      s.b_k = kernels.cols;
      RunStrips(kernels, p, {part.row, part.rows, part.col + whole, part.cols - whole}, s, a,
                kernels.rows * p.a.row, last);
    }
  }
}

// A is transposed, and packed too, a block of k and some rows at a time.
void ProductPacked(const GemmKernels& kernels, const Product& p, const GemmTile& tile) {
  const int64_t height = kMaxPackedRows / kernels.rows * kernels.rows;
  const int64_t width = PackedCols(kernels);
  for (int64_t block = 0; block < p.Blocks(); ++block) {
    const int64_t first = BlockBorder(p.k, block, p.Blocks());
    GemmStrip s = p.Strip(block);
    s.a_row = 1;
    s.a_k = kernels.rows;
    s.b = scratch.b();
    s.b_tile = TileStep(s.k, kernels.cols);
    s.b_k = kernels.cols;
    for (int64_t row = 0; row < tile.rows; row += height) {
      GemmTile part{tile.row + row, std::min(height, tile.rows - row), 0, 0};
      Matrix a = p.a;
      a.data = p.a.At(part.row, first);
      std::swap(a.row, a.col);
      Pack(a, s.k, part.rows, kernels.rows, scratch.a());
      for (int64_t col = 0; col < tile.cols; col += width) {
        part.col = tile.col + col;
        part.cols = std::min(width, tile.cols - col);
        Matrix b = p.b;
        b.data = p.b.At(first, part.col);
        Pack(b, s.k, part.cols, kernels.cols, scratch.b());
        RunStrips(kernels, p, part, s, scratch.a(), TileStep(s.k, kernels.rows),
                  block + 1 == p.Blocks());
      }
    }
  }
}

// Few rows, and the rows of B^T are contiguous: C^T = B^T A^T reads them where they lie.
void ProductTurned(const GemmKernels& kernels, const Product& p, const GemmTile& tile) {
  constexpr int64_t kChunk = 256;  // Columns of C at a time.
  float* right = scratch.b();      // A^T [k, rows] ...
  float* out = scratch.a();        // ... and C^T [kChunk, rows].
  const int64_t rows = tile.rows;
  for (int64_t col = 0; col < tile.cols; col += kChunk) {
    const int64_t cols = std::min(kChunk, tile.cols - col);
    float* c = p.c + tile.row * p.c_stride + tile.col + col;
    if (p.options.beta != 0) {
      for (int64_t i = 0; i < rows; ++i) {
        for (int64_t j = 0; j < cols; ++j) out[j * rows + i] = c[i * p.c_stride + j];
      }
    }
    for (int64_t block = 0; block < p.Blocks(); ++block) {
      const int64_t first = BlockBorder(p.k, block, p.Blocks());
      GemmStrip s = p.Strip(block);
      Matrix a = p.a;
      a.data = p.a.At(tile.row, first);
      std::swap(a.row, a.col);  // A^T, [k, rows].
      Pack(a, s.k, rows, kernels.cols, right);
      s.a_row = p.b.col;
      s.a_k = 1;
      s.b = right;
      s.b_tile = TileStep(s.k, kernels.cols);
      s.b_k = kernels.cols;
      s.c_row = rows;
      s.cols = rows;
      for (int64_t j = 0; j < cols; j += kernels.rows) {
        s.a = p.b.At(first, tile.col + col + j);
        s.rows = std::min(kernels.rows, cols - j);
        s.c = out + j * rows;
        kernels.strip(s);
      }
    }
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < cols; ++j) {
        float value = out[j * rows + i];
        if (p.options.bias != nullptr) value += p.options.bias[tile.col + col + j];
        c[i * p.c_stride + j] = value;
      }
    }
    if (p.options.finish) p.options.finish({tile.row, rows, tile.col + col, cols});
  }
}

void Multiply(const Product& p, const GemmTile& tile) {
  const GemmKernels& kernels = Kernels();
  for (int64_t i = 0; i < tile.rows; ++i) {
    float* c = p.c + (tile.row + i) * p.c_stride + tile.col;
    AnnounceRow(c, tile.cols, true);
    if (p.options.beta != 0 && p.options.beta != 1) {
      for (int64_t j = 0; j < tile.cols; ++j) c[j] *= p.options.beta;
    }
  }
  Matrix a = p.a, b = p.b;
  a.data = p.a.At(tile.row, 0);
  b.data = p.b.At(0, tile.col);
  Announce(a, tile.rows, p.k);
  Announce(b, p.k, tile.cols);
  if (p.b.row == 1 && p.b.col != 1 && tile.rows <= kFewRows) return ProductTurned(kernels, p, tile);
  if (p.a.col == 1) return ProductInPlace(kernels, p, tile);
  ProductPacked(kernels, p, tile);
}

}  // namespace

GemmTile GemmPart(int64_t m, int64_t n, int64_t k, bool pack_a, int parts, int part) {
  const double products = static_cast<double>(m) * n * k;
  parts = std::clamp(static_cast<int>(std::min(products / kMinProductsPerThread, 1e9)), 1, parts);
  if (part >= parts) return {};
  // A grid of down x across tiles. The largest tile decides the time; among equals, the least
  // packing, which every thread does for its own part of B, and of A where it is packed at all.
  // Otherwise each thread reads its rows of A once for every few columns, which costs less.
  const GemmKernels& kernels = Kernels();
  const int64_t row_grains = CeilDiv(m, kernels.rows), col_grains = CeilDiv(n, kernels.cols);
  int down = 1;
  std::tuple<int64_t, int64_t> best{std::numeric_limits<int64_t>::max(), 0};
  for (int d = 1; d <= parts; ++d) {
    if (parts % d != 0) continue;
    const int64_t rows = CeilDiv(row_grains, d) * kernels.rows;
    const int64_t cols = CeilDiv(col_grains, parts / d) * kernels.cols;
    const std::tuple<int64_t, int64_t> cost{rows * cols, (pack_a ? rows : rows / 4) + cols};
    if (cost < best) best = cost, down = d;
  }
  const int across = parts / down;
  const auto [row, row_end] = ThreadPool::Part(m, kernels.rows, down, part / across);
  const auto [col, col_end] = ThreadPool::Part(n, kernels.cols, across, part % across);
  return {row, row_end - row, col, col_end - col};
}

void Gemm(ThreadPool& pool, int64_t m, int64_t n, int64_t k, const GemmOperand& a,
          const GemmOperand& b, float* c, int64_t c_stride, const GemmOptions& options) {
  if (m == 0 || n == 0) return;
  const Product product{Matrix(a), Matrix(b), k, c, c_stride, options};
  const GemmTile first = GemmPart(m, n, k, a.transposed, pool.size(), 0);
  if (first.rows == m && first.cols == n) return Multiply(product, first);
  pool.Run([&](int t) {
    const GemmTile tile = GemmPart(m, n, k, a.transposed, pool.size(), t);
    if (tile.rows > 0 && tile.cols > 0) Multiply(product, tile);
  });
}

}  // namespace fsdp
