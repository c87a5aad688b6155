#include "trainer/engine/gemm_algorithms.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <utility>

#include "trainer/core/hex.h"
#include "trainer/core/json.h"
#include "trainer/core/json_reader.h"
#include "trainer/engine/step_operations.h"
#include "trainer/ops/elementwise.h"
#include "trainer/runtime/kernel.h"
#include "trainer/runtime/operation.h"

namespace fsdp {
namespace {

constexpr int kCandidates = 16;
// A GPU that was idle takes about that long to reach its clock: an H200 was seen at 345 MHz.
constexpr double kWarm_s = 0.3;
// Calls of a candidate take that long together, as far as that is no more than kMostRuns.
constexpr double kLeast_s = 2e-3;
constexpr int kMostRuns = 100;
constexpr int kTurns = 2;                               // The two best, by turns.
constexpr int64_t kPatternElements = int64_t{1} << 19;  // A power of two: begins of pieces align.

std::string Hex(const GemmAlgorithm& algorithm) {
  std::string text;
  for (const uint64_t word : algorithm.data) text += ToHex(word);
  return text;
}

bool FromHex(const std::string& text, GemmAlgorithm* algorithm) {
  if (text.size() != 16 * algorithm->data.size() ||
      text.find_first_not_of("0123456789abcdef") != std::string::npos) {
    return false;
  }
  for (size_t i = 0; i < algorithm->data.size(); ++i) {
    algorithm->data[i] = std::stoull(text.substr(16 * i, 16), nullptr, 16);
  }
  return true;
}

int64_t Padded(int64_t elements) { return (elements + 7) / 8 * 8; }

// Rows of a stored matrix, and their stride: as ops have it, where that begins rows at packs.
struct Stored {
  int64_t rows, stride;
  int64_t Bytes(DType dtype) const { return rows * stride * SizeOf(dtype); }
};
Stored StoredA(const GemmShape& s) {
  return s.a_transposed ? Stored{s.k, Padded(s.m)} : Stored{s.m, Padded(s.k)};
}
Stored StoredB(const GemmShape& s) {
  return s.b_transposed ? Stored{s.n, Padded(s.k)} : Stored{s.k, Padded(s.n)};
}
Stored StoredC(const GemmShape& s) { return {s.m, Padded(s.n)}; }

// The operands of a timed product.
struct Operands {
  ConstView a, b, bias;
  View c, aux;  // aux: u or gelu(C).
};
template <typename Visit>
void ForEachAddress(Operands& operands, const Visit& visit) {
  for (ConstView* view : {&operands.a, &operands.b, &operands.bias}) visit(view->data);
  for (View* view : {&operands.c, &operands.aux}) visit(view->data);
}

// `refused`: set where the library does not take it.
void Multiply(CudaStreamHandle stream, const GemmShape& s, const Operands& x, bool* refused) {
  GemmEpilogue epilogue;
  if (s.bias) epilogue.bias = ConstView(x.bias.data, s.result, {s.n});
  if (s.activation == Product::Activation::kGelu) epilogue.gelu = x.aux.data;
  if (s.activation == Product::Activation::kGeluBackward) epilogue.gelu_of = x.aux.data;
  const bool taken = GemmOf(stream).library->Multiply(
      stream, s.m, s.n, s.k, {x.a.data, StoredA(s).stride, s.a_transposed, s.dtype},
      {x.b.data, StoredB(s).stride, s.b_transposed, s.dtype},
      {x.c.data, StoredC(s).stride, s.result}, epilogue);
  if (!taken) *refused = true;
}

// Device memory of numbers near 0 that are not all alike: a GPU multiplies zeros at a lower power,
// and so at another clock.
class Values {
 public:
  Values(Device& device, Stream& stream, int64_t bytes)
      : buffer_(device.Allocate(std::max<int64_t>(bytes, 1))) {
    const Buffer host = device.Allocate(kPatternElements * 2, MemoryPlace::kPinned);
    const View pattern = host.As(DType::kBFloat16, {kPatternElements});
    for (int64_t i = 0; i < kPatternElements; ++i) {
      pattern.As<BFloat16>()[i] = BFloat16(1e-4f * static_cast<float>(i % 1021 - 510));
    }
    const View all = buffer_.As(DType::kBFloat16, {buffer_.bytes() / 2});
    for (int64_t at = 0; at < all.NumElements(); at += kPatternElements) {
      const int64_t n = std::min(kPatternElements, all.NumElements() - at);
      Copy(stream, pattern.Slice(0, n), all.Slice(at, n));
    }
    stream.Synchronize();
  }
  View bytes() const { return buffer_.As(DType::kUInt8, {buffer_.bytes()}); }

 private:
  Buffer buffer_;
};

}  // namespace

std::string ToJson(const GemmAlgorithms& algorithms) {
  std::string shapes;
  for (const auto& [shape, choice] : algorithms.by_shape) {
    JsonObject one;
    one.Add("algorithm", Hex(choice.algorithm))
        .Add("workspace", choice.algorithm.workspace)
        .Add("seconds", choice.seconds);
    shapes += (shapes.empty() ? "\n" : ",\n") + JsonString(shape) + ": " + one.Text();
  }
  return JsonObject()
      .Add("library", algorithms.library)
      .Add("gpu", algorithms.gpu)
      .Add("deterministic", algorithms.deterministic)
      .Add("multiprocessors", algorithms.multiprocessors)
      .AddRaw("shapes", "{" + shapes + "}")
      .Text();
}

std::optional<GemmAlgorithms> ParseGemmAlgorithms(const std::string& json) {
  static constexpr JsonErrors kErrors{
      .raise = [](const std::string& message) { throw std::invalid_argument(message); }};
  try {
    const JsonValue document = ParseJson(json, "algorithms", kErrors);
    GemmAlgorithms algorithms{document.At("library").Text(),
                              document.At("gpu").Text(),
                              document.At("deterministic").Boolean(),
                              0,
                              {}};
    if (const auto some = document.Find("multiprocessors")) {
      algorithms.multiprocessors = some->Integer(0, 1 << 20);
    }
    for (const auto& [shape, value] : document.At("shapes").Members()) {
      GemmAlgorithms::Choice choice;
      if (!FromHex(value.At("algorithm").Text(), &choice.algorithm)) return std::nullopt;
      choice.algorithm.workspace = value.At("workspace").Integer(0, kGemmWorkspaceBytes);
      choice.seconds = value.At("seconds").Number();
      algorithms.by_shape[shape] = choice;
    }
    return algorithms;
  } catch (const std::invalid_argument&) {
    return std::nullopt;
  }
}

std::vector<GemmShape> StepGemmShapes(Model& model, const SessionOptions& options, int world,
                                      GemmLibrary& library) {
  std::vector<GemmShape> shapes;
  ObserveStep(model, options, world, DeviceType::kCuda,
              [&](const Operation& operation, StepResource) {
                for (const KernelCost& kernel : operation.costs) {
                  const Product& p = kernel.product;
                  if (kernel.kind != KernelKind::kProduct || p.k == 0 || p.groups > 1) continue;
                  const std::optional<GemmShape> shape = library.Resolve(ShapeOf(p));
                  if (shape && std::find(shapes.begin(), shapes.end(), *shape) == shapes.end()) {
                    shapes.push_back(*shape);
                  }
                }
              });
  return shapes;
}

std::vector<GemmShape> UseKnown(const GemmAlgorithms& known, const std::vector<GemmShape>& shapes,
                                GemmLibrary& library) {
  std::vector<GemmShape> others;
  for (const GemmShape& shape : shapes) {
    const auto at = known.by_shape.find(shape.Text());
    if (at == known.by_shape.end() || !library.Use(shape, at->second.algorithm)) {
      others.push_back(shape);
    }
  }
  return others;
}

namespace {

// The fastest of the library's candidates: first by a look at each, then by turns of the best two.
// `time`: seconds of a call, of so many; none where the library refuses it.
std::optional<GemmAlgorithms::Choice> FastestOf(
    GemmLibrary& library, const GemmShape& shape,
    const std::function<std::optional<double>(int runs)>& time) {
  const auto runs_of = [](double seconds) {
    return static_cast<int>(std::clamp(std::ceil(kLeast_s / seconds), 1.0, 1.0 * kMostRuns));
  };
  std::vector<GemmAlgorithms::Choice> timed;
  for (const GemmAlgorithm& candidate : library.Candidates(shape, kCandidates)) {
    if (!library.Use(shape, candidate)) continue;
    std::optional<double> seconds = time(1);
    if (!seconds) continue;
    if (const int runs = runs_of(*seconds); runs > 1) seconds = time(runs);
    if (seconds) timed.push_back({candidate, *seconds});
  }
  const auto by_time = [](const auto& x, const auto& y) { return x.seconds < y.seconds; };
  std::stable_sort(timed.begin(), timed.end(), by_time);
  timed.resize(std::min<size_t>(timed.size(), 2));
  for (int turn = 0; turn < kTurns && timed.size() > 1; ++turn) {
    for (GemmAlgorithms::Choice& choice : timed) {
      if (!library.Use(shape, choice.algorithm)) continue;
      const double seconds = time(runs_of(choice.seconds)).value_or(choice.seconds);
      choice.seconds = turn == 0 ? seconds : std::min(choice.seconds, seconds);
    }
  }
  std::stable_sort(timed.begin(), timed.end(), by_time);
  return timed.empty() ? std::nullopt : std::optional(timed.front());
}

}  // namespace

void TimeAlgorithms(Device& device, const std::vector<GemmShape>& shapes, GemmLibrary& library,
                    GemmAlgorithms* to) {
  if (shapes.empty()) return;
  int64_t a = 0, b = 0, c = 0, bias = 0;
  for (const GemmShape& shape : shapes) {
    a = std::max(a, StoredA(shape).Bytes(shape.dtype));
    b = std::max(b, StoredB(shape).Bytes(shape.dtype));
    c = std::max(c, StoredC(shape).Bytes(shape.result));
    bias = std::max(bias, Padded(shape.n) * SizeOf(shape.result));
  }
  auto made = device.CreateStream("products");
  const Values a_values(device, *made, a), b_values(device, *made, b);
  const Values bias_values(device, *made, bias), aux_values(device, *made, c);
  const Buffer results = device.Allocate(c);
  const Buffer workspace = device.Allocate(kGemmWorkspaceBytes);
  const GemmResources resources(&library, workspace.data());
  const std::unique_ptr<Stream> stream = std::move(made);  // Ends before the above.
  stream->Lend(&resources);
  const Operands operands{a_values.bytes(), b_values.bytes(), bias_values.bytes(),
                          results.As(DType::kUInt8, {c}), aux_values.bytes()};
  bool refused = false;  // On CUDA work is launched by who enqueues it.
  const auto multiply = [&](const GemmShape& shape) {
    stream->Enqueue({"time_product",
                     {operands.a, operands.b, operands.bias},
                     {operands.c, operands.aux},
                     {},
                     {.cuda = OnCuda(Multiply, shape, operands, &refused)}});
  };
  // Seconds of a call.
  const auto time = [&](const GemmShape& shape, int runs) {
    const EventPtr begin = stream->RecordTime();
    for (int i = 0; i < runs; ++i) multiply(shape);
    const EventPtr end = stream->RecordTime();
    end->Synchronize();
    return std::max((end->Time() - begin->Time()) / runs, 1e-9);
  };
  for (const double begin = device.Now(); device.Now() - begin < kWarm_s;) {
    (void)time(shapes.front(), kMostRuns / 10);
  }
  for (const GemmShape& shape : shapes) {
    const auto fastest = FastestOf(library, shape, [&](int runs) {
      refused = false;
      const double seconds = time(shape, runs);
      return refused ? std::nullopt : std::optional(seconds);
    });
    if (fastest && library.Use(shape, fastest->algorithm)) to->by_shape[shape.Text()] = *fastest;
  }
}

}  // namespace fsdp
