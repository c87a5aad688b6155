#include "trainer/bench/step_floor.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>

#include "trainer/bench/product_waves.h"
#include "trainer/core/errors.h"
#include "trainer/engine/step_operations.h"
#include "trainer/engine/step_resource.h"
#include "trainer/loop/attention_choice.h"
#include "trainer/ops/gemm_library.h"

namespace fsdp {
namespace {

// What a kernel before or behind could do on its way: a product that overwrites instead of
// clearing, a residual in an epilogue, a gather that casts.
bool InTheFloor(std::string_view op) {
  constexpr std::array<std::string_view, 6> kBeside = {"accumulate", "add",  "cast",
                                                       "copy",       "fill", "dropout"};
  return std::find(kBeside.begin(), kBeside.end(), op) == kBeside.end();
}

double RateOf(const std::optional<double>& rate, const Hardware& hardware, const char* key,
              const std::string& op) {
  if (rate) return *rate;
  throw ConfigError("bench floor: the hardware file of " + hardware.name + " has no " + key +
                    ", and this step has " + op);
}

double ProductRate(const Hardware& hardware, DType dtype, const std::string& op) {
  switch (dtype) {
    case DType::kBFloat16:
      return RateOf(hardware.bf16_flops, hardware, "bf16_flops", op);
    case DType::kFloat16:
      return RateOf(hardware.fp16_flops, hardware, "fp16_flops", op);
    default:
      return RateOf(hardware.fp32_flops, hardware, "fp32_flops", op);
  }
}

double ProductSeconds(const Product& product, const Hardware& hardware, const std::string& op) {
  const double rate = hardware.product_share * ProductRate(hardware, product.dtype, op);
  return product.flops() /
         (hardware.multiprocessors
              ? ProductRateInWaves(product, rate, *hardware.multiprocessors, hardware.tile_terms)
              : rate);
}

double AttentionRate(const Hardware& hardware, int64_t head_dim, const std::string& op) {
  const bool backward = op.find("backward") != std::string::npos;
  const auto& of_64 =
      backward ? hardware.attention_64_backward_flops : hardware.attention_64_forward_flops;
  if (head_dim <= 64 && of_64) return *of_64;
  return backward
             ? RateOf(hardware.attention_backward_flops, hardware, "attention_backward_flops", op)
             : RateOf(hardware.attention_forward_flops, hardware, "attention_forward_flops", op);
}

// Of one kernel, or of all of an op in chunks, that moves so many bytes.
double SecondsOf(const KernelCost& kernel, double bytes, const Hardware& hardware, int64_t head_dim,
                 const std::string& op) {
  const double moved =
      bytes == 0 ? 0 : bytes / RateOf(hardware.copy_bytes_per_s, hardware, "copy_bytes_per_s", op);
  switch (kernel.kind) {
    case KernelKind::kProduct:
      return std::max(moved, ProductSeconds(kernel.product, hardware, op));
    case KernelKind::kAttention:
      return std::max(moved, kernel.cost.flops / AttentionRate(hardware, head_dim, op));
    case KernelKind::kMemory:
    case KernelKind::kCopy:
      return moved;
    case KernelKind::kLink:
      return 0;
  }
  return 0;
}

// Of what is not the device's own.
double OtherRate(StepResource resource, const Hardware& hardware, const std::string& op) {
  switch (resource) {
    case StepResource::kToHost:
    case StepResource::kToDevice:
      return RateOf(hardware.host_link_bytes_per_s, hardware, "host_link_bytes_per_s", op);
    case StepResource::kHost:
      return RateOf(hardware.host_copy_bytes_per_s, hardware, "host_copy_bytes_per_s", op);
    case StepResource::kDiskRead:
      return RateOf(hardware.disk_read_bytes_per_s, hardware, "disk_read_bytes_per_s", op);
    case StepResource::kDiskWrite:
      return RateOf(hardware.disk_write_bytes_per_s, hardware, "disk_write_bytes_per_s", op);
    case StepResource::kDevice:
      break;
  }
  return 0;
}

bool Updates(std::string_view op) { return op == "adamw" || op == "sgd"; }

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

StepFloor FloorOf(const ResolvedRun& run, const Hardware& hardware) {
  const Recipe& recipe = run.recipe;
  const int64_t head_dim = AttentionDimsOf(recipe, run.shape).head_dim;
  StepFloor floor;
  floor.tokens = static_cast<double>(recipe.train.global_batch_size * recipe.data.seq_len);
  const auto part_of = [&](const std::string& op, StepResource resource) {
    for (FloorPart& part : floor.parts) {
      if (part.op == op && part.resource == resource) return &part;
    }
    floor.parts.push_back({.op = op, .resource = resource});
    return &floor.parts.back();
  };
  bool before_backward = true;
  ObserveStep(
      *run.model, run.options, run.place.world, run.target.device,
      [&](const Operation& operation, StepResource resource) {
        if (resource != StepResource::kDevice) {
          FloorPart& part = *part_of(operation.name, resource);
          const double bytes = BytesThere(operation, resource);
          part.bytes += bytes;
          part.seconds += bytes / OtherRate(resource, hardware, operation.name);
          part.flops += Sum(operation.costs).flops;
          const bool over_link =
              resource == StepResource::kToHost || resource == StepResource::kToDevice;
          if (over_link) part.launches += LaunchesOf(operation.costs);
          return;
        }
        if (operation.kernels.host) return;  // Loads a batch.
        const std::string_view name = operation.name;
        before_backward = before_backward && name.find("backward") == std::string_view::npos;
        for (const KernelCost& kernel : operation.costs) {
          std::string op = operation.name;
          if (kernel.kind == KernelKind::kProduct && operation.costs.size() > 1) {
            op += std::string(", ") + kernel.product.name;
          }
          FloorPart& part = *part_of(op, resource);
          part.in_the_floor = InTheFloor(name);
          const OnGpu gpu = OnGpuByLibrary(kernel, recipe.run.deterministic);
          (kernel.kind == KernelKind::kCopy ? part.launches.copies : part.launches.kernels) +=
              gpu.launches;
          part.extra_bytes += gpu.extra_bytes;
          part.flops += kernel.cost.flops;
          const double bytes = kernel.cost.bytes_read + kernel.cost.bytes_written;
          const double seconds = SecondsOf(kernel, bytes, hardware, head_dim, op);
          part.bytes += bytes;
          part.link_bytes += kernel.cost.link_bytes;
          part.seconds += seconds;
          part.extra_seconds +=
              SecondsOf(kernel, bytes + gpu.extra_bytes, hardware, head_dim, op) - seconds;
          const bool beside = before_backward || Updates(name);
          if (part.in_the_floor && beside) floor.beside_updates += seconds;
        }
      });
  return floor;
}

}  // namespace fsdp
