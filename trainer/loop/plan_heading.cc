#include "trainer/loop/plan_heading.h"

#include <algorithm>

#include "models/shape.h"
#include "trainer/core/units.h"
#include "trainer/core/utf8.h"
#include "trainer/nn/model.h"
#include "trainer/observe/provenance.h"
#include "trainer/ops/cpu/kinds.h"
#include "trainer/recipe/recipe.h"

namespace fsdp {
namespace {

// Counts the parameters of the model as it is trained, with its adapters.
std::string WhatTrains(const Model& model) {
  int64_t all = 0, trained = 0;
  for (const ModelSegment& segment : model.segments()) {
    for (const Parameter* p : segment.parameters) {
      all += p->shape().NumElements();
      if (p->trainable()) trained += p->shape().NumElements();
    }
  }
  if (trained == all) return Grouped(all) + " parameters";
  return "trains " + Grouped(trained) + " of " + Grouped(all) + " parameters";
}

std::string ThisMachine() {
  const HostInfo host = DescribeHost();
  return "this machine, " + Printable(host.name) + ": " + Printable(host.processor) + ", " +
         Counted(host.cores, "core") + ", " + HumanBytes(host.memory);
}

}  // namespace

std::string PlanHeading(const Recipe& recipe, const ModelShape& shape, const Model& model,
                        int world, int local_world, DeviceType device,
                        const std::optional<Hardware>& hardware) {
  const int64_t samples = recipe.train.global_batch_size, length = recipe.data.seq_len;
  std::string text = std::string(FamilyOf(shape)) + ", ";
  const std::optional<DecoderShape> decoder = shape.family().Decoder(shape);
  if (decoder) {
    text +=
        Counted(decoder->num_layers, "layer") + " x " + std::to_string(decoder->hidden_size) + ", ";
  }
  text += WhatTrains(model) + ", in steps of " + Grouped(samples);
  text += decoder        ? " x " + Grouped(length) + " = " + Grouped(samples * length) + " tokens\n"
          : samples == 1 ? " sample\n"
                         : " samples\n";
  text += "on " + std::string(Name(device)) + ", " + Counted(world, "rank");
  if (local_world < world) text += ", " + std::to_string(local_world) + " to a host";
  return text + ": " + (hardware ? PrintableName(hardware->name) : ThisMachine()) +
         (hardware && hardware->kernels ? ", kernels " + *hardware->kernels : "") + "\n";
}

std::string NoteOnKernels(const Hardware& hardware, DType param_dtype) {
  const std::string& here = ThisIsa().name;
  const bool bf16 = param_dtype == DType::kBFloat16;
  if (!hardware.kernels || SameRates(*hardware.kernels, here, bf16)) return "";
  return "note: the rates of " + PrintableName(hardware.name) + " are those of " +
         *hardware.kernels + " kernels, and this process has " + here + ": a step in " +
         std::string(Name(param_dtype)) + " takes another time here\n";
}

std::string EstimateToText(const StepEstimate& step, const RunPlan& plan) {
  std::string text = "a step in time\n";
  const auto line = [&](const std::string& name, const std::string& value) {
    text += "  " + name + std::string(16 - std::min<size_t>(15, name.size()), ' ') + value + "\n";
  };
  line("step", HumanDuration(step.step_time_s));
  for (const auto& [name, seconds] : step.breakdown) {
    if (seconds > 0) line("  " + name, HumanDuration(seconds));
  }
  line("floor", HumanDuration(step.floor_s));
  line("samples/s", HumanRate(step.samples_per_s));
  line("tokens/s", HumanRate(step.counted_per_s));
  line("TFLOP/s", HumanRate(step.tflops_per_device) + " of the model, each device");
  line("  of hardware", HumanRate(step.hardware_tflops_per_device));
  if (step.mfu) line("MFU", HumanRate(100 * *step.mfu) + " %");
  constexpr double kDay = 86400;
  line("a day", step.counted_per_day ? HumanRate(*step.counted_per_day) + " tokens"
                                     : HumanRate(step.samples_per_s * kDay) + " samples");
  if (!step.run_s) {
    line("the run", "as long as train.epochs takes, which its data decides");
  } else {
    std::string run = Counted(step.steps, "step") + ", " + HumanDuration(*step.run_s);
    if (step.counted_per_day) {
      run += ", " + HumanRate(*step.counted_per_day / kDay * *step.run_s) + " tokens";
    }
    line("the run", run);
    line(plan.on_host() ? "device-hours" : "GPU-hours", HumanRate(*step.device_hours));
  }
  for (const std::string& point : step.calibrated_on) line("set from", point);
  return text;
}

std::string EstimateTerms() {
  return R"(with --hardware, a step in time:
  step            from the end of one step to the end of the next
  data            the device waits for a batch
  forward         the device computes forward
  recompute       the device computes again what forward did not keep
  backward        the device computes backward
  optimizer       the norm and the update
  communication   the device waits for collectives and computes nothing
  offload         the device waits for transfers to and from the host
  host            the device waits for the host to enqueue
  floor           products and bytes at the machine's rates: no step is shorter
  samples/s       samples a second, of all ranks
  tokens/s        tokens that the model reads a second, of all ranks; without a text, targets
  TFLOP/s         products of forward and backward, per device
  of hardware     all products, recomputed and masked ones included
  MFU             TFLOP/s of the model, as a share of the data sheet's for param_dtype
  a day           tokens, or samples, in 24 hours of steps
  the run         train.steps of these steps, without evaluations and checkpoints
  GPU-hours       of all GPUs, for the run
  device-hours    of all ranks, for the run, where they compute on CPUs
  set from        a published number that the machine's file was set from
)";
}

}  // namespace fsdp
