#include "trainer/engine/update_share.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <limits>
#include <memory>
#include <set>
#include <stdexcept>
#include <string>

#include "trainer/core/errors.h"
#include "trainer/fsdp/model_layout.h"
#include "trainer/ops/element_rules.h"
#include "trainer/ops/elementwise.h"
#include "trainer/ops/step_blocks.h"
#include "trainer/ops/step_parameters.h"
#include "trainer/optim/update_rule.h"

namespace fsdp {
namespace {

// Master, state, gradient: 128 MiB of fp32, more than the caches that a rank has to itself.
constexpr int64_t kMostElements = int64_t{1} << 23;
constexpr int64_t kFirstElements = int64_t{1} << 17;
constexpr int64_t kGrowth = 8;
constexpr int kPasses = 3;                // That count, behind one that does not.
constexpr double kLongestSeconds = 0.15;  // For the passes over the next larger buffers.

DTypes DTypesOf(const SessionOptions& options) {
  const FsdpOptions::MixedPrecision& mixed = options.executor.mixed_precision;
  return {.master = mixed.master_dtype,
          .state = options.executor.state_dtype,
          .compute = mixed.param_dtype};
}

bool Copies(const SessionOptions& options) {
  const FsdpOptions::MixedPrecision& mixed = options.executor.mixed_precision;
  return mixed.param_dtype != mixed.master_dtype &&
         mixed.cast == FsdpOptions::MixedPrecision::CastIn::kOptimizer;
}

// An optimizer's shard of n elements, in memory of one place.
class MeasuredUpdate {
 public:
  MeasuredUpdate(Device& device, MemoryPlace place, Stream& stream, const SessionOptions& options,
                 int64_t n)
      : device_(device), place_(place), stream_(stream), options_(options), idle_{stream} {
    const DTypes dtypes = DTypesOf(options);
    // Roots and quotients of zeros are faster than others.
    const View gradient = Filled(DType::kFloat32, n, 1.23e-3F);
    operands_.master = Filled(dtypes.master, n, 0.71F);
    for (const KeptState& kept : KeptStates(options.optimizer)) {
      operands_.kept.push_back(Filled(kept.In(dtypes), n, 0.37F));
    }
    if (Copies(options)) operands_.copy = Filled(dtypes.compute, n, 0);
    const View coefficient = Filled(DType::kFloat32, 1, 1);
    const View rules = New(RuleTableShape(1).NumElements()).As(DType::kUInt8, RuleTableShape(1));
    WriteRules(stream, {{.begin = 0, .end = n, .weight_decay = options.optimizer.weight_decay}}, n,
               rules);
    // A learning rate of 0 is as much work as any.
    const Buffer& inputs = New(sizeof(StepInputs));
    Fill(stream, 0, inputs.As(DType::kFloat32, {sizeof(StepInputs) / sizeof(float)}));
    const View counted = New(sizeof(StepState)).As(DType::kUInt8, BlockShape<StepState>());
    const View factors = New(sizeof(UpdateFactors)).As(DType::kUInt8, BlockShape<UpdateFactors>());
    SetUpdates(stream, 0, counted);
    DeriveUpdateFactors(stream, options.optimizer.beta1, options.optimizer.beta2,
                        inputs.As(DType::kUInt8, BlockShape<StepInputs>()), coefficient, counted,
                        factors);
    operands_.rules = rules, operands_.factors = factors;
    operands_.coefficient = coefficient, operands_.gradient = gradient;
  }
  // Seconds of the fastest. Blocks.
  double Pass() {
    double best = std::numeric_limits<double>::infinity();
    for (int i = 0; i <= kPasses; ++i) {
      const EventPtr begin = stream_.RecordTime();
      UpdateShard(stream_, options_.optimizer, options_.optimizer.seed, operands_);
      const EventPtr end = stream_.RecordTime();
      end->Synchronize();
      if (i > 0) best = std::min(best, end->Time() - begin->Time());
    }
    return std::max(best, 1e-9);  // A clock may not see it.
  }

 private:
  // No memory is freed that the stream still uses, whatever ends this.
  struct Idle {
    Stream& stream;
    ~Idle() {
      try {
        stream.Synchronize();
      } catch (const Error&) {  // Whoever waits for a pass hears it.
      }
    }
  };

  const Buffer& New(int64_t bytes) {
    buffers_.push_back(device_.Allocate(bytes, place_));
    return buffers_.back();
  }
  View Filled(DType dtype, int64_t n, float value) {
    const View all = New(n * SizeOf(dtype)).As(dtype, {n});
    Fill(stream_, value, all);
    return all;
  }

  Device& device_;
  const MemoryPlace place_;
  Stream& stream_;
  const SessionOptions& options_;
  std::deque<Buffer> buffers_;
  const Idle idle_;
  ShardOperands operands_;
};

double RateOf(Device& device, MemoryPlace place, Stream& stream, const SessionOptions& options,
              int64_t elements) {
  const int64_t most = std::clamp(elements, kShardAlignment, kMostElements);
  for (int64_t n = std::min(kFirstElements, most);; n = std::min(n * kGrowth, most)) {
    const double seconds = MeasuredUpdate(device, place, stream, options, n).Pass();
    const double next = seconds * static_cast<double>(std::min(kGrowth, most / n)) * (kPasses + 1);
    if (n == most || next > kLongestSeconds) return static_cast<double>(n) / seconds;
  }
}

}  // namespace

double ShareOf(int stay, int units) {
  if (stay == 0 || stay == units) return stay == 0 ? 0 : 1;
  const auto leaves = [&](double share) { return std::floor(units * share) == stay; };
  // Up, so that rounding takes no unit away.
  constexpr double kDecimals = 1e4;
  const double exact = static_cast<double>(stay) / units;
  const double shown = std::ceil(exact * kDecimals) / kDecimals;
  if (leaves(shown)) return shown;
  return leaves(exact) ? exact : std::nextafter(exact, 1.0);
}

std::vector<int64_t> ElementsOnDevice(const ExecutorOptions& options, const Model& model,
                                      int world) {
  const Layout layout = LayoutFor(options, model, MeshFor(options, /*rank=*/0, world).shard_size());
  const auto elements = [&](const std::set<int>& units) {
    int64_t sum = 0;
    for (const int u : units) {
      for (const int f : layout.TrainableFlatParameters(u)) {
        sum += layout.flat_parameters[f].shard_size;
      }
    }
    return sum;
  };
  ExecutorOptions shared = options;
  shared.cpu_offload.optimizer = true;
  shared.cpu_offload.optimizer_share = 0;
  const std::set<int> all = UnitsOnHost(shared, layout);
  const int units = static_cast<int>(all.size());
  std::vector<int64_t> on_device;
  for (int stay = 0; stay <= units; ++stay) {
    shared.cpu_offload.optimizer_share = ShareOf(stay, units);
    on_device.push_back(elements(all) - elements(UnitsOnHost(shared, layout)));
  }
  return on_device;
}

double ChooseShare(const UpdateRates& rates, const std::vector<int64_t>& on_device,
                   const std::function<bool(double share)>& fits) {
  if (!(rates.device > 0) || !(rates.host > 0) || std::isinf(rates.host) || on_device.empty()) {
    throw std::invalid_argument("[ChooseShare] want rates above 0, got " +
                                std::to_string(rates.device) + " and " +
                                std::to_string(rates.host));
  }
  // Those with more elements than all before them, up to the one that ends first.
  const int units = static_cast<int>(on_device.size()) - 1;
  std::vector<int> candidates;
  int64_t most = -1;
  size_t best = 0;
  double soonest = std::numeric_limits<double>::infinity();
  for (int stay = 0; stay <= units; ++stay) {
    if (on_device[stay] <= most) continue;
    most = on_device[stay];
    candidates.push_back(stay);
    const double seconds = std::max(static_cast<double>(most) / rates.device,
                                    static_cast<double>(on_device[units] - most) / rates.host);
    if (seconds >= soonest) continue;
    soonest = seconds;
    best = candidates.size() - 1;
  }
  // More elements take more memory. candidates[0] is 0, and below `end` all may fit.
  size_t begin = 0, end = best + 1;
  for (size_t at = best; begin + 1 < end; at = begin + (end - begin) / 2) {
    (fits(ShareOf(candidates[at], units)) ? begin : end) = at;
  }
  return ShareOf(candidates[begin], units);
}

UpdateRates MeasureUpdates(Device& device, const SessionOptions& options, int64_t elements) {
  const int64_t asked = options.executor.cpu_offload.threads;
  const int threads = asked > 0 ? static_cast<int>(asked) : options.executor.threads;
  const auto compute = device.CreateStream("compute", options.executor.threads);
  const auto update = device.host().CreateStream("update", threads);
  return {RateOf(device, MemoryPlace::kDevice, *compute, options, elements),
          RateOf(device, MemoryPlace::kPinned, *update, options, elements)};
}

int64_t MeasuredBytes(const SessionOptions& options) {
  const DTypes dtypes = DTypesOf(options);
  int64_t bytes = SizeOf(DType::kFloat32) + SizeOf(dtypes.master);
  for (const KeptState& kept : KeptStates(options.optimizer)) bytes += SizeOf(kept.In(dtypes));
  return bytes + (Copies(options) ? SizeOf(dtypes.compute) : 0);
}

}  // namespace fsdp
