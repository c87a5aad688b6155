// What the benchmarks of ops share: tensors on a cpu device and the time of a call.
#ifndef FSDP_TRAIN_TOOLS_BENCH_STREAM_BENCH_H_
#define FSDP_TRAIN_TOOLS_BENCH_STREAM_BENCH_H_

#include <algorithm>
#include <functional>
#include <limits>
#include <memory>
#include <vector>

#include "trainer/ops/elementwise.h"
#include "trainer/runtime/cpu/cpu_device.h"

namespace fsdp {

class StreamBench {
 public:
  explicit StreamBench(int threads)
      : device_({.spin = true, .checker = nullptr}),
        stream_(device_.CreateStream("bench", threads)) {}

  Stream& stream() { return *stream_; }

  View Tensor(const Shape& shape, float value = 0.5f) {
    buffers_.push_back(device_.Allocate(shape.NumElements() * 4));
    const View view = buffers_.back().As(DType::kFloat32, shape);
    Fill(*stream_, value, view);
    return view;
  }

  // The fastest of at least ten calls in half a second: what others do on the machine only slows.
  double BestSeconds(const std::function<void()>& call) {
    stream_->Synchronize();
    double best = std::numeric_limits<double>::infinity();
    const double begin = device_.Now();
    for (int i = 0; i < 10 || device_.Now() - begin < 0.5; ++i) {
      const double start = device_.Now();
      call();
      stream_->Synchronize();
      best = std::min(best, device_.Now() - start);
    }
    return best;
  }

 private:
  CpuDevice device_;
  std::vector<Buffer> buffers_;
  std::unique_ptr<Stream> stream_;  // Last: it ends before the memory goes.
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TOOLS_BENCH_STREAM_BENCH_H_
