#include "trainer/bench/calibrate.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "trainer/bench/bench_tensors.h"
#include "trainer/bench/op_bench.h"
#include "trainer/comm/store/memory_store.h"
#include "trainer/core/errors.h"
#include "trainer/core/json_reader.h"
#include "trainer/loop/job.h"
#include "trainer/loop/place.h"
#include "trainer/loop/resolve.h"
#include "trainer/loop/resolved_run.h"
#include "trainer/loop/train.h"
#include "trainer/ops/elementwise.h"
#include "trainer/ops/linear.h"
#include "trainer/recipe/recipe.h"
#include "trainer/runtime/choose_device.h"
#include "trainer/simulate/simulate.h"

namespace fsdp {
namespace {

constexpr DType kDTypes[] = {DType::kFloat32, DType::kBFloat16, DType::kFloat16};
constexpr double kNever = std::numeric_limits<double>::infinity();

// A device with a stream that computes as a run's.
class Bench {
 public:
  Bench(const CalibrateOptions& options, DType dtype, int threads)
      : device_(CreateDevice(options.device, {.spin = true, .gpu = options.gpu})),
        tensors_(*device_, dtype),
        stream_(device_->CreateStream("bench", threads)) {
    library_.emplace(*device_, *stream_);
  }

  Device& device() { return *device_; }
  BenchTensors& tensors() { return tensors_; }
  Stream& stream() { return *stream_; }

  // The shortest call, by the device's clock.
  double Fastest(double seconds, const std::function<void()>& call) {
    call();
    stream_->Synchronize();
    double best = kNever;
    const double start = device_->Now();
    for (int i = 0; i < 3 || device_->Now() - start < seconds; ++i) {
      const EventPtr begin = stream_->RecordTime();
      call();
      const EventPtr end = stream_->RecordTime();
      end->Synchronize();
      best = std::min(best, end->Time() - begin->Time());
    }
    return best;
  }

  // The shortest of a few times that the host needs for it, with an idle stream before and after.
  double OfHost(const std::function<void()>& work) {
    double best = kNever;
    for (int i = 0; i < 5; ++i) {
      stream_->Synchronize();
      const double begin = device_->Now();
      work();
      best = std::min(best, device_->Now() - begin);
    }
    stream_->Synchronize();
    return best;
  }

 private:
  const std::unique_ptr<Device> device_;
  BenchTensors tensors_;
  std::optional<BenchLibrary> library_;
  const std::unique_ptr<Stream> stream_;
};

std::vector<OpShapes> ShapesOf(const CalibrateOptions& options) {
  if (options.small) {
    return {{.batch = 1, .seq = 8, .hidden = 16, .intermediate = 32, .heads = 2, .vocab = 64}};
  }
  if (options.device == DeviceType::kCuda) {
    return {{.batch = 16, .seq = 1024},
            {.batch = 8,
             .seq = 1024,
             .hidden = 2048,
             .intermediate = 8192,
             .heads = 16,
             .vocab = 50257}};
  }
  return {{.batch = 4, .seq = 128, .hidden = 256, .intermediate = 1024, .heads = 4, .vocab = 4096},
          {.batch = 2, .seq = 256, .hidden = 512, .intermediate = 1536, .heads = 8, .vocab = 8192},
          // A block of GPT-2 124M, and a part of its tokens and of its vocabulary: what fast
          // products need to reach their rate, and more than the caches near the cores hold.
          {.batch = 1, .seq = 512, .vocab = 8192},
          // Short sums and narrow results, as models of few features have them.
          {.batch = 64, .seq = 32, .hidden = 32, .intermediate = 64, .heads = 2, .vocab = 256},
          {.batch = 256, .seq = 32, .hidden = 8, .intermediate = 16, .heads = 2, .vocab = 64}};
}

// The same work with a shorter time takes its place.
void KeepFastest(std::vector<TimedWork>& kept, size_t& at, const TimedWork& work) {
  if (at == kept.size()) {
    kept.push_back(work);
  } else {
    kept[at].seconds = std::min(kept[at].seconds, work.seconds);
  }
  ++at;
}

void MeasureProducts(const CalibrateOptions& options, DType dtype, int threads,
                     std::vector<TimedWork>& kept, size_t& at) {
  Bench bench(options, dtype, threads);
  const int64_t most = options.small ? 32 : options.device == DeviceType::kCuda ? 8192 : 2048;
  for (int64_t side = most; side * 4 >= most; side /= 2) {
    const View x = bench.tensors().Values({side, side}), w = bench.tensors().Values({side, side}),
               y = bench.tensors().Values({side, side});
    const double seconds = bench.Fastest(options.seconds, [&] {
      LinearForward(bench.stream(), x, w, WeightLayout::kInOut, std::nullopt, y);
    });
    const auto n = static_cast<double>(side);
    KeepFastest(kept, at,
                {.dtype = dtype, .multiplies = true, .flops = 2 * n * n * n, .seconds = seconds});
  }
}

// In the memory of a device.
double MeasureCopy(CalibrateOptions options, DeviceType device) {
  options.device = device;
  Bench bench(options, DType::kFloat32, options.threads);
  const int64_t bytes = options.small ? 1 << 16 : int64_t{128} << 20;
  const View from = bench.tensors().Float({bytes / 4}), to = bench.tensors().Float({bytes / 4});
  return 2.0 * static_cast<double>(bytes) /
         bench.Fastest(options.seconds, [&] { Copy(bench.stream(), from, to); });
}

// Between pinned memory and the device, the slower way.
double MeasureLink(const CalibrateOptions& options) {
  Bench bench(options, DType::kFloat32, /*threads=*/1);
  const int64_t bytes = options.small ? 1 << 16 : int64_t{128} << 20;
  const Buffer pinned = bench.device().Allocate(bytes, MemoryPlace::kPinned);
  const View there = bench.tensors().Float({bytes / 4});
  const View here = pinned.As(DType::kFloat32, there.shape);
  const double to_host = bench.Fastest(options.seconds, [&] { Copy(bench.stream(), there, here); });
  const double to_device =
      bench.Fastest(options.seconds, [&] { Copy(bench.stream(), here, there); });
  return static_cast<double>(bytes) / std::max(to_host, to_device);
}

void Least(double& kept, double value) { kept = kept == 0 ? value : std::min(kept, value); }

void MeasureOverheads(const CalibrateOptions& options, Measurements& measured) {
  constexpr int kMany = 200;
  Bench bench(options, DType::kFloat32, options.threads);
  Stream& stream = bench.stream();
  // On a CPU all threads of the stream take part, as in an operation of a step.
  const View few = bench.tensors().Float({options.device == DeviceType::kCpu ? 8192 : 1});
  const auto fills = [&] {
    for (int i = 0; i < kMany; ++i) Fill(stream, 0, few);
  };
  const double launch = bench.Fastest(options.seconds, fills) / kMany;
  measured.launch_s = std::min(measured.launch_s.value_or(launch), launch);
  Least(measured.host.operation_s, bench.OfHost(fills) / kMany);
  Least(measured.host.event_s, bench.OfHost([&] {
    for (int i = 0; i < kMany; ++i) (void)stream.Record();
  }) / kMany);
  const auto other = bench.device().CreateStream("other");
  const EventPtr passed = other->Record();
  passed->Synchronize();
  Least(measured.host.wait_s, bench.OfHost([&] {
    for (int i = 0; i < kMany; ++i) stream.Wait(passed);
  }) / kMany);
  const auto segment = [&](int64_t bytes) {
    return bench.OfHost([&] { const Buffer taken = bench.device().Allocate(bytes); }) / 2;
  };
  constexpr int64_t kShort = 2 << 20, kLong = 64 << 20;
  const double of_short = segment(kShort), of_long = segment(kLong);
  const double a_byte = std::max(0.0, of_long - of_short) / (kLong - kShort);
  Least(measured.host.segment_s, std::max(of_short - kShort * a_byte, 1e-9));
  Least(measured.host.segment_s_per_byte, std::max(a_byte, 1e-18));
}

void MeasureGroup(const CalibrateOptions& options, Measurements& measured) {
  CommBenchOptions comm;
  comm.ranks = options.ranks;
  comm.sizes = {1 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20};
  if (options.small) comm.sizes = {1 << 10, 256 << 10};
  comm.batches = options.small ? 1 : 5;
  if (options.device == DeviceType::kCuda) {
    comm.transport = CommBenchOptions::Transport::kNccl;
    comm.device = WantedDevice::kCuda;
    comm.dtype = DType::kBFloat16;
    if (!options.small) comm.sizes.push_back(256 << 20);
  }
  Measurements::Group group{.ranks = options.ranks, .times = {}};
  int rounds = options.rounds;
  MeasureCollectives(
      comm, [&] { return rounds-- > 0; },
      [&](const std::vector<CommTime>& times) {
        if (group.times.empty()) group.times = times;
        for (size_t i = 0; i < times.size(); ++i) {
          group.times[i].seconds = std::min(group.times[i].seconds, times[i].seconds);
        }
      });
  measured.groups.push_back(std::move(group));
}

void MeasureCopiesOnce(const CalibrateOptions& options, Measurements& measured) {
  measured.copies.push_back(MeasureCopy(options, options.device));
  double of_host = measured.copies.back();
  if (options.device == DeviceType::kCuda) {
    const double link = MeasureLink(options);
    measured.host_link = std::max(measured.host_link.value_or(link), link);
    of_host = MeasureCopy(options, DeviceType::kCpu);
  }
  measured.host_copy = std::max(measured.host_copy.value_or(0), of_host);
  MeasureOverheads(options, measured);
}

std::string OfRounds(const CalibrateOptions& options, int round) {
  return ", round " + std::to_string(round) + " of " + std::to_string(options.rounds);
}

}  // namespace

void MeasureCopiesAndOverheads(const CalibrateOptions& options,
                               const std::function<void(const std::string&)>& progress,
                               Measurements& measured) {
  for (int round = 1; round <= options.rounds; ++round) {
    progress("copies and overheads" + OfRounds(options, round));
    MeasureCopiesOnce(options, measured);
  }
}

void Measure(const CalibrateOptions& options,
             const std::function<void(const std::string&)>& progress, Measurements& measured) {
  if (options.ranks > 1) {
    progress("collectives of " + std::to_string(options.ranks) + " ranks");
    MeasureGroup(options, measured);
  }
  for (int round = 1; round <= options.rounds; ++round) {
    const std::string of = OfRounds(options, round);
    progress("copies and overheads" + of);
    MeasureCopiesOnce(options, measured);
    size_t product = 0, op = 0;
    for (const DType dtype : kDTypes) {
      progress("products and operations in " + std::string(Name(dtype)) + of);
      MeasureProducts(options, dtype, options.threads, measured.products, product);
      for (const OpShapes& shapes : ShapesOf(options)) {
        OpBenchOptions ops{.shapes = shapes,
                           .threads = options.threads,
                           .seconds = options.seconds,
                           .dtype = dtype,
                           .device = options.device,
                           .gpu = options.gpu};
        ops.attention = BenchedAttention(ops).backend;
        ops.convolution = BenchedConvolutions(ops).backend;
        for (const TimedWork& work : MeasureOperations(ops)) KeepFastest(measured.ops, op, work);
      }
    }
  }
}

namespace {

constexpr size_t kWarmUp = 2;  // Steps that touch memory for the first time.

}  // namespace

double SecondsOfAStep(Recipe recipe, const ChosenDevice& device, const std::string& directory) {
  recipe.run.dir = directory;
  MemoryStore store(recipe.run.timeout_s);
  Job job;
  job.device = device;
  job.store = &store;
  TrainRank(recipe, job);
  std::vector<double> seconds;
  std::ifstream records(directory + "/metrics.jsonl");
  for (std::string line; std::getline(records, line);) {
    const JsonValue record = ParseJson(line, "", {});
    if (record.At("kind").IsText("step")) seconds.push_back(record.At("step_time_s").Number());
  }
  if (seconds.size() <= kWarmUp) throw ConfigError("a step is timed behind two others");
  const auto begin = seconds.begin() + kWarmUp, middle = begin + (seconds.end() - begin) / 2;
  std::nth_element(begin, middle, seconds.end());
  return *middle;
}

double ReachedBy(double seconds, const Recipe& recipe, Hardware hardware) {
  const ResolvedRun run =
      Resolve(recipe, PlaceToPlan(recipe, /*world=*/1, /*local_world=*/1, hardware));
  hardware.reached = 1;
  // Time that is no kernel's does not change with the share, so the share is found step by step.
  for (double off = 1; off > 1e-9;) {
    const double before = hardware.reached;
    hardware.reached = std::min(1.0, before * Simulate(run, hardware).step_s / seconds);
    off = std::abs(hardware.reached - before);
  }
  return hardware.reached;
}

}  // namespace fsdp
