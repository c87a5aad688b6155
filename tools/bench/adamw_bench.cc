// Ours in host_adamw.py:
//   adamw_bench KIND ELEMENTS THREADS
// Reads a number of steps a line from standard input and answers with a line of JSON: the seconds
// of each of them, of as many copies with stores past the caches and of as many Copy(), which move
// 512 MiB each, and sums over the parameters by which two programs see that they did the same. A
// step that is not counted stands before them: others had the machine.
#include <immintrin.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "trainer/core/dtype.h"
#include "trainer/core/view.h"
#include "trainer/ops/element_rules.h"
#include "trainer/ops/elementwise.h"
#include "trainer/ops/step_parameters.h"
#include "trainer/ops/update.h"
#include "trainer/runtime/cpu/cpu_device.h"
#include "trainer/runtime/device.h"
#include "trainer/runtime/kernel.h"
#include "trainer/runtime/stream.h"
#include "trainer/runtime/thread_pool.h"

namespace fsdp {
namespace {

constexpr int64_t kCopyBytes = int64_t{256} << 20;  // Read, and as many written.
constexpr AdamWOptions kAdamW = {.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8};
constexpr double kLr = 1e-3, kDecay = 0.1;

struct Kind {
  DType master, gradient, copy;  // The state is fp32.
};
Kind KindOf(const std::string& name) {
  constexpr DType kF32 = DType::kFloat32, kBF16 = DType::kBFloat16;
  if (name == "fp32") return {kF32, kF32, kF32};
  if (name == "bf16-copy") return {kF32, kF32, kBF16};
  if (name == "bf16") return {kBF16, kBF16, kBF16};
  throw std::invalid_argument("no kind is called " + name);
}

// Both programs start from the same numbers: a product each, rounded once.
void FillTensor(const View& x, int64_t period, float scale) {
  const auto fill = [&]<typename T>(T* data) {
    for (int64_t i = 0; i < x.NumElements(); ++i) {
      const int64_t step = i % period - period / 2;
      data[i] = T(scale * static_cast<float>(step));
    }
  };
  x.dtype == DType::kFloat32 ? fill(Host(x).As<float>()) : fill(Host(x).As<BFloat16>());
}

// The sum of magnitudes of every 97th element.
double Sum(const View& x) {
  double sum = 0;
  const auto add = [&]<typename T>(const T* data) {
    for (int64_t i = 0; i < x.NumElements(); i += 97) {
      sum += std::abs(static_cast<double>(static_cast<float>(data[i])));
    }
  };
  if (x.data == nullptr) return 0;
  x.dtype == DType::kFloat32 ? add(Host(x).As<float>()) : add(Host(x).As<BFloat16>());
  return sum;
}

// On memory of the host, at multiples of 64 bytes.
void StreamingCopy(ThreadPool& pool, const std::byte* from, std::byte* to, int64_t bytes) {
  pool.ParallelFor(bytes, 4096, [&](int64_t begin, int64_t end) {
    for (int64_t at = begin; at < end; at += 32) {
      _mm256_stream_si256(reinterpret_cast<__m256i*>(to + at),
                          _mm256_load_si256(reinterpret_cast<const __m256i*>(from + at)));
    }
    _mm_sfence();
  });
}

class Bench {
 public:
  Bench(const Kind& kind, int64_t n, int threads)
      : device_({.spin = true, .checker = nullptr}),
        stream_(device_.CreateStream("bench", threads)),
        pool_(threads, /*spin=*/true) {
    p_ = New(kind.master, n), g_ = New(kind.gradient, n);
    m_ = New(DType::kFloat32, n), v_ = New(DType::kFloat32, n);
    if (kind.copy != kind.master) extras_.copy = New(kind.copy, n);
    from_ = New(DType::kUInt8, kCopyBytes), to_ = New(DType::kUInt8, kCopyBytes);
    coefficient_ = New(DType::kFloat32, 1);
    rules_ = New(DType::kUInt8, sizeof(ElementRule));
    inputs_ = New(DType::kUInt8, sizeof(StepInputs));
    state_ = New(DType::kUInt8, sizeof(StepState));
    factors_ = New(DType::kUInt8, sizeof(UpdateFactors));
    FillTensor(p_, 1021, 1e-3f), FillTensor(g_, 1019, 1e-4f);
    for (const View& zeros : {m_, v_, from_, to_}) {
      std::memset(Host(zeros).data, 0, zeros.bytes());
    }
    *Host(coefficient_).As<float>() = 1;
    *Host(inputs_).As<StepInputs>() = {.lr = kLr};
    SetUpdates(*stream_, 0, state_);
    WriteRules(*stream_, {{.begin = 0, .end = n, .weight_decay = kDecay}}, n, rules_);
    stream_->Synchronize();
  }

  void Turn(int steps) {
    const auto step = [&] {
      DeriveUpdateFactors(*stream_, kAdamW.beta1, kAdamW.beta2, inputs_, coefficient_, state_,
                          factors_);
      AdamW(*stream_, kAdamW, rules_, factors_, coefficient_, g_, p_, m_, v_, extras_);
      stream_->Synchronize();
    };
    step();
    std::printf("{");
    Print("seconds", steps, step);
    Print("streaming_seconds", steps,
          [&] { StreamingCopy(pool_, Host(from_).data, Host(to_).data, kCopyBytes); });
    Print("copy_seconds", steps, [&] {
      Copy(*stream_, from_, to_);
      stream_->Synchronize();
    });
    std::printf("\"sums\": [%.17g, %.17g]}\n", Sum(p_), Sum(extras_.copy));
    std::fflush(stdout);
  }

 private:
  View New(DType dtype, int64_t n) {
    buffers_.push_back(device_.Allocate(n * SizeOf(dtype)));
    return buffers_.back().As(dtype, Shape{n});
  }

  void Print(const char* name, int calls, const std::function<void()>& call) const {
    std::printf("\"%s\": [", name);
    for (int i = 0; i < calls; ++i) {
      const double begin = device_.Now();
      call();
      std::printf("%s%.9f", i == 0 ? "" : ", ", device_.Now() - begin);
    }
    std::printf("], ");
  }

  CpuDevice device_;
  std::vector<Buffer> buffers_;
  std::unique_ptr<Stream> stream_;
  ThreadPool pool_;  // For copies, which are no op.
  View p_, g_, m_, v_, from_, to_, coefficient_, rules_, inputs_, state_, factors_;
  UpdateExtras extras_;
};

int Main(int argc, char** argv) {
  if (argc != 4) return std::fprintf(stderr, "usage: adamw_bench KIND ELEMENTS THREADS\n"), 2;
  try {
    Bench bench(KindOf(argv[1]), std::atoll(argv[2]), std::atoi(argv[3]));
    for (int steps; std::scanf("%d", &steps) == 1;) bench.Turn(steps);
  } catch (const std::exception& error) {
    return std::fprintf(stderr, "%s\n", error.what()), 1;
  }
  return 0;
}

}  // namespace
}  // namespace fsdp

int main(int argc, char** argv) { return fsdp::Main(argc, argv); }
