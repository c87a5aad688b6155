// The rate of AttentionForward and AttentionBackward, in FLOPs of their contract a second:
//   bazel run //tools/bench:attention_bench
#include <cstdio>

#include "tools/bench/stream_bench.h"
#include "trainer/ops/attention.h"

namespace fsdp {
namespace {

void Measure(int64_t batch, int64_t heads, int64_t seq, int64_t head_dim, int threads) {
  StreamBench bench(threads);
  Stream& s = bench.stream();
  const Shape qkv_shape{batch, seq, 3, heads, head_dim}, out_shape{batch, seq, heads, head_dim};
  const View qkv = bench.Tensor(qkv_shape), dqkv = bench.Tensor(qkv_shape);
  const View out = bench.Tensor(out_shape), dout = bench.Tensor(out_shape);
  const View lse = bench.Tensor({batch, heads, seq});
  const double flops = 2.0 * batch * heads * seq * (seq + 1) * head_dim;
  const double forward = bench.BestSeconds([&] { AttentionForward(s, qkv, out, lse); });
  const double backward =
      bench.BestSeconds([&] { AttentionBackward(s, qkv, out, lse, dout, dqkv); });
  std::printf("%5ld %5ld %5ld %8ld %7d %9.3f ms %6.1f GFLOP/s %9.3f ms %6.1f GFLOP/s\n", batch,
              heads, seq, head_dim, threads, forward * 1e3, flops / forward * 1e-9, backward * 1e3,
              2.5 * flops / backward * 1e-9);
}

}  // namespace
}  // namespace fsdp

int main() {
  std::printf("batch heads   seq head_dim threads  forward                   backward\n");
  for (const int threads : {1, 2}) {
    for (const int64_t batch : {1, 4}) fsdp::Measure(batch, 12, 512, 64, threads);
    for (const int64_t seq : {64, 128, 256}) fsdp::Measure(16, 4, seq, 32, threads);
  }
}
