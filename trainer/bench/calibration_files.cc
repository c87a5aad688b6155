#include "trainer/bench/calibration_files.h"

#include <functional>
#include <optional>
#include <stdexcept>
#include <utility>

#include "trainer/bench/op_bench.h"
#include "trainer/bench/op_rates.h"
#include "trainer/core/errors.h"
#include "trainer/core/json_reader.h"
#include "trainer/core/read_file.h"

namespace fsdp {
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
}

// bench gemm.
void AddProducts(const JsonValue& parts, Measurements& measured) {
  for (const JsonValue& part : parts.Elements()) {
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
