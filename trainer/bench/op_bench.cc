#include "trainer/bench/op_bench.h"

#include <algorithm>
#include <limits>
#include <map>
#include <memory>
#include <set>
#include <stdexcept>
#include <utility>
#include <vector>

#include "trainer/bench/bench_tensors.h"
#include "trainer/bench/op_cases.h"
#include "trainer/ops/elementwise.h"
#include "trainer/ops/linear.h"
#include "trainer/runtime/choose_device.h"
#include "trainer/runtime/sim/sim_device.h"
#include "trainer/simulate/price_list.h"

namespace fsdp {
namespace {

constexpr int64_t kLimitBytes = int64_t{256} << 20;  // Each of the copy's two tensors'.

// The simulated time of a call where a unit of the cost takes a second.
double Simulated(const OpBenchOptions& options, const OpCase& op, const SimModel& model) {
  SimDevice device(model, /*checker=*/nullptr, options.device);
  BenchTensors tensors(device, options.dtype);
  const auto stream = device.CreateStream("bench");
  const OpCase::Call call = op.make(tensors);
  device.StartTrace();
  call(*stream);
  stream->Synchronize();
  double total = 0;
  for (const Span& span : device.TakeTrace()) total += span.end_s - span.begin_s;
  return total;
}

// By the device's clock. A GPU is given several at a time, or the host's way to it would count.
double FastestCall(const OpBenchOptions& options, const Device& device, Stream& stream,
                   const OpCase::Call& call) {
  const int calls = device.type() == DeviceType::kCuda ? 8 : 1;
  call(stream);  // Touches the memory.
  stream.Synchronize();
  double best = std::numeric_limits<double>::infinity();
  const double start = device.Now();
  for (int i = 0; i < 3 || device.Now() - start < options.seconds; ++i) {
    const EventPtr begin = stream.RecordTime();
    for (int c = 0; c < calls; ++c) call(stream);
    const EventPtr end = stream.RecordTime();
    end->Synchronize();
    best = std::min(best, (end->Time() - begin->Time()) / calls);
  }
  return best;
}

std::vector<OpCase> Selected(const OpBenchOptions& options) {
  std::vector<OpCase> selected;
  std::string names;
  for (OpCase& op : OpCases(options.shapes, options.attention, options.convolution)) {
    names += (names.empty() ? "" : "; ") + op.name;
    if (op.name.find(options.only) != std::string::npos) selected.push_back(std::move(op));
  }
  if (selected.empty()) {
    throw std::invalid_argument("[bench ops] no op's name contains `" + options.only +
                                "`; there are: " + names);
  }
  return selected;
}

OpCost CostOf(const OpBenchOptions& options, const OpCase& op) {
  return {.flops = Simulated(options, op, {.s_per_flop = 1}),
          .bytes = Simulated(options, op, {.s_per_byte = 1})};
}

std::unique_ptr<Device> DeviceOf(const OpBenchOptions& options) {
  return CreateDevice(options.device, {.spin = true, .gpu = options.gpu});
}

}  // namespace

double OpLimits::Seconds(const OpCost& cost) const {
  return std::max(cost.flops / flops_per_s, cost.bytes / bytes_per_s);
}

FoundAttention BenchedAttention(const OpBenchOptions& options) {
  if (options.device != DeviceType::kCuda || options.own_kernels) return {};
  return FindAttention(AttentionBackend::kCudnn, options.gpu, DimsOf(options.shapes),
                       options.dtype);
}

FoundConvolutions BenchedConvolutions(const OpBenchOptions& options) {
  if (options.device != DeviceType::kCuda || options.own_kernels) return {};
  std::set<ConvolutionCall> calls;
  OpBenchOptions asking = options;
  asking.convolution = {.cudnn = true, .asked = &calls};
  for (const OpCase& op : Selected(asking)) {
    if (op.name.starts_with("convolution")) (void)Simulated(asking, op, {});
  }
  return FindConvolutions(options.gpu, calls);
}

std::vector<std::string> BenchedOps(const OpBenchOptions& options) {
  std::vector<std::string> names;
  for (const OpCase& op : Selected(options)) names.push_back(op.name);
  return names;
}

OpCost CostOfOp(const OpBenchOptions& options, const std::string& name) {
  for (const OpCase& op : OpCases(options.shapes, options.attention, options.convolution)) {
    if (op.name == name) return CostOf(options, op);
  }
  throw std::invalid_argument("[bench ops] there is no op " + name);
}

OpLimits MeasureLimits(const OpBenchOptions& options) {
  const OpShapes& shapes = options.shapes;
  const std::unique_ptr<Device> device = DeviceOf(options);
  BenchTensors tensors(*device, options.dtype);
  std::optional<BenchLibrary> library;
  const auto stream = device->CreateStream("bench", options.threads);
  if (!options.own_kernels) library.emplace(*device, *stream);
  OpLimits limits;
  {
    const int64_t m = shapes.batch * shapes.seq, n = shapes.intermediate, k = shapes.hidden;
    const View x = tensors.Values({m, k}), w = tensors.Values({k, n}), y = tensors.Values({m, n});
    const double seconds = FastestCall(options, *device, *stream, [&](Stream& s) {
      LinearForward(s, x, w, WeightLayout::kInOut, std::nullopt, y);
    });
    limits.flops_per_s = 2.0 * static_cast<double>(m * n * k) / seconds;
  }
  const View from = tensors.Float({kLimitBytes / 4}), to = tensors.Float({kLimitBytes / 4});
  const double seconds =
      FastestCall(options, *device, *stream, [&](Stream& s) { Copy(s, from, to); });
  limits.bytes_per_s = 2.0 * kLimitBytes / seconds;
  return limits;
}

namespace {

// An op with its tensors, on a device of its own.
class HeldOp {
 public:
  HeldOp(const OpBenchOptions& options, const OpCase& op)
      : options_(options),
        device_(DeviceOf(options)),
        tensors_(*device_, options.dtype),
        stream_(device_->CreateStream("bench", options.threads)),
        time_{op.name, CostOf(options, op), 0} {
    if (!options.own_kernels) library_.emplace(*device_, *stream_);
    call_ = op.make(tensors_);
  }

  OpTime Measure() {
    time_.seconds = FastestCall(options_, *device_, *stream_, call_);
    return time_;
  }

 private:
  const OpBenchOptions& options_;
  const std::unique_ptr<Device> device_;
  BenchTensors tensors_;
  std::optional<BenchLibrary> library_;
  const std::unique_ptr<Stream> stream_;  // Behind what its work reads.
  OpCase::Call call_;
  OpTime time_;
};

}  // namespace

std::vector<OpTime> MeasureOps(const OpBenchOptions& options,
                               const std::function<void(const OpTime&)>& measured) {
  std::vector<OpTime> times;
  for (const OpCase& op : Selected(options)) {
    times.push_back(HeldOp(options, op).Measure());
    if (measured) measured(times.back());
  }
  return times;
}

void AskOps(const OpBenchOptions& options, const std::function<std::string()>& next,
            const std::function<void(const OpTime&)>& measured) {
  const std::vector<OpCase> ops = Selected(options);
  std::map<std::string, HeldOp> held;
  for (std::string name = next(); !name.empty(); name = next()) {
    const auto op =
        std::find_if(ops.begin(), ops.end(), [&](const OpCase& o) { return o.name == name; });
    if (op == ops.end()) throw std::invalid_argument("[bench ops] there is no op `" + name + "`");
    measured(held.try_emplace(name, options, *op).first->second.Measure());
  }
}

namespace {

TimedWork WorkOf(const Operation& operation, DType dtype) {
  TimedWork work{.op = operation.name, .dtype = dtype};
  double products = 0;
  for (const KernelCost& kernel : operation.costs) {
    work.bytes += kernel.cost.bytes_read + kernel.cost.bytes_written;
    if (kernel.kind != KernelKind::kProduct && kernel.kind != KernelKind::kAttention) continue;
    work.multiplies = true;
    products += kernel.cost.flops;
    work.ends += kernel.cost.flops / kernel.product.MeanK();
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
