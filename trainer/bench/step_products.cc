#include "trainer/bench/step_products.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "trainer/core/check.h"
#include "trainer/engine/step_operations.h"
#include "trainer/loop/resolve.h"
#include "trainer/nn/model.h"
#include "trainer/ops/grouped_linear.h"
#include "trainer/ops/linear.h"
#include "trainer/runtime/choose_device.h"
#include "trainer/runtime/operation.h"

namespace fsdp {
namespace {

void Add(std::vector<StepProduct>& products, StepProduct product) {
  for (StepProduct& p : products) {
    if (p.name == product.name && p.m == product.m && p.n == product.n && p.k == product.k &&
        p.dtype == product.dtype && p.result == product.result && p.groups == product.groups) {
      p.count += product.count;
      return;
    }
  }
  if (product.count > 0) products.push_back(std::move(product));
}

std::string Times(int64_t in, int64_t out) {
  return std::to_string(in) + " to " + std::to_string(out);
}

// Linear layers by their width, where weights lie as `layout` says.
std::string GroupOf(const std::string& op, const Product& p, WeightLayout layout) {
  if (op.starts_with("head_loss")) return "head";
  if (op.starts_with("lora")) return "lora";
  const std::string name = p.name;
  if (p.groups > 1) {
    return "experts " + (p.a_transposed || !p.b_transposed ? Times(p.n, p.a_transposed ? p.m : p.k)
                                                           : Times(p.k, p.n));
  }
  if (name == "forward") return "linear " + Times(p.k, p.n);
  if (name == "dx") return "linear " + Times(p.n, p.k);
  return "linear " + (layout == WeightLayout::kInOut ? Times(p.m, p.n) : Times(p.n, p.m));
}

// The bounds of a product's groups, which have the same rows each, to one. Empty without groups.
View EvenLoads(BenchTensors& tensors, const StepProduct& p) {
  if (p.groups == 1) return {};
  const int64_t rows = p.a_transposed ? p.k : p.m;
  return tensors.Int({p.groups + 1},
                     [&](int64_t i) { return static_cast<int32_t>(i * rows / p.groups); });
}

}  // namespace

StepWork StepWorkOf(const ResolvedRun& run) {
  Model& model = *run.model;
  StepWork work;
  std::vector<std::string> groups;  // In the order of the forward pass.
  std::vector<std::vector<StepProduct>> products;
  const auto see = [&](const Operation& operation, StepResource) {
    for (const KernelCost& kernel : operation.costs) {
      if (kernel.kind == KernelKind::kAttention) work.attention_flops += kernel.model_flops;
      if (kernel.kind != KernelKind::kProduct) continue;
      const Product& p = kernel.product;
      const std::string group = GroupOf(operation.name, p, model.linear_layout());
      const auto at = std::find(groups.begin(), groups.end(), group) - groups.begin();
      if (at == static_cast<ptrdiff_t>(groups.size())) {
        groups.push_back(group);
        products.emplace_back();
      }
      // The head's logits are fp32 on a CPU (ops/head_loss.h).
      const bool logits = group == "head" && !p.a_transposed && p.b_transposed;
      const bool fp32 = logits && run.target.device == DeviceType::kCpu;
      Add(products[at], {group + ", " + p.name, p.m, p.n, p.k, p.a_transposed, p.b_transposed,
                         p.adds, p.count, p.dtype, fp32 ? DType::kFloat32 : p.result, p.groups});
    }
  };
  ObserveStep(model, run.options, run.place.world, run.target.device, see);
  for (const std::vector<StepProduct>& group : products) {
    work.products.insert(work.products.end(), group.begin(), group.end());
  }
  return work;
}

StepProductsBench::StepProductsBench(StepWork work, int threads, DeviceType device, int gpu,
                                     bool own_kernels)
    : work_(std::move(work)),
      device_(CreateDevice(device, {.spin = true, .gpu = gpu})),
      tensors_(*device_, DType::kBFloat16),
      stream_(device_->CreateStream("bench", threads)) {
  if (!own_kernels) {
    std::vector<GemmShape> shapes;
    for (const StepProduct& p : work_.products) {
      if (p.groups > 1) continue;
      shapes.push_back({.m = p.m,
                        .n = p.n,
                        .k = p.k,
                        .a_transposed = p.a_transposed,
                        .b_transposed = p.b_transposed,
                        .dtype = p.dtype,
                        .result = p.result});
    }
    library_.emplace(*device_, *stream_, shapes);
  }
  int64_t a = 0, b = 0, c = 0;
  for (const StepProduct& p : work_.products) {
    const int64_t half = SizeOf(DType::kBFloat16), halves = SizeOf(p.dtype) / half;
    a = std::max(a, p.m * p.k * halves);
    const int64_t of_b = p.a_transposed ? 1 : p.groups, of_c = p.a_transposed ? p.groups : 1;
    b = std::max(b, of_b * p.k * p.n * halves);
    c = std::max(c, of_c * p.m * p.n * std::max(halves, SizeOf(p.result) / half));
    offsets_.push_back(EvenLoads(tensors_, p));
  }
  // As fp32, two of them are a number near the second.
  a_ = tensors_.Values({a});
  b_ = tensors_.Values({b});
  c_ = tensors_.Values({c});
  d_ = tensors_.Values({c});
}

View StepProductsBench::Part(const View& operand, DType dtype, const Shape& shape) {
  const View part(operand.data, dtype, shape);
  FSDP_CHECK_LE(part.bytes(), operand.bytes());
  return part;
}

void StepProductsBench::MultiplyGroups(const StepProduct& p, const ConstView& offsets) {
  const int64_t out = p.a_transposed ? p.m : p.b_transposed ? p.n : p.k;
  const int64_t in = p.b_transposed ? p.k : p.n;
  const Shape weights{p.groups * out, in};
  if (p.a_transposed) {
    GroupedDw(*stream_, Part(a_, p.dtype, {p.k, out}), {}, Part(b_, p.dtype, {p.k, in}), {},
              offsets, Part(c_, p.result, weights));
  } else if (p.b_transposed) {
    GroupedForward(*stream_, Part(a_, p.result, {p.m, in}), {}, Part(b_, p.dtype, weights), offsets,
                   Part(c_, p.result, {p.m, out}), {.add = p.adds});
  } else {
    GroupedDx(*stream_, Part(a_, p.result, {p.m, out}), {}, Part(b_, p.dtype, weights), offsets,
              Part(c_, p.result, {p.m, in}), {.add = p.adds});
  }
}

void StepProductsBench::Multiply(const StepProduct& p) {
  const View c = Part(c_, p.result, {p.m, p.n});
  if (p.a_transposed) {  // The gradient of a weight.
    FSDP_CHECK(p.adds && !p.b_transposed) << p.name;
    const View x = Part(a_, p.dtype, {p.k, p.m}), dy = Part(b_, p.dtype, {p.k, p.n});
    const View w = Part(d_, p.dtype, {p.m, p.n});
    LinearBackward(*stream_, x, w, WeightLayout::kInOut, dy, std::nullopt, c, std::nullopt);
    return;
  }
  const View x = Part(a_, p.dtype, {p.m, p.k});
  const View w = Part(b_, p.dtype, p.b_transposed ? Shape{p.n, p.k} : Shape{p.k, p.n});
  const auto layout = p.b_transposed ? WeightLayout::kOutIn : WeightLayout::kInOut;
  if (p.result != p.dtype && p.result != DType::kFloat32) {  // The way back from fp32 logits.
    const auto of_dx = p.b_transposed ? WeightLayout::kInOut : WeightLayout::kOutIn;
    const View input = Part(d_, p.result, {p.m, p.n});
    LinearBackward(*stream_, input, w, of_dx, x, c, std::nullopt, std::nullopt);
  } else if (p.adds) {
    const View residual = Part(d_, p.result, {p.m, p.n});
    LinearResidualForward(*stream_, x, w, layout, std::nullopt, residual, c);
  } else {
    LinearForward(*stream_, x, w, layout, std::nullopt, c);
  }
}

std::vector<double> StepProductsBench::Run() {
  std::vector<double> seconds;
  for (size_t i = 0; i < work_.products.size(); ++i) seconds.push_back(Run(i));
  return seconds;
}

double StepProductsBench::Run(size_t product) {
  FSDP_CHECK_LT(product, work_.products.size());
  const StepProduct& p = work_.products[product];
  const EventPtr begin = stream_->RecordTime();
  for (int64_t i = 0; i < p.count; ++i) {
    p.groups > 1 ? MultiplyGroups(p, offsets_[product]) : Multiply(p);
  }
  const EventPtr end = stream_->RecordTime();
  end->Synchronize();
  return end->Time() - begin->Time();
}

double StepProductsBench::StepSeconds(const std::vector<double>& seconds) const {
  const double products = std::accumulate(seconds.begin(), seconds.end(), 0.0);
  double flops = 0;
  for (const StepProduct& p : work_.products) flops += p.flops();
  return products * (1 + work_.attention_flops / flops);
}

}  // namespace fsdp
