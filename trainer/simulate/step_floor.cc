#include "trainer/simulate/step_floor.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <vector>

#include "trainer/core/batch.h"
#include "trainer/engine/step_operations.h"
#include "trainer/engine/step_resource.h"
#include "trainer/nn/model.h"
#include "trainer/ops/gemm_library.h"
#include "trainer/recipe/recipe.h"
#include "trainer/runtime/operation.h"
#include "trainer/simulate/price_list.h"

namespace fsdp {
namespace {

// False for work that a kernel before or behind could do on its way: a product that overwrites
// instead of clearing, a residual in an epilogue, a gather that casts.
bool InTheFloor(std::string_view op) {
  constexpr std::array<std::string_view, 8> kBeside = {
      "accumulate", "add", "cast", "copy", "fill", "dropout", "pack_pieces", "spread_pieces"};
  return std::find(kBeside.begin(), kBeside.end(), op) == kBeside.end();
}

// Bytes of a step that a CPU's kernel moves beside those that it states. No cache holds the logits
// of a chunk of the head's loss (ops/head_loss.h): each is written in fp32, read and written again
// as its gradient, and read by two products, each of which reads w or adds to dw once a chunk.
double OnCpu(const Operation& operation, const KernelCost& kernel) {
  if (!std::string_view(operation.name).starts_with("head_loss")) return 0;
  const auto logits = [](const KernelCost& k) {
    const Product& p = k.product;
    if (p.name != std::string_view("logits")) return 0.0;
    return static_cast<double>(p.m * p.count) * static_cast<double>(p.n);
  };
  const double fp32 = SizeOf(DType::kFloat32);
  const double size = SizeOf(operation.costs.front().product.dtype);
  if (kernel.kind == KernelKind::kProduct) {
    return kernel.gpu.extra_bytes + logits(kernel) * (fp32 - size);
  }
  if (kernel.gpu.extra_bytes == 0) return 0;
  double all = 0;
  for (const KernelCost& k : operation.costs) all += logits(k);
  return all * (fp32 + size);
}

bool Updates(std::string_view op) { return op == "adamw" || op == "adamw_coded" || op == "sgd"; }

}  // namespace

double StepFloor::SecondsOf(StepResource resource) const {
  double seconds = 0;
  for (const FloorPart& part : parts) {
    if (part.in_the_floor && part.resource == resource) seconds += part.seconds;
  }
  return seconds;
}

double StepFloor::Seconds() const {
  const double waited = SecondsOf(StepResource::kHost) - beside_updates;
  double longest = SecondsOf(StepResource::kDevice) + std::max(0.0, waited);
  for (const StepResource other : {StepResource::kToHost, StepResource::kToDevice,
                                   StepResource::kDiskRead, StepResource::kDiskWrite}) {
    longest = std::max(longest, SecondsOf(other));
  }
  return longest;
}

Launches StepFloor::AllLaunches() const {
  Launches launches;
  for (const FloorPart& part : parts) launches += part.launches;
  return launches;
}

double StepFloor::NeedlessBytes() const {
  double bytes = 0;
  for (const FloorPart& part : parts) {
    bytes += part.extra_bytes + (part.in_the_floor ? 0 : part.bytes);
  }
  return bytes;
}

double StepFloor::NeedlessSeconds() const {
  double seconds = 0;
  for (const FloorPart& part : parts) {
    seconds += part.extra_seconds + (part.in_the_floor ? 0 : part.seconds);
  }
  return seconds;
}

StepFloor FloorOf(const ResolvedRun& run, const Hardware& hardware, const SeeOperation& seen) {
  const Recipe& recipe = *run.recipe;
  const PriceList prices = PricesOf(run, hardware);
  const bool on_cpu = hardware.device == Hardware::Device::kCpu;
  StepFloor floor;
  const BatchSpec inputs = run.model->Inputs(run.options.executor.sample_length);
  floor.tokens = static_cast<double>(recipe.train.global_batch_size * inputs.Counted());
  const auto part_of = [&](const std::string& op, StepResource resource) {
    for (FloorPart& part : floor.parts) {
      if (part.op == op && part.resource == resource) return &part;
    }
    floor.parts.push_back({.op = op, .resource = resource});
    return &floor.parts.back();
  };
  bool before_backward = true;
  ObserveStreams(
      *run.model, run.options, run.place.world, run.target.device,
      [&](const Operation& operation, const Stream& stream) {
        if (seen) seen(operation, stream);
        const StepResource resource = ResourceOf(operation, stream.name());
        if (resource != StepResource::kDevice) {
          FloorPart& part = *part_of(operation.name, resource);
          const double bytes = BytesThere(operation, resource);
          part.bytes += bytes;
          part.seconds += bytes / prices.RateOf(resource, operation.name);
          part.flops += Sum(operation.costs).flops;
          const bool over_link =
              resource == StepResource::kToHost || resource == StepResource::kToDevice;
          if (over_link) part.launches += LaunchesOf(operation.costs);
          return;
        }
        if (operation.kernels.host) return;  // Loads a batch.
        const std::string_view name = operation.name;
        before_backward = before_backward && name.find("backward") == std::string_view::npos;
        const std::vector<KernelCost>& kernels = operation.costs;
        std::vector<double> bytes, more;  // More: with what a GPU's kernels move beside those.
        for (const KernelCost& kernel : kernels) {
          bytes.push_back(kernel.cost.bytes_read + kernel.cost.bytes_written +
                          (on_cpu ? OnCpu(operation, kernel) : 0));
          more.push_back(
              bytes.back() +
              (on_cpu ? 0 : OnGpuByLibrary(kernel, recipe.run.deterministic).extra_bytes));
        }
        const std::vector<double> seconds = prices.FloorSeconds(kernels, bytes, operation.name);
        const std::vector<double> with_more = prices.FloorSeconds(kernels, more, operation.name);
        for (size_t i = 0; i < kernels.size(); ++i) {
          const KernelCost& kernel = kernels[i];
          std::string op = operation.name;
          if (kernel.kind == KernelKind::kProduct && operation.costs.size() > 1) {
            op += std::string(", ") + kernel.product.name;
          }
          FloorPart& part = *part_of(op, resource);
          part.in_the_floor = InTheFloor(name);
          if (!on_cpu) {
            (kernel.kind == KernelKind::kCopy ? part.launches.copies : part.launches.kernels) +=
                OnGpuByLibrary(kernel, recipe.run.deterministic).launches;
          }
          part.extra_bytes += more[i] - bytes[i];
          part.flops += kernel.cost.flops;
          part.bytes += bytes[i];
          part.link_bytes += kernel.cost.link_bytes;
          part.seconds += seconds[i];
          part.extra_seconds += with_more[i] - seconds[i];
          const bool beside = before_backward || Updates(name);
          if (part.in_the_floor && beside) floor.beside_updates += seconds[i];
        }
      });
  return floor;
}

}  // namespace fsdp
