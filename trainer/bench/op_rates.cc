#include "trainer/bench/op_rates.h"

#include <algorithm>
#include <limits>
#include <memory>

#include "trainer/bench/bench_library.h"
#include "trainer/bench/bench_tensors.h"
#include "trainer/ops/elementwise.h"
#include "trainer/runtime/choose_device.h"
#include "trainer/runtime/sim/sim_device.h"
#include "trainer/simulate/price_list.h"

namespace fsdp {
namespace {

TimedWork WorkOf(const Operation& operation, DType dtype) {
  TimedWork work{.op = operation.name, .dtype = dtype};
  double products = 0;
  for (const KernelCost& kernel : operation.costs) {
    work.bytes += kernel.cost.bytes_read + kernel.cost.bytes_written;
    if (kernel.kind != KernelKind::kProduct && kernel.kind != KernelKind::kAttention) continue;
    work.multiplies = true;
    products += kernel.cost.flops;
    work.ends += kernel.cost.flops / static_cast<double>(std::max<int64_t>(kernel.product.k, 1));
    work.sides += kernel.cost.flops * SidesOf(kernel);
  }
  work.flops = products;
  return work;
}

// The shortest time so far of each operation of a call, in the operations' order.
class Shortest {
 public:
  explicit Shortest(size_t operations)
      : seconds_(operations, std::numeric_limits<double>::infinity()) {}

  void Note(const std::vector<Span>& spans) {
    size_t at = 0;
    for (const Span& span : spans) {
      if (span.stream != "bench" || span.name == "wait" || at == seconds_.size()) continue;
      seconds_[at] = std::min(seconds_[at], span.end_s - span.begin_s);
      ++at;
    }
  }
  double Of(size_t operation) const { return seconds_[operation]; }

 private:
  std::vector<double> seconds_;
};

// Takes a call's operands out of the caches nearest to a CPU's cores, where a step does not find
// them either: it writes more than those hold, on a stream of its own.
class OtherMemory {
 public:
  OtherMemory(Device& device, BenchTensors& tensors, int threads)
      : memory_(tensors.Float({kElements})), stream_(device.CreateStream("other", threads)) {}

  void Write() {
    Fill(*stream_, 0, memory_);
    stream_->Synchronize();
  }

 private:
  static constexpr int64_t kElements = int64_t{2} << 20;  // 8 MiB.

  const View memory_;
  const std::unique_ptr<Stream> stream_;
};

}  // namespace

std::vector<TimedWork> OperationsOf(const OpBenchOptions& options, const OpCase& op) {
  SimDevice device({}, /*checker=*/nullptr, options.device);
  BenchTensors tensors(device, options.dtype);
  const auto stream = device.CreateStream("bench");
  const OpCase::Call call = op.make(tensors);
  std::vector<TimedWork> found;
  device.Observe([&](const Operation& operation, const Stream&) {
    found.push_back(WorkOf(operation, options.dtype));
  });
  call(*stream);
  device.Observe(nullptr);
  return found;
}

std::optional<TimedWork> MainOperationOf(const std::string& name, const OpBenchOptions& options) {
  for (const OpCase& op : OpCases(options.shapes, options.attention, options.convolution)) {
    if (op.name != name || !IsUsual(op, options.dtype)) continue;
    const std::vector<TimedWork> all = OperationsOf(options, op);
    const auto most =
        std::max_element(all.begin(), all.end(), [](const TimedWork& a, const TimedWork& b) {
          return a.flops + a.bytes < b.flops + b.bytes;
        });
    if (most != all.end()) return *most;
  }
  return std::nullopt;
}

bool IsUsual(const OpCase& op, DType dtype) {
  if (!op.name.starts_with("adamw")) return true;
  return op.name == (dtype == DType::kFloat32 ? "adamw" : "adamw, bf16 copy");
}

std::vector<TimedWork> MeasureOperations(const OpBenchOptions& options) {
  std::vector<TimedWork> all;
  for (const OpCase& op : OpCases(options.shapes, options.attention, options.convolution)) {
    if (!IsUsual(op, options.dtype)) continue;
    const std::unique_ptr<Device> device =
        CreateDevice(options.device, {.spin = true, .gpu = options.gpu});
    BenchTensors tensors(*device, options.dtype);
    std::optional<BenchLibrary> library;
    const auto stream = device->CreateStream("bench", options.threads);
    if (!options.own_kernels) library.emplace(*device, *stream);
    const OpCase::Call call = op.make(tensors);
    std::vector<TimedWork> works = OperationsOf(options, op);
    Shortest shortest(works.size());
    call(*stream);  // Touches the memory.
    stream->Synchronize();
    std::optional<OtherMemory> other;
    if (options.device == DeviceType::kCpu && options.seconds > 0) {
      other.emplace(*device, tensors, options.threads);
    }
    const double start = device->Now();
    for (int i = 0; i < 2 || device->Now() - start < options.seconds; ++i) {
      if (other) other->Write();
      device->StartTrace();
      call(*stream);
      stream->Synchronize();
      shortest.Note(device->TakeTrace());
    }
    for (size_t i = 0; i < works.size(); ++i) {
      works[i].seconds = shortest.Of(i);
      const bool timed =
          works[i].seconds > 0 && works[i].seconds < std::numeric_limits<double>::infinity();
      if (timed && (works[i].multiplies ? works[i].flops : works[i].bytes) > 0) {
        all.push_back(works[i]);
      }
    }
  }
  return all;
}

}  // namespace fsdp
