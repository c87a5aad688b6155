// The rate of AttentionForward and AttentionBackward, in FLOPs of their contract a second:
//   bazel run //tools/bench:attention_bench
#include <cstdint>
#include <cstdio>
#include <vector>

#include "tools/bench/stream_bench.h"
#include "trainer/ops/attention.h"

namespace fsdp {
namespace {

void Measure(int64_t batch, int64_t heads, int64_t seq, int64_t head_dim, int threads) {
  StreamBench bench(threads);
  Stream& s = bench.stream();
  const Shape qkv_shape{batch, seq, 3 * heads, head_dim}, out_shape{batch, seq, heads, head_dim};
  const View qkv = bench.Tensor(qkv_shape), dqkv = bench.Tensor(qkv_shape);
  std::vector<int32_t> rows(batch * seq);
  for (size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<int32_t>(i % seq);
  const View positions(reinterpret_cast<std::byte*>(rows.data()), DType::kInt32, {batch, seq});
  const auto heads_of = [&](const View& view, int64_t part) {
    return Heads(view, part * heads, heads);
  };
  const AttentionInputs in{heads_of(qkv, 0), heads_of(qkv, 1), heads_of(qkv, 2), positions};
  const AttentionGradients gradients{heads_of(dqkv, 0), heads_of(dqkv, 1), heads_of(dqkv, 2)};
  const View out = bench.Tensor(out_shape), dout = bench.Tensor(out_shape);
  const View lse = bench.Tensor({batch, heads, seq});
  const double flops = 2.0 * batch * heads * seq * (seq + 1) * head_dim;
  const double forward = bench.BestSeconds([&] { AttentionForward(s, in, out, lse); });
  const double backward =
      bench.BestSeconds([&] { AttentionBackward(s, in, out, lse, dout, gradients); });
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
