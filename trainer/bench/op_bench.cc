#include "trainer/bench/op_bench.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <set>
#include <stdexcept>
#include <utility>
#include <vector>

#include "trainer/bench/bench_library.h"
#include "trainer/bench/bench_tensors.h"
#include "trainer/bench/op_cases.h"
#include "trainer/ops/elementwise.h"
#include "trainer/ops/linear.h"
#include "trainer/runtime/choose_device.h"
#include "trainer/runtime/sim/sim_device.h"

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

std::vector<OpTime> MeasureOps(const OpBenchOptions& options,
                               const std::function<void(const OpTime&)>& measured) {
  std::vector<OpTime> times;
  for (const OpCase& op : Selected(options)) {
    const std::unique_ptr<Device> device = DeviceOf(options);
    BenchTensors tensors(*device, options.dtype);
    std::optional<BenchLibrary> library;
    const auto stream = device->CreateStream("bench", options.threads);
    if (!options.own_kernels) library.emplace(*device, *stream);
    OpTime time{op.name, CostOf(options, op), 0};
    time.seconds = FastestCall(options, *device, *stream, op.make(tensors));
    if (measured) measured(time);
    times.push_back(std::move(time));
  }
  return times;
}

}  // namespace fsdp
