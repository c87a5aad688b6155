#include "trainer/bench/calibration.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <stdexcept>
#include <utility>

#include "trainer/bench/op_bench.h"
#include "trainer/core/errors.h"
#include "trainer/core/json_reader.h"
#include "trainer/core/read_file.h"

namespace fsdp {
namespace {

constexpr int64_t kLargeMessage = 256 << 10;

// Adds up one kind of work, at several shapes.
struct Sum {
  double flops = 0, bytes = 0, seconds = 0;

  void Add(const TimedWork& work) {
    flops += work.flops;
    bytes += work.bytes;
    seconds += work.seconds;
  }
};

class File {
 public:
  explicit File(std::string source) : source_(std::move(source)) {}

  void Set(std::optional<double>& number, double value, const std::string& key) {
    number = value;
    hardware.sources[key] = source_;
  }
  void Set(double& number, double value, const std::string& key) {
    if (value == 0) return;  // As it is without the key.
    number = value;
    hardware.sources[key] = source_;
  }
  void Set(std::optional<int64_t>& number, const std::optional<int64_t>& value,
           const std::string& key) {
    if (!value) return;
    number = value;
    hardware.sources[key] = source_;
  }
  void Name(const std::string& key) { hardware.sources[key] = source_; }

  Hardware hardware;

 private:
  const std::string source_;
};

void SetProducts(const std::vector<TimedWork>& products, File& file) {
  Hardware& to = file.hardware;
  const std::pair<DType, std::optional<double>*> kRates[] = {{DType::kBFloat16, &to.bf16_flops},
                                                             {DType::kFloat16, &to.fp16_flops},
                                                             {DType::kFloat32, &to.fp32_flops}};
  for (const auto& [dtype, rate] : kRates) {
    Sum all;
    for (const TimedWork& product : products) {
      if (product.dtype == dtype) all.Add(product);
    }
    if (all.seconds > 0) {
      file.Set(*rate, all.flops / all.seconds, std::string(Name(dtype)) + "_flops");
    }
  }
}

// An operation with products: seconds = (FLOPs + terms ends + sides sides) / rate.
struct ProductFit {
  double rate = 0, terms = 0, sides = 0;
};

// Solves a x = b, where a is symmetric, by elimination. False where a is singular, or some x is not
// above 0.
bool SolvePositive(std::vector<std::vector<double>> a, std::vector<double>& x) {
  const size_t n = x.size();
  for (size_t i = 0; i < n; ++i) {
    const double scale = a[i][i];
    for (size_t row = i + 1; row < n; ++row) {
      const double factor = a[row][i] / scale, before = a[row][row];
      for (size_t col = i; col < n; ++col) a[row][col] -= factor * a[i][col];
      if (!(a[row][row] > 1e-9 * before)) return false;
      x[row] -= factor * x[i];
    }
  }
  for (size_t i = n; i-- > 0;) {
    for (size_t col = i + 1; col < n; ++col) x[i] -= a[i][col] * x[col];
    x[i] /= a[i][i];
    if (!(x[i] > 0)) return false;
  }
  return true;
}

// The `x` for which the sum of ((said - seconds) / seconds)^2 is smallest, where said is the sum of
// x[i] times parts[i] of a work, behind `known` seconds of its FLOPs. False: SolvePositive()'s.
bool Solve(const std::vector<TimedWork>& works, const std::vector<double TimedWork::*>& parts,
           double known, std::vector<double>& x) {
  const size_t n = parts.size();
  std::vector<std::vector<double>> a(n, std::vector<double>(n));
  x.assign(n, 0);
  for (const TimedWork& work : works) {
    for (size_t i = 0; i < n; ++i) {
      const double share = work.*parts[i] / work.seconds;
      x[i] += share * (1 - known * work.flops / work.seconds);
      for (size_t j = 0; j < n; ++j) a[i][j] += share * work.*parts[j] / work.seconds;
    }
  }
  return SolvePositive(a, x);
}

// The fit for which the sum of ((said - seconds) / seconds)^2 is smallest, nothing is negative and
// no FLOP takes less than `least_s`; where neither terms nor sides fit, all FLOPs over all seconds.
// Without that bound shapes of which none is large may have a rate that no product reaches.
ProductFit FitProducts(const std::vector<TimedWork>& works, double least_s) {
  Sum all;
  for (const TimedWork& work : works) all.Add(work);
  ProductFit best{.rate = all.flops / all.seconds};
  double least = std::numeric_limits<double>::infinity();
  for (const auto& [terms, sides] : {std::pair(true, true), {true, false}, {false, true}}) {
    std::vector<double TimedWork::*> parts{&TimedWork::flops};
    if (terms) parts.push_back(&TimedWork::ends);
    if (sides) parts.push_back(&TimedWork::sides);
    const size_t n = parts.size();
    std::vector<double> x;
    // Shapes of one k, or of one width, tell nothing of the ends or the sides.
    if (!Solve(works, parts, 0, x)) continue;
    if (x[0] < least_s) {
      if (!Solve(works, {parts.begin() + 1, parts.end()}, least_s, x)) continue;
      x.insert(x.begin(), least_s);
    }
    double missed = 0;
    for (const TimedWork& work : works) {
      double said = 0;
      for (size_t i = 0; i < n; ++i) said += x[i] * work.*parts[i];
      missed += (said / work.seconds - 1) * (said / work.seconds - 1);
    }
    if (missed >= least) continue;
    least = missed;
    best = {1 / x[0], terms ? x[1] / x[0] : 0, sides ? x[n - 1] / x[0] : 0};
  }
  return best;
}

// The rate of one of attention's operations in bf16, or in all dtypes if it has none in bf16.
std::optional<double> AttentionRate(const std::vector<TimedWork>& ops, const char* name) {
  Sum all, bf16;
  for (const TimedWork& op : ops) {
    if (op.op != name) continue;
    all.Add(op);
    if (op.dtype == DType::kBFloat16) bf16.Add(op);
  }
  const Sum& sum = bf16.seconds > 0 ? bf16 : all;
  return sum.seconds > 0 ? std::optional(sum.flops / sum.seconds) : std::nullopt;
}

// The fewest seconds that a FLOP of the dtype has taken, in a product alone or in an operation. 0
// where no product of the dtype was timed alone.
double LeastSeconds(DType dtype, const Measurements& measured) {
  const auto best = [&](const std::vector<TimedWork>& works) {
    double rate = 0;
    for (const TimedWork& work : works) {
      if (work.multiplies && work.dtype == dtype) rate = std::max(rate, work.flops / work.seconds);
    }
    return rate;
  };
  const double alone = best(measured.products);
  return alone == 0 ? 0 : 1 / std::max(alone, best(measured.ops));
}

void SetOps(const Measurements& measured, File& file) {
  const std::vector<TimedWork>& ops = measured.ops;
  std::map<std::string, std::vector<TimedWork>> multiplying;
  std::map<std::string, Sum> moving;
  for (const TimedWork& op : ops) {
    const std::string key = op.op + ", " + std::string(Name(op.dtype));
    if (op.multiplies) {
      multiplying[key].push_back(op);
    } else {
      moving[key].Add(op);
    }
  }
  Hardware& to = file.hardware;
  for (const auto& [key, works] : multiplying) {
    const ProductFit fit = FitProducts(works, LeastSeconds(works.front().dtype, measured));
    to.op_flops_per_s[key] = fit.rate;
    if (fit.terms > 0) to.op_terms[key] = fit.terms;
    if (fit.sides > 0) to.op_sides[key] = fit.sides;
  }
  for (const auto& [key, sum] : moving) to.op_bytes_per_s[key] = sum.bytes / sum.seconds;
  if (!multiplying.empty()) file.Name("op_flops_per_s");
  if (!to.op_terms.empty()) file.Name("op_terms");
  if (!to.op_sides.empty()) file.Name("op_sides");
  if (!moving.empty()) file.Name("op_bytes_per_s");
  if (const auto rate = AttentionRate(ops, "attention_forward")) {
    file.Set(to.attention_forward_flops, *rate, "attention_forward_flops");
  }
  if (const auto rate = AttentionRate(ops, "attention_backward")) {
    file.Set(to.attention_backward_flops, *rate, "attention_backward_flops");
  }
}

bool IsRing(Collective collective) {
  return collective == Collective::kAllGather || collective == Collective::kReduceScatter;
}

// Sets a link by calls of one kind: the step from the shortest messages, the rate from long ones.
void SetLink(const std::vector<Measurements::Group>& groups, bool ring, File& file) {
  double step = -1, sent = 0, seconds = 0;
  for (const auto& group : groups) {
    const double peers = group.ranks - 1;
    if (peers == 0) continue;
    int64_t smallest = -1;
    const auto chosen = [&](const CommTime& time) {
      return ring ? IsRing(time.collective) : time.collective == Collective::kAllToAll;
    };
    for (const CommTime& time : group.times) {
      if (chosen(time) && (smallest < 0 || time.bytes < smallest)) smallest = time.bytes;
    }
    double own_step = -1;
    for (const CommTime& time : group.times) {
      if (!chosen(time) || time.bytes != smallest || smallest >= kLargeMessage) continue;
      const double one = time.seconds / peers;
      own_step = own_step < 0 ? one : std::min(own_step, one);
    }
    if (own_step >= 0) step = step < 0 ? own_step : std::min(step, own_step);
    for (const CommTime& time : group.times) {
      if (!chosen(time) || time.bytes < kLargeMessage) continue;
      sent += static_cast<double>(time.bytes) * peers / group.ranks;
      seconds += std::max(time.seconds - std::max(own_step, 0.0) * peers, time.seconds / 2);
    }
  }
  LinkRates& inside = file.hardware.network->inside;
  const std::string key = std::string("network.inside.") + (ring ? "ring" : "all_to_all");
  if (step >= 0) {
    file.Set(ring ? inside.ring_step_s : inside.all_to_all_step_s, step, key + "_step_s");
  }
  if (seconds > 0) {
    file.Set(ring ? inside.ring_bytes_per_s : inside.all_to_all_bytes_per_s, sent / seconds,
             key + "_bytes_per_s");
  }
}

void SetNetwork(const Measurements& measured, File& file) {
  int ranks = 1;
  for (const auto& group : measured.groups) ranks = std::max(ranks, group.ranks);
  if (ranks == 1) return;
  file.hardware.network.emplace().ranks_per_host = ranks;
  file.Name("network.ranks_per_host");
  SetLink(measured.groups, /*ring=*/true, file);
  SetLink(measured.groups, /*ring=*/false, file);
}

}  // namespace

Hardware HardwareOf(const Measurements& measured, const std::string& source) {
  if (measured.products.empty() && measured.ops.empty() && measured.copies.empty() &&
      measured.groups.empty()) {
    throw std::invalid_argument("[calibrate] nothing was measured");
  }
  if (measured.name.empty()) throw std::invalid_argument("[calibrate] the device has no name");
  File file(source);
  Hardware& to = file.hardware;
  to.name = measured.name;
  to.device = measured.device;
  to.kernels = measured.kernels;
  file.Set(to.memory, measured.memory, "memory");
  file.Set(to.host_memory, measured.host_memory, "host_memory");
  file.Set(to.cores, measured.cores, "cores");
  SetProducts(measured.products, file);
  SetOps(measured, file);
  if (!measured.copies.empty()) {
    file.Set(to.copy_bytes_per_s, *std::max_element(measured.copies.begin(), measured.copies.end()),
             "copy_bytes_per_s");
  }
  if (measured.host_copy) {
    file.Set(to.host_copy_bytes_per_s, *measured.host_copy, "host_copy_bytes_per_s");
  }
  if (measured.host_link) {
    file.Set(to.host_link_bytes_per_s, *measured.host_link, "host_link_bytes_per_s");
  }
  if (measured.launch_s) file.Set(to.launch_s, *measured.launch_s, "launch_s");
  file.Set(to.host.operation_s, measured.host.operation_s, "host.operation_s");
  file.Set(to.host.event_s, measured.host.event_s, "host.event_s");
  file.Set(to.host.wait_s, measured.host.wait_s, "host.wait_s");
  file.Set(to.host.allocation_s, measured.host.allocation_s, "host.allocation_s");
  file.Set(to.host.segment_s, measured.host.segment_s, "host.segment_s");
  file.Set(to.host.segment_s_per_byte, measured.host.segment_s_per_byte, "host.segment_s_per_byte");
  SetNetwork(measured, file);
  return to;
}

namespace {

constexpr char kNoResult[] =
    "no result of `bench gemm|ops|comm --json`, nor a result.json of tools/gpu/kit";

[[noreturn]] void Raise(const std::string& message) { throw ConfigError(message); }

constexpr JsonErrors kErrors{.raise = Raise, .not_json = kNoResult};

DType DTypeOf(const JsonValue& value) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    if (value.Text() == Name(dtype)) return dtype;
  }
  value.Refuse("want fp32, bf16 or fp16");
}

double Positive(const JsonValue& value) {
  const double number = value.Number();
  if (!(number > 0)) value.Refuse("want a number above 0");
  return number;
}

void SetDevice(const JsonValue& file, const std::string& name, Measurements& measured) {
  const auto device = name == "cpu" ? Hardware::Device::kCpu : Hardware::Device::kCuda;
  if (!measured.name.empty() && measured.name != name) {
    file.Refuse("is of " + name + ", and what was read before of " + measured.name);
  }
  measured.name = name;
  measured.device = device;
  const auto kernels = file.Find("kernels");
  if (!kernels || device != Hardware::Device::kCpu) return;
  const std::string kind = kernels->Text();
  const std::vector<std::string>& kinds = KindsOfKernels();
  if (std::find(kinds.begin(), kinds.end(), kind) == kinds.end()) {
    kernels->Refuse("is no kind of kernels");
  }
  if (measured.kernels && *measured.kernels != kind) {
    file.Refuse("is of " + kind + " kernels, and what was read before of " + *measured.kernels);
  }
  measured.kernels = kind;
}

// bench gemm.
void AddProducts(const JsonValue& parts, Measurements& measured) {
  for (const JsonValue& part : parts.Elements()) {
    const auto groups = part.Find("groups");
    if (groups && groups->Integer(1, int64_t{1} << 40) > 1) continue;  // No product alone.
    measured.products.push_back({.dtype = DTypeOf(part.At("dtype")),
                                 .multiplies = true,
                                 .flops = Positive(part.At("flops")),
                                 .seconds = Positive(part.At("seconds"))});
  }
}

// The sizes of the cases. No case of these limits needs much memory to be described.
OpShapes ShapesOf(const JsonValue& value) {
  const auto size = [&](const char* key, int64_t most) { return value.At(key).Integer(1, most); };
  constexpr int64_t kMost = 1 << 20;
  const OpShapes shapes{.batch = size("batch", kMost),
                        .seq = size("seq", kMost),
                        .hidden = size("hidden", kMost),
                        .intermediate = size("intermediate", kMost),
                        .heads = size("heads", 1 << 10),
                        .vocab = size("vocab", kMost)};
  if (shapes.batch * shapes.seq > 4 * kMost) value.Refuse("are too many tokens");
  return shapes;
}

// The operation of a case; nullopt: this program has no such case, which is of another version.
std::optional<TimedWork> OperationOf(const JsonValue& op, const OpBenchOptions& options) {
  try {
    return MainOperationOf(op.At("name").Text(), options);
  } catch (const std::invalid_argument& error) {
    op.Refuse(error.what());
  }
}

// bench ops.
void AddOps(const JsonValue& file, Measurements& measured) {
  const DType dtype = DTypeOf(file.At("dtype"));
  OpBenchOptions options{
      .shapes = {.batch = 2, .seq = 8, .hidden = 16, .intermediate = 32, .heads = 2, .vocab = 64},
      .dtype = dtype,
      .device = measured.device == Hardware::Device::kCuda ? DeviceType::kCuda : DeviceType::kCpu};
  const auto shapes = file.Find("shapes");
  if (shapes) options.shapes = ShapesOf(*shapes);
  for (const JsonValue& op : file.At("ops").Elements()) {
    const auto main = OperationOf(op, options);
    if (!main) continue;
    TimedWork work = *main;
    work.seconds = Positive(op.At("seconds"));
    if (!shapes) {
      work.flops = op.At("flops").Number();
      work.bytes = op.At("bytes").Number();
      work.ends = work.sides = 0;
    }
    if ((work.multiplies ? work.flops : work.bytes) > 0) measured.ops.push_back(std::move(work));
  }
}

void AddCollectives(const JsonValue& list, int ranks, Measurements& measured) {
  Measurements::Group group{.ranks = ranks, .times = {}};
  for (const JsonValue& one : list.Elements()) {
    std::optional<Collective> found;
    for (int kind = 0; kind < kCollectives; ++kind) {
      const auto collective = static_cast<Collective>(kind);
      if (one.At("collective").Text() == Name(collective)) found = collective;
    }
    if (!found) one.At("collective").Refuse("is no collective");
    group.times.push_back({.collective = *found,
                           .bytes = one.At("bytes").Integer(1, int64_t{1} << 60),
                           .seconds = Positive(one.At("seconds"))});
  }
  if (!group.times.empty()) measured.groups.push_back(std::move(group));
}

void AddCopy(const JsonValue& gb_per_s, Measurements& measured) {
  measured.copies.push_back(Positive(gb_per_s) * 1e9);
}

// Adds the kit's rows whose status is ok.
void AddPart(const JsonValue& parts, const std::string& name,
             const std::function<void(const std::string&, const JsonValue&)>& add) {
  const auto part = parts.Find(name);
  if (!part) return;
  for (const JsonValue& row : part->At("rows").Elements()) {
    if (row.At("status").Text() == "ok") add(row.At("name").Text(), row);
  }
}

void AddKit(const JsonValue& file, Measurements& measured) {
  const JsonValue parts = file.At("parts");
  std::string gpu;
  AddPart(parts, "devices", [&](const std::string& row, const JsonValue& value) {
    if (row != "GPU") return;
    const std::string text = value.At("text").Text();  // "cuda  0: NAME, capability 9.0, ...".
    const size_t begin = text.find(": ");
    if (begin != std::string::npos) {
      gpu = text.substr(begin + 2, text.find(',', begin) - begin - 2);
    }
  });
  measured.device = Hardware::Device::kCuda;
  if (!gpu.empty()) SetDevice(file, gpu, measured);
  AddPart(parts, "products", [&](const std::string&, const JsonValue& row) {
    const JsonValue numbers = row.At("numbers");
    if (const auto list = numbers.Find("parts")) return AddProducts(*list, measured);
    // As kits before had it: a rate alone, of recipes in bf16.
    measured.products.push_back({.dtype = DType::kBFloat16,
                                 .multiplies = true,
                                 .flops = Positive(numbers.At("tflops")) * 1e12,
                                 .seconds = 1});
  });
  AddPart(parts, "ops", [&](const std::string&, const JsonValue& row) {
    const JsonValue numbers = row.At("numbers");
    AddCopy(numbers.At("copy_gb_per_s"), measured);
    if (numbers.Has("ops")) AddOps(numbers, measured);
  });
  AddPart(parts, "nccl", [&](const std::string& name, const JsonValue& row) {
    if (name == "collectives") AddCollectives(row.At("numbers").At("collectives"), 2, measured);
  });
}

}  // namespace

void AddMeasurements(const std::string& path, Measurements& measured) {
  const FileText read = ReadFileText(path, kMostTextBytes, ReadFrom::kPipeToo);
  if (!read.why.empty()) throw ConfigError(path + ": " + read.why);
  const JsonValue file = ParseJson(read.text, path, kErrors);
  if (file.Has("parts") && file.At("parts").IsObject()) return AddKit(file, measured);
  if (file.Has("parts") && file.At("parts").IsList() && file.Has("products")) {
    return AddProducts(file.At("parts"), measured);
  }
  if (file.Has("ops") && file.Has("copy_gb_per_s")) {
    SetDevice(file, file.At("device").Text(), measured);
    AddCopy(file.At("copy_gb_per_s"), measured);
    return AddOps(file, measured);
  }
  if (file.Has("collectives") && file.Has("ranks")) {
    SetDevice(file, file.At("device").Text(), measured);
    return AddCollectives(file.At("collectives"),
                          static_cast<int>(file.At("ranks").Integer(1, 1 << 20)), measured);
  }
  throw ConfigError(path + ": " + kNoResult);
}

}  // namespace fsdp
