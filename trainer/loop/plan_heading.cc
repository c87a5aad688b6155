#include "trainer/loop/plan_heading.h"

#include <algorithm>
#include <cstdio>

#include "models/shape.h"
#include "trainer/core/units.h"
#include "trainer/core/utf8.h"
#include "trainer/nn/model.h"
#include "trainer/observe/provenance.h"
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
  return text + ": " + (hardware ? PrintableName(hardware->name) : ThisMachine()) + "\n";
}

std::string EstimateToText(const StepEstimate& step) {
  std::string text = "a step in time\n";
  const auto line = [&](const std::string& name, const char* format, double value) {
    char number[32];
    std::snprintf(number, sizeof(number), format, value);
    text += "  " + name + std::string(16 - std::min<size_t>(15, name.size()), ' ') + number + "\n";
  };
  line("step", "%.4g s", step.step_time_s);
  for (const auto& [name, seconds] : step.breakdown) {
    if (seconds > 0) line("  " + name, "%.4g s", seconds);
  }
  line("floor", "%.4g s", step.floor_s);
  line("samples/s", "%.5g", step.samples_per_s);
  line("targets/s", "%.5g", step.targets_per_s);
  line("TFLOP/s", "%.4g of the model, each device", step.tflops_per_device);
  line("  of hardware", "%.4g", step.hardware_tflops_per_device);
  for (const std::string& point : step.calibrated_on) text += "  set from        " + point + "\n";
  return text;
}

}  // namespace fsdp
