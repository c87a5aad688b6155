// Time of the ops that memory bounds, at the shapes of GPT-2 124M with 2048 tokens:
//   bazel run //tools/bench:row_ops_bench
#include <cstdio>

#include "tools/bench/stream_bench.h"
#include "trainer/ops/adamw.h"
#include "trainer/ops/gelu.h"
#include "trainer/ops/layer_norm.h"
#include "trainer/ops/reductions.h"

namespace fsdp {
namespace {

void Print(const char* name, int threads, int64_t n, double bytes, double seconds) {
  std::printf("%-22s %7d %9.3f ms %7.3f ns/element %6.1f GB/s\n", name, threads, seconds * 1e3,
              seconds / n * 1e9, bytes * n / seconds * 1e-9);
}

void Measure(int threads) {
  StreamBench bench(threads);
  Stream& s = bench.stream();
  {
    const int64_t n = int64_t{8} << 20;
    const View p = bench.Tensor({n}), g = bench.Tensor({n}), m = bench.Tensor({n}),
               v = bench.Tensor({n}), one = bench.Tensor({1}, 1);
    Print("adamw", threads, n, 28, bench.BestSeconds([&] {
      AdamW(s, {}, {{0, n}}, one, g, p, m, v);
    }));
    Print("sum_of_squares", threads, n, 4, bench.BestSeconds([&] { SumOfSquares(s, g, one); }));
    Print("add", threads, n, 12, bench.BestSeconds([&] { Add(s, p, g, m); }));
    Print("copy", threads, n, 8, bench.BestSeconds([&] { Copy(s, p, g); }));
  }
  {
    const int64_t rows = 2048, cols = 768, n = rows * cols;
    const View x = bench.Tensor({rows, cols}), y = bench.Tensor({rows, cols});
    const View w = bench.Tensor({cols}), b = bench.Tensor({cols}), mean = bench.Tensor({rows});
    const View rstd = bench.Tensor({rows});
    const View workspace = bench.Tensor({LayerNormBackwardWorkspace(rows, cols) / 4});
    Print("layer_norm_forward", threads, n, 8,
          bench.BestSeconds([&] { LayerNormForward(s, x, w, b, 1e-5f, y, mean, rstd); }));
    Print("layer_norm_backward", threads, n, 12, bench.BestSeconds([&] {
      LayerNormBackward(s, x, w, mean, rstd, y, LayerNormDx::kOverwrite, y, w, b, workspace);
    }));
  }
  {
    const int64_t n = 2048 * 3072;
    const View x = bench.Tensor({n}), y = bench.Tensor({n}), dx = bench.Tensor({n});
    Print("gelu_forward", threads, n, 8, bench.BestSeconds([&] { GeluForward(s, x, y); }));
    Print("gelu_backward", threads, n, 12, bench.BestSeconds([&] { GeluBackward(s, x, y, dx); }));
  }
}

}  // namespace
}  // namespace fsdp

int main() {
  for (const int threads : {1, 2}) fsdp::Measure(threads);
}
