#include "trainer/ops/gemm.h"

#include <cblas.h>

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <mutex>
#include <tuple>
#include <utility>

#include "trainer/core/check.h"

#ifdef __SANITIZE_THREAD__
extern "C" {
void __tsan_read_range(void* data, unsigned long bytes);   // NOLINT: the runtime's own types.
void __tsan_write_range(void* data, unsigned long bytes);  // NOLINT
}
#endif

// sgemm packs its operands into a buffer that it takes from a table. Debian's serial OpenBLAS
// 0.3.21 searches that table without a lock (driver/others/memory.c has it for threaded builds
// only), so two threads at a time may be given one buffer, and products come out wrong: 4 threads
// of 38 x 90 x 30 under the Haswell kernels, 0 to 115 of 16000. The linker leads OpenBLAS's calls
// here (--wrap in the BUILD file): each thread takes one buffer, under a lock, and keeps it until
// it ends. Without the lock at later calls, which would order threads in ThreadSanitizer's eyes.
extern "C" {
void* __real_blas_memory_alloc(int where);   // NOLINT: the linker's names.
void __real_blas_memory_free(void* buffer);  // NOLINT
void* __wrap_blas_memory_alloc(int where);   // NOLINT
void __wrap_blas_memory_free(void* buffer);  // NOLINT
}

namespace {

std::mutex& BlasTableMutex() {
  static auto& mutex = *new std::mutex;  // Threads may end after static objects do.
  return mutex;
}

struct BlasBuffer {
  void* data = nullptr;
  bool used = false;
  ~BlasBuffer() {
    if (data == nullptr) return;
    const std::lock_guard lock(BlasTableMutex());
    __real_blas_memory_free(data);
  }
};
thread_local BlasBuffer blas_buffer;

}  // namespace

void* __wrap_blas_memory_alloc(int where) {  // NOLINT
  if (blas_buffer.data == nullptr) {
    const std::lock_guard lock(BlasTableMutex());
    blas_buffer.data = __real_blas_memory_alloc(where);
  }
  FSDP_CHECK(!blas_buffer.used) << "a thread is given the same buffer twice";
  blas_buffer.used = true;
  return blas_buffer.data;
}

void __wrap_blas_memory_free(void*) { blas_buffer.used = false; }  // NOLINT

namespace fsdp {
namespace {

// OpenBLAS picks kernels by CPU model when it is loaded, and for a model younger than itself it
// falls back to SSE3: 0.3.21 on a Xeon of 2023 (family 6, model 207) gave 10 GFLOP/s a core, with
// these names 150. So name the kernels by what the CPU can do, before OpenBLAS's own constructor,
// which has no priority. OPENBLAS_CORETYPE, where it is set, still wins.
__attribute__((constructor(101))) void NameKernels() {
  __builtin_cpu_init();
  const char* kernels = nullptr;
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq")) {
    kernels = "SkylakeX";
  } else if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    kernels = __builtin_cpu_is("amd") ? "Zen" : "Haswell";
  }
  if (kernels != nullptr) setenv("OPENBLAS_CORETYPE", kernels, /*overwrite=*/0);
}

// Tile borders: multiples of the widest micro-kernels of OpenBLAS 0.3 for x86-64 (its kernels are
// column-major: our columns are its rows, 8 or 16 at a time, our rows its columns, 4 or 12).
constexpr int64_t kRowGrain = 12;
constexpr int64_t kColGrain = 16;

// Below this many multiplications a thread more costs about what it saves: 10 us of one core at
// 90 GFLOP/s against the hand-over to a sleeping thread and back.
constexpr double kMinProductsPerThread = 5e5;

#ifdef __SANITIZE_THREAD__
// BLAS is not instrumented: without this a race with it goes unseen.
template <typename Announce>
void ForEachRow(const float* data, int64_t rows, int64_t cols, int64_t stride, Announce announce) {
  for (int64_t r = 0; r < rows; ++r) {
    announce(const_cast<float*>(data + r * stride), cols * sizeof(float));
  }
}
void AnnounceRead(const GemmOperand& x, int64_t rows, int64_t cols) {
  if (x.transposed) std::swap(rows, cols);
  ForEachRow(x.data, rows, cols, x.stride, __tsan_read_range);
}
void AnnounceWrite(const float* c, int64_t rows, int64_t cols, int64_t stride) {
  ForEachRow(c, rows, cols, stride, __tsan_write_range);
}
#else
void AnnounceRead(const GemmOperand&, int64_t, int64_t) {}
void AnnounceWrite(const float*, int64_t, int64_t, int64_t) {}
#endif

int BlasInt(int64_t n) {
  FSDP_CHECK_LE(n, std::numeric_limits<int>::max());
  return static_cast<int>(n);
}

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Element [row, col] of op(x).
const float* At(const GemmOperand& x, int64_t row, int64_t col) {
  return x.data + (x.transposed ? col * x.stride + row : row * x.stride + col);
}

}  // namespace

const char* GemmKernels() { return openblas_get_corename(); }

void GemmSerial(int64_t m, int64_t n, int64_t k, float alpha, const GemmOperand& a,
                const GemmOperand& b, float beta, float* c, int64_t c_stride) {
  if (m == 0 || n == 0) return;
  AnnounceRead(a, m, k);
  AnnounceRead(b, k, n);
  AnnounceWrite(c, m, n, c_stride);
  const auto op = [](const GemmOperand& x) { return x.transposed ? CblasTrans : CblasNoTrans; };
  const auto stride = [](const GemmOperand& x) { return BlasInt(std::max<int64_t>(1, x.stride)); };
  cblas_sgemm(CblasRowMajor, op(a), op(b), BlasInt(m), BlasInt(n), BlasInt(k), alpha, a.data,
              stride(a), b.data, stride(b), beta, c, BlasInt(c_stride));
}

void GemmSerial(const GemmTile& tile, int64_t k, float alpha, const GemmOperand& a,
                const GemmOperand& b, float beta, float* c, int64_t c_stride) {
  GemmSerial(tile.rows, tile.cols, k, alpha, {At(a, tile.row, 0), a.stride, a.transposed},
             {At(b, 0, tile.col), b.stride, b.transposed}, beta, c + tile.row * c_stride + tile.col,
             c_stride);
}

GemmTile GemmPart(int64_t m, int64_t n, int64_t k, int parts, int part) {
  const double products = static_cast<double>(m) * n * k;
  parts = std::clamp(static_cast<int>(std::min(products / kMinProductsPerThread, 1e9)), 1, parts);
  if (part >= parts) return {};
  // A grid of down x across tiles. The largest tile decides the time; among equals, the least
  // packing, which every thread does for its own part of both factors.
  const int64_t row_grains = CeilDiv(m, kRowGrain), col_grains = CeilDiv(n, kColGrain);
  int down = 1;
  std::tuple<int64_t, int64_t> best{std::numeric_limits<int64_t>::max(), 0};
  for (int d = 1; d <= parts; ++d) {
    if (parts % d != 0) continue;
    const int64_t rows = CeilDiv(row_grains, d) * kRowGrain;
    const int64_t cols = CeilDiv(col_grains, parts / d) * kColGrain;
    const std::tuple<int64_t, int64_t> cost{rows * cols, rows + cols};
    if (cost < best) best = cost, down = d;
  }
  const int across = parts / down;
  const auto [row, row_end] = ThreadPool::Part(m, kRowGrain, down, part / across);
  const auto [col, col_end] = ThreadPool::Part(n, kColGrain, across, part % across);
  return {row, row_end - row, col, col_end - col};
}

void ForEachGemmTile(ThreadPool& pool, int64_t m, int64_t n, int64_t k,
                     const std::function<void(const GemmTile&)>& body) {
  const GemmTile first = GemmPart(m, n, k, pool.size(), 0);
  if (first.rows == m && first.cols == n) return body(first);
  pool.Run([&](int t) {
    const GemmTile tile = GemmPart(m, n, k, pool.size(), t);
    if (tile.rows > 0 && tile.cols > 0) body(tile);
  });
}

void Gemm(ThreadPool& pool, int64_t m, int64_t n, int64_t k, float alpha, const GemmOperand& a,
          const GemmOperand& b, float beta, float* c, int64_t c_stride) {
  ForEachGemmTile(pool, m, n, k, [&](const GemmTile& tile) {
    GemmSerial(tile, k, alpha, a, b, beta, c, c_stride);
  });
}

}  // namespace fsdp
