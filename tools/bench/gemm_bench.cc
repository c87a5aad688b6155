// GFLOP/s of Gemm() at the shapes of a GPT-2 step, by number of threads:
//   bazel run //tools/bench:gemm_bench [-- THREADS ...]
// The best of about a third of a second a cell (noise only ever adds), threads interleaved.
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <memory>
#include <vector>

#include "trainer/ops/cpu/gemm.h"

namespace fsdp {
namespace {

struct Product {
  const char* name;
  int64_t m, n, k;
  bool ta, tb;
};

// x W^T (NT), dy W (NN) and dy^T x (TN) of the layers named.
constexpr Product kProducts[] = {
    {"proj NT", 512, 384, 384, false, true},       {"fc1 NT", 512, 1536, 384, false, true},
    {"qkv NT", 2048, 1152, 384, false, true},      {"proj NT", 512, 768, 768, false, true},
    {"qkv NT", 1024, 2304, 768, false, true},      {"fc1 NT", 4096, 3072, 768, false, true},
    {"fc2 NT", 4096, 768, 3072, false, true},      {"qkv NN", 2048, 2304, 768, false, false},
    {"dX NN", 2048, 768, 3072, false, false},      {"dW TN", 3072, 768, 2048, true, false},
    {"logits NT", 1024, 8192, 384, false, true},   {"head NT", 512, 50257, 768, false, true},
    {"head dX NN", 512, 768, 50257, false, false}, {"head dW TN", 50257, 768, 512, true, false},
    {"tall NT", 4096, 64, 768, false, true},       {"long-K TN", 64, 64, 4096, true, false},
};

constexpr int64_t kCold = int64_t{512} << 20;  // Bytes, more than a last-level cache.

// On large pages, as a run's memory.
struct Floats {
  explicit Floats(int64_t n) : bytes(n * int64_t{sizeof(float)} + (int64_t{2} << 20)) {
    data = static_cast<float*>(
        mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    madvise(data, bytes, MADV_HUGEPAGE);
    std::fill_n(data, n, 0.5f);
  }
  ~Floats() { munmap(data, bytes); }
  int64_t bytes;
  float* data;
};

double Seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

int Main(std::vector<int> threads) {
  if (threads.empty()) threads = {1, 2};
  std::vector<std::unique_ptr<ThreadPool>> pools;
  for (const int t : threads) pools.push_back(std::make_unique<ThreadPool>(t, /*spin=*/true));
  std::vector<double> logs(threads.size());

  std::printf("%-12s %6s %6s %6s", "GFLOP/s", "m", "n", "k");
  for (const int t : threads) std::printf("  %3d thr", t);
  std::printf("\n");
  for (const Product& p : kProducts) {
    // As in a step: nothing is in a cache from the last time.
    const int64_t floats = p.m * p.k + p.k * p.n + p.m * p.n;
    const int copies = static_cast<int>(kCold / (4 * floats) + 1);
    const Floats a(copies * p.m * p.k), b(copies * p.k * p.n), c(copies * p.m * p.n);
    int copy = 0;
    std::vector<double> best(threads.size(), std::numeric_limits<double>::infinity());
    const double begin = Seconds();
    for (int round = 0; round < 4 || Seconds() - begin < 0.33 * threads.size(); ++round) {
      for (size_t i = 0; i < threads.size(); ++i) {
        copy = (copy + 1) % copies;
        const GemmOperand left{a.data + copy * p.m * p.k, p.ta ? p.m : p.k, p.ta};
        const GemmOperand right{b.data + copy * p.k * p.n, p.tb ? p.k : p.n, p.tb};
        const double from = Seconds();
        Gemm(*pools[i], p.m, p.n, p.k, left, right, {c.data + copy * p.m * p.n, p.n},
             {.beta = p.ta ? 1.0f : 0.0f});
        best[i] = std::min(best[i], Seconds() - from);
      }
    }
    std::printf("%-12s %6ld %6ld %6ld", p.name, static_cast<long>(p.m), static_cast<long>(p.n),
                static_cast<long>(p.k));
    for (size_t i = 0; i < threads.size(); ++i) {
      const double rate = 2e-9 * p.m * p.n * p.k / best[i];
      logs[i] += std::log(rate);
      std::printf("  %7.1f", rate);
    }
    std::printf("\n");
  }
  std::printf("%-33s", "geometric mean");
  for (const double log : logs) std::printf("  %7.1f", std::exp(log / std::size(kProducts)));
  std::printf("\n");
  return 0;
}

}  // namespace
}  // namespace fsdp

int main(int argc, char** argv) {
  std::vector<int> threads;
  for (int i = 1; i < argc; ++i) threads.push_back(std::max(1, std::atoi(argv[i])));
  return fsdp::Main(threads);
}
