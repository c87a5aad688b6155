#include "trainer/ops/cpu/gemm/gemm.h"

#include <immintrin.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <exception>
#include <type_traits>
#include <utility>

#include "trainer/ops/cpu/convert.h"
#include "trainer/ops/cpu/gemm/gemm_announce.h"
#include "trainer/ops/cpu/gemm/gemm_kernels.h"
#include "trainer/ops/cpu/gemm/gemm_pack.h"
#include "trainer/ops/cpu/gemm/gemm_pairs.h"
#include "trainer/ops/cpu/gemm/gemm_scratch.h"
#include "trainer/ops/cpu/gemm/gemm_tiles.h"
#include "trainer/ops/cpu/isa.h"
#include "trainer/ops/cpu/kinds.h"

namespace fsdp {
namespace {

// An element's sum is rounded to memory after this many terms. The number is the same on every
// machine, because it decides about bits. 512: the rows of a strip of A stay in a first-level cache
// of 32 KB, and C passes by seldom. GFLOP/s of one core that can do 176 (Xeon of 2023, 2 MiB of
// second-level cache; kernel alone, strips of 480 columns): 256: 168, 384: 171, 512: 172.
constexpr int64_t kMaxK = 512;

// Rows of a transposed A that are packed at a time.
constexpr int64_t kMaxPackedRows = 2048;

// The bytes of B that are packed at a time: half of a second-level cache, at most this.
constexpr int64_t kMaxPackedBytes = int64_t{1} << 20;

// With fewer multiplications per thread, another thread costs about what it saves: 5 us of one
// core, against the hand-over to another thread and back.
constexpr double kMinProductsPerThread = 5e5;
constexpr double kMinProductsPerThreadOnTiles = 2.5e6;  // At 1 TFLOP/s of a core: an estimate.

// Products of so few rows are bound by reading B, so B is read where it lies.
constexpr int64_t kFewRows = 16;
constexpr int64_t kFewRowsCols = int64_t{1} << 16;  // Columns at a time.

// Up to so many rows a B that fits a second-level cache as it lies is read there, too. 16 experts'
// dx, 128 rows each, on an EPYC of 2024: 5 % faster with rows of 2 KiB, 3 % slower of 4 KiB.
constexpr int64_t kRowsInPlace = 256;

// Strips of a C of one tile's width up to which packing its factors costs more than it saves.
constexpr int64_t kFewStrips = 4;

constexpr int64_t kStripsAhead = 32;  // The B that is packed next is fetched during the last ones.

// Bytes of a packed factor's step of k.
constexpr int64_t kStep = sizeof(float);

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

const GemmKernels& Kernels() { return ForThisCpu(kGemmAvx2, kGemmAvx512); }

// Bytes of B that are packed at a time, and columns.
int64_t PackedBytes() {
  static const int64_t bytes =
      std::clamp<int64_t>(sysconf(_SC_LEVEL2_CACHE_SIZE) / 2, int64_t{128} << 10, kMaxPackedBytes);
  return bytes;
}
int64_t PackedCols(const GemmKernels& kernels) {
  return std::max<int64_t>(1, PackedBytes() / (kMaxK * kernels.cols * kStep)) * kernels.cols;
}

// Packed factors, with what GemmTileSteps() adds, and sums of a C that cannot keep them.
using Scratch = GemmScratch<kMaxPackedRows*(kMaxK + 16), kMaxPackedBytes / kStep + 1024,
                            std::max(kMaxPackedRows* kMaxPackedBytes / (kMaxK * kStep),
                                     kFewRows* kFewRowsCols)>;
static_assert(Scratch::kBytes == kGemmBytesPerThread && Scratch::kBytes == kTileProductBytes);
thread_local Scratch scratch;

// op(X) as the loops see it.
GemmMatrix Matrix(const GemmOperand& x) {
  const int64_t size = SizeOf(x.dtype), stride = x.stride * size;
  return {static_cast<const char*>(x.data), x.transposed ? size : stride,
          x.transposed ? stride : size, x.dtype};
}

GemmMatrix Turned(GemmMatrix x) {
  std::swap(x.row, x.col);
  return x;
}

// The begins of blocks of k, which have equal lengths to within a few elements.
int64_t BlockBorder(int64_t k, int64_t block, int64_t blocks) {
  return std::min(k, CeilDiv(CeilDiv(k, blocks), 8) * 8 * block);
}

struct Product {
  const GemmTileKernels* tiles;  // Null: by `kernels`, factors in `form`.
  GemmForm form;
  const GemmKernels& kernels;
  GemmMatrix a, b;
  int64_t k;
  GemmResult c;
  const GemmOptions& options;

  // Kernels read the factor where it lies, if its k is contiguous (A) or its columns are (B).
  bool MayReadInPlace(const GemmMatrix& x) const {
    return form == GemmForm::kPairs ? k % 2 == 0
                                    : form == GemmForm::kFloats && x.dtype == DType::kFloat32;
  }
  bool ReadsA() const { return MayReadInPlace(a) && a.RowsAreContiguous(); }
  // Each strip of A is widened to rows of floats before it is multiplied: they stay in a
  // first-level cache, and nothing is turned.
  bool WidensA() const { return !ReadsA() && form != GemmForm::kPairs && a.RowsAreContiguous(); }
  // Sums are kept in C itself.
  bool SumsInC() const { return c.dtype == DType::kFloat32; }
  char* C(int64_t row, int64_t col) const { return static_cast<char*>(c.data) + At(row, col); }
  float* Sums(int64_t row, int64_t col) const { return reinterpret_cast<float*>(C(row, col)); }
  const char* Added(int64_t row, int64_t col) const {
    return options.added ? static_cast<const char*>(options.added) + At(row, col) : nullptr;
  }
  const float* AddedSums(int64_t row, int64_t col) const {
    return reinterpret_cast<const float*>(Added(row, col));
  }
  int64_t At(int64_t row, int64_t col) const { return (row * c.stride + col) * SizeOf(c.dtype); }

  int64_t Blocks() const { return std::max<int64_t>(1, CeilDiv(k, kMaxK)); }
  int64_t BlockBegin(int64_t block) const { return BlockBorder(k, block, Blocks()); }
  int64_t BlockLength(int64_t block) const { return BlockBegin(block + 1) - BlockBegin(block); }
  bool IsLast(int64_t block) const { return block + 1 == Blocks(); }

  // The members that all strips of a block of k share.
  GemmStrip Strip(int64_t block) const {
    GemmStrip s = {};
    s.k = GemmSteps(form, BlockLength(block));
    s.alpha = options.alpha;
    s.add = block > 0 || (SumsInC() && options.beta != 0);
    return s;
  }

  // The strip's B: columns [col, col + cols), packed.
  void PackB(int64_t block, int64_t col, int64_t cols, GemmStrip* s) const {
    GemmMatrix part = b;
    part.data = b.At(BlockBegin(block), col);
    GemmPack(form, part, BlockLength(block), cols, kernels.cols, scratch.b());
    s->b = reinterpret_cast<const char*>(scratch.b());
    s->b_tile = GemmTileSteps(s->k, kernels.cols) * kStep;
    s->b_k = kernels.cols * kStep;
  }

  // The part of B that is packed behind columns [col, col + cols) of a block: the next block, or
  // the first one of the next columns, which end at `end`, or of the next product's first ones.
  GemmLines BehindB(int64_t block, int64_t col, int64_t cols, const GemmTile& tile) const {
    const int64_t end = tile.col + tile.cols, size = SizeOf(b.dtype), next = col + cols;
    GemmMatrix from = b;
    if (!IsLast(block)) {
      from.data = b.At(BlockBegin(++block), col);
    } else if (block = 0; next < end) {
      from.data = b.At(0, next);
      cols = std::min(cols, end - next);
    } else if (options.next_b != nullptr) {
      from.data = static_cast<const char*>(options.next_b) + tile.col * b.col;
    } else {
      return {};
    }
    const int64_t k_here = BlockLength(block), line = 64 / size;
    if (b.RowsAreContiguous()) return {from.data, k_here, b.row, CeilDiv(cols, line)};
    return {from.data, cols, b.col, CeilDiv(k_here, line)};
  }

  // The strip's A: rows [row, row + s->rows), widened.
  void WidenA(int64_t block, int64_t row, GemmStrip* s) const {
    const int64_t next_row = GemmTileSteps(s->k, 1);
    GemmMatrix part = a;
    part.data = a.At(row, BlockBegin(block));
    GemmWiden(form, part, s->rows, BlockLength(block), scratch.a(), next_row);
    s->a = reinterpret_cast<const char*>(scratch.a());
    s->a_row = next_row * kStep;
    s->a_k = kStep;
  }

  // The strips' A: rows [row, row + rows), packed. Bytes from a strip to the next.
  int64_t PackA(int64_t block, int64_t row, int64_t rows, GemmStrip* s) const {
    GemmMatrix part = a;
    part.data = a.At(row, BlockBegin(block));
    GemmPack(form, Turned(part), BlockLength(block), rows, kernels.rows, scratch.a());
    s->a = reinterpret_cast<const char*>(scratch.a());
    s->a_row = kStep;
    s->a_k = kernels.rows * kStep;
    return GemmTileSteps(s->k, kernels.rows) * kStep;
  }
};

// Sums with their bias become elements [row, col], [row, col + 1], ... of C, rounded once.
template <typename T>
void FinishRow(const Product& p, float* sums, int64_t n, int64_t row, int64_t col) {
  T* const c = reinterpret_cast<T*>(p.C(row, col));
  constexpr bool kSumsInC = std::is_same_v<T, float>;
  if (const float beta = p.options.beta; !kSumsInC && beta != 0) {
#pragma omp simd
    for (int64_t j = 0; j < n; ++j) sums[j] += beta * static_cast<float>(c[j]);
  }
  if (const auto* const added = reinterpret_cast<const T*>(p.Added(row, col))) {
#pragma omp simd
    for (int64_t j = 0; j < n; ++j) sums[j] += static_cast<float>(added[j]);
  }
  if constexpr (!kSumsInC) {
    Convert(sums, n, c);
  } else {
    std::copy_n(sums, n, c);
  }
}
void FinishRow(const Product& p, float* sums, int64_t n, int64_t row, int64_t col) {
  if (p.c.dtype == DType::kFloat32) return FinishRow<float>(p, sums, n, row, col);
  if (p.c.dtype == DType::kBFloat16) return FinishRow<BFloat16>(p, sums, n, row, col);
  FinishRow<Float16>(p, sums, n, row, col);
}

// A tile of C, strip by strip. The first strip's A begins at s.a, each later one `a_strip` bytes
// behind, or they are widened here. The tile lies in the columns of `summed`; scratch holds its
// sums if C cannot.
void RunStrips(const Product& p, const GemmTile& summed, const GemmTile& tile, GemmStrip s,
               int64_t a_strip, int64_t block) {
  const char* const a = s.a;
  const bool last = p.IsLast(block), widens = p.WidensA();
  s.next_row = widens ? p.a.row : s.a_row;
  s.next_element = widens ? p.a.col : kStep;
  const int64_t height = p.kernels.rows, strips = CeilDiv(tile.rows, height);
  const int64_t sharing = std::min(strips, kStripsAhead);
  const GemmLines soon = s.soon;
  if (last && p.options.bias != nullptr) s.bias = p.options.bias + tile.col;
  s.cols = tile.cols;
  s.c_row = p.SumsInC() ? p.c.stride : summed.cols;
  for (int64_t i = 0; i < tile.rows; i += height) {
    s.a = a + i / height * a_strip;
    s.rows = std::min(height, tile.rows - i);
    s.c = p.SumsInC() ? p.Sums(tile.row + i, tile.col)
                      : scratch.c() + (p.Blocks() > 1 ? i * s.c_row : 0) + tile.col - summed.col;
    s.next_rows = std::min(height, tile.rows - i - s.rows);
    if (widens) p.WidenA(block, tile.row + i, &s);
    s.next = s.next_rows == 0 ? nullptr
             : widens         ? p.a.At(tile.row + i + s.rows, p.BlockBegin(block))
             : s.a_k == kStep ? s.a + a_strip
                              : nullptr;
    s.added = last && p.SumsInC() ? p.AddedSums(tile.row + i, tile.col) : nullptr;
    const int64_t share = i / height + sharing - strips;
    s.soon = share < 0 ? GemmLines() : soon.Part(share, sharing);
    p.kernels.strip(s);
    if (!last) continue;
    if (!p.SumsInC()) {
      for (int64_t r = 0; r < s.rows; ++r) {
        FinishRow(p, s.c + r * s.c_row, s.cols, tile.row + i + r, tile.col);
      }
    }
    if (p.options.finish) p.options.finish({tile.row + i, s.rows, tile.col, tile.cols});
  }
}

// All rows for some columns, with k to its end, then the next columns: for an A that need not be
// packed, and for a C that cannot keep sums.
void ProductByColumns(const Product& p, const GemmTile& tile) {
  const GemmKernels& kernels = p.kernels;
  const bool few = tile.rows <= kFewRows;
  const bool near = tile.rows <= kRowsInPlace && p.BlockLength(0) * p.b.row <= 3 * PackedBytes();
  const bool in_place = (few || near) && p.form == GemmForm::kFloats && p.ReadsA() &&
                        p.MayReadInPlace(p.b) && p.b.RowsAreContiguous();
  const int64_t width =
      in_place && few ? kFewRowsCols / kernels.cols * kernels.cols : PackedCols(kernels);
  const int64_t height = (p.ReadsA() || p.WidensA()) && p.SumsInC()
                             ? tile.rows
                             : kMaxPackedRows / kernels.rows * kernels.rows;
  for (int64_t row = 0; row < tile.rows; row += height) {
    GemmTile part = tile;
    part.row = tile.row + row;
    part.rows = std::min(height, tile.rows - row);
    for (int64_t col = 0; col < tile.cols; col += width) {
      part.col = tile.col + col;
      part.cols = std::min(width, tile.cols - col);
      for (int64_t block = 0; block < p.Blocks(); ++block) {
        GemmStrip s = p.Strip(block);
        int64_t a_strip = kernels.rows * p.a.row;
        if (p.ReadsA()) {
          s.a = p.a.At(part.row, p.BlockBegin(block));
          s.a_row = p.a.row;
          s.a_k = kStep;
        } else if (!p.WidensA()) {
          a_strip = p.PackA(block, part.row, part.rows, &s);
        }
        const GemmLines soon = p.BehindB(block, part.col, part.cols, tile);
        GemmTile whole = part, rest = part;
        whole.cols = in_place ? part.cols / kernels.cols * kernels.cols : 0;
        rest.col += whole.cols;
        rest.cols -= whole.cols;
        if (whole.cols > 0) {
          s.b = p.b.At(p.BlockBegin(block), whole.col);
          s.b_tile = kernels.cols * kStep;
          s.b_k = p.b.row;
          s.soon = few ? GemmLines() : soon;
          RunStrips(p, part, whole, s, a_strip, block);
        }
        if (rest.cols > 0) {
          p.PackB(block, rest.col, rest.cols, &s);
          s.soon = whole.cols == 0 ? soon : GemmLines();
          RunStrips(p, part, rest, s, a_strip, block);
        }
      }
    }
  }
}

// A is packed, too, each of its elements once: a block of k and some rows at a time.
void ProductPacked(const Product& p, const GemmTile& tile) {
  const int64_t height = kMaxPackedRows / p.kernels.rows * p.kernels.rows;
  const int64_t width = PackedCols(p.kernels);
  for (int64_t block = 0; block < p.Blocks(); ++block) {
    GemmStrip s = p.Strip(block);
    for (int64_t row = 0; row < tile.rows; row += height) {
      GemmTile part{tile.row + row, std::min(height, tile.rows - row), 0, 0};
      const int64_t a_strip = p.PackA(block, part.row, part.rows, &s);
      for (int64_t col = 0; col < tile.cols; col += width) {
        part.col = tile.col + col;
        part.cols = std::min(width, tile.cols - col);
        p.PackB(block, part.col, part.cols, &s);
        RunStrips(p, part, part, s, a_strip, block);
      }
    }
  }
}

// Neither factor is packed: few tiles would use what is packed. Both are floats with rows of k.
void ProductInPlace(const Product& p, const GemmTile& tile) {
  for (int64_t block = 0; block < p.Blocks(); ++block) {
    GemmStrip s = p.Strip(block);
    s.a = p.a.At(tile.row, p.BlockBegin(block));
    s.a_row = kStep;
    s.a_k = p.a.col;
    s.b = p.b.At(p.BlockBegin(block), tile.col);
    s.b_k = p.b.row;
    s.b_ends = true;
    RunStrips(p, tile, tile, s, p.kernels.rows * kStep, block);
  }
}

// Few rows, and the rows of B^T are contiguous: C^T = B^T A^T reads them where they lie.
void ProductTurned(const Product& p, const GemmTile& tile) {
  constexpr int64_t kChunk = 256;  // Columns of C at a time.
  const GemmKernels& kernels = p.kernels;
  float* right = scratch.b();  // A^T [k, rows] ...
  float* out = scratch.a();    // ... and C^T [kChunk, rows].
  const int64_t rows = tile.rows;
  for (int64_t col = 0; col < tile.cols; col += kChunk) {
    const int64_t cols = std::min(kChunk, tile.cols - col);
    if (p.SumsInC() && p.options.beta != 0) {
      for (int64_t i = 0; i < rows; ++i) {
        const float* c = p.Sums(tile.row + i, tile.col + col);
        for (int64_t j = 0; j < cols; ++j) out[j * rows + i] = c[j];
      }
    }
    for (int64_t block = 0; block < p.Blocks(); ++block) {
      GemmStrip s = p.Strip(block);
      GemmMatrix a = p.a;
      a.data = p.a.At(tile.row, p.BlockBegin(block));
      GemmPack(p.form, Turned(a), p.BlockLength(block), rows, kernels.cols, right);
      s.a_row = p.b.col;
      s.a_k = kStep;
      s.b = reinterpret_cast<const char*>(right);
      s.b_tile = GemmTileSteps(s.k, kernels.cols) * kStep;
      s.b_k = kernels.cols * kStep;
      s.c_row = rows;
      s.cols = rows;
      for (int64_t j = 0; j < cols; j += kernels.rows) {
        s.a = p.b.At(p.BlockBegin(block), tile.col + col + j);
        s.rows = std::min(kernels.rows, cols - j);
        s.c = out + j * rows;
        kernels.strip(s);
      }
    }
    for (int64_t i = 0; i < rows; ++i) {
      float row[kChunk];
      for (int64_t j = 0; j < cols; ++j) {
        row[j] = out[j * rows + i];
        if (p.options.bias != nullptr) row[j] += p.options.bias[tile.col + col + j];
      }
      FinishRow(p, row, cols, tile.row + i, tile.col + col);
    }
    if (p.options.finish) p.options.finish({tile.row, rows, tile.col + col, cols});
  }
}

struct PartOnTiles {
  const Product& product;
  const GemmTile& tile;
  std::exception_ptr* error;  // The first one of options.finish(): kernels let none pass.
};

void FinishOnTiles(const void* context, int64_t row, int64_t rows, int64_t col,
                   int64_t cols) noexcept {
  const auto& [p, tile, error] = *static_cast<const PartOnTiles*>(context);
  if (*error != nullptr) return;
  try {
    p.options.finish({tile.row + row, rows, tile.col + col, cols});
  } catch (...) {
    *error = std::current_exception();
  }
}

void ProductOnTiles(const Product& p, const GemmTile& tile) {
  std::exception_ptr error;
  const PartOnTiles part{p, tile, &error};
  const auto* const with = static_cast<const char*>(p.options.finished_with);
  p.tiles->multiply({.a = {p.a.At(tile.row, 0), p.a.row, p.a.col},
                     .b = {p.b.At(0, tile.col), p.b.col, p.b.row},
                     .rows = tile.rows,
                     .cols = tile.cols,
                     .k = p.k,
                     .memory = scratch.all(),
                     .c = p.C(tile.row, tile.col),
                     .c_row = p.c.stride * SizeOf(p.c.dtype),
                     .dtype = p.c.dtype,
                     .alpha = p.options.alpha,
                     .beta = p.options.beta,
                     .bias = p.options.bias == nullptr ? nullptr : p.options.bias + tile.col,
                     .added = p.Added(tile.row, tile.col),
                     .finish = p.options.finish ? FinishOnTiles : nullptr,
                     .context = &part,
                     .finished_with = with == nullptr ? nullptr : with + p.At(tile.row, tile.col)});
  if (error != nullptr) std::rethrow_exception(error);
}

void Multiply(const Product& p, const GemmTile& tile) {
  const float beta = p.options.beta;
  for (int64_t i = 0; i < tile.rows; ++i) {
    const int64_t bytes = tile.cols * SizeOf(p.c.dtype);
    AnnounceRow(p.C(tile.row + i, tile.col), bytes, true);
    if (const char* added = p.Added(tile.row + i, tile.col)) AnnounceRow(added, bytes, false);
    if (p.tiles != nullptr || !p.SumsInC() || beta == 0 || beta == 1) continue;
    float* const c = p.Sums(tile.row + i, tile.col);
    for (int64_t j = 0; j < tile.cols; ++j) c[j] *= beta;
  }
  GemmMatrix a = p.a, b = p.b;
  a.data = p.a.At(tile.row, 0);
  b.data = p.b.At(0, tile.col);
  Announce(a, tile.rows, p.k);
  Announce(b, p.k, tile.cols);
  if (p.tiles != nullptr) return ProductOnTiles(p, tile);
  if (p.MayReadInPlace(b) && Turned(b).RowsAreContiguous() && !b.RowsAreContiguous() &&
      tile.rows <= kFewRows) {
    return ProductTurned(p, tile);
  }
  if (p.ReadsA() || p.WidensA() || !p.SumsInC()) return ProductByColumns(p, tile);
  if (p.form == GemmForm::kFloats && p.MayReadInPlace(a) && Turned(a).RowsAreContiguous() &&
      p.MayReadInPlace(b) && b.RowsAreContiguous() && tile.rows <= kFewStrips * p.kernels.rows &&
      tile.cols <= p.kernels.cols) {
    return ProductInPlace(p, tile);
  }
  ProductPacked(p, tile);
}

const GemmTileKernels* TileKernels() {
  const TileUse use = ThisIsa().tiles;
  if (use == TileUse::kNone) return nullptr;
  return use == TileUse::kHardware ? &kGemmTilesAmx : &ForThisCpu(kGemmTilesAvx2, kGemmTilesAvx512);
}

Product ProductOf(int64_t k, const GemmOperand& a, const GemmOperand& b, const GemmResult& c,
                  const GemmOptions& options) {
  const bool bf16 = a.dtype == DType::kBFloat16 && b.dtype == DType::kBFloat16;
  const GemmForm form = !bf16             ? GemmForm::kFloats
                        : MultiplyPairs() ? GemmForm::kPairs
                                          : GemmForm::kSwappedFloats;
  const GemmTileKernels* const tiles = bf16 && k > 0 ? TileKernels() : nullptr;
  return {tiles, form,   form == GemmForm::kPairs ? kGemmBf16 : Kernels(), Matrix(a), Matrix(b), k,
          c,     options};
}

}  // namespace

void Gemm(ThreadPool& pool, int64_t m, int64_t n, int64_t k, const GemmOperand& a,
          const GemmOperand& b, const GemmResult& c, const GemmOptions& options) {
  if (m == 0 || n == 0) return;
  const Product product = ProductOf(k, a, b, c, options);
  const GemmGrain grain =
      product.tiles == nullptr
          ? GemmGrain{product.kernels.rows, product.kernels.cols, kMinProductsPerThread}
          : GemmGrain{kTilesTogether, kTilesTogether, kMinProductsPerThreadOnTiles};
  const bool pack_a = !product.ReadsA();
  const GemmTile first = GemmPart(m, n, k, grain, pack_a, pool.size(), 0);
  if (first.rows == m && first.cols == n) return Multiply(product, first);
  pool.Run([&](int t) {
    const GemmTile tile = GemmPart(m, n, k, grain, pack_a, pool.size(), t);
    if (tile.rows > 0 && tile.cols > 0) Multiply(product, tile);
  });
}

void GemmOnOneThread(int64_t m, int64_t n, int64_t k, const GemmOperand& a, const GemmOperand& b,
                     const GemmResult& c, const GemmOptions& options) {
  if (m > 0 && n > 0) Multiply(ProductOf(k, a, b, c, options), {0, m, 0, n});
}

}  // namespace fsdp
