// GFLOP/s of Gemm() at the shapes of a GPT-2 step, by number of threads:
//   bazel run //tools/bench:gemm_bench [-- THREADS ...]
// The best of about a third of a second a cell (noise only ever adds), threads interleaved.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <memory>
#include <vector>

#include "trainer/ops/gemm.h"

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
    {"logits NT", 1024, 8192, 384, false, true},   {"head NT", 160, 50257, 768, false, true},
    {"head dX NN", 160, 768, 50257, false, false}, {"head dW TN", 50257, 768, 160, true, false},
    {"tall NT", 4096, 64, 768, false, true},       {"long-K TN", 64, 64, 4096, true, false},
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
    std::vector<float> a(p.m * p.k, 0.5f), b(p.k * p.n, 0.25f), c(p.m * p.n);
    const GemmOperand left{a.data(), p.ta ? p.m : p.k, p.ta};
    const GemmOperand right{b.data(), p.tb ? p.k : p.n, p.tb};
    std::vector<double> best(threads.size(), std::numeric_limits<double>::infinity());
    const double begin = Seconds();
    for (int round = 0; round < 4 || Seconds() - begin < 0.33 * threads.size(); ++round) {
      for (size_t i = 0; i < threads.size(); ++i) {
        const double from = Seconds();
        Gemm(*pools[i], p.m, p.n, p.k, 1, left, right, 0, c.data(), p.n);
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
