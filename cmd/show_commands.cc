// Commands that show things: devices of the machine, models of the program, runs.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "cmd/commands.h"
#include "models/shape.h"
#include "trainer/core/json_tree.h"
#include "trainer/core/units.h"
#include "trainer/core/utf8.h"
#include "trainer/engine/step_operations.h"
#include "trainer/nn/model.h"
#include "trainer/observe/provenance.h"
#include "trainer/observe/report/report.h"
#include "trainer/observe/throughput.h"
#include "trainer/ops/cpu/kinds.h"
#include "trainer/runtime/choose_device.h"
#include "trainer/runtime/gpu_libraries.h"

namespace fsdp {
namespace {

void PrintGpu(int number, const Gpu& gpu, const std::string& why_not) {
  std::printf("cuda  %d: %s, capability %d.%d, %s", number, gpu.name.c_str(), gpu.major, gpu.minor,
              HumanBytes(gpu.memory).c_str());
  if (const auto peak = PeakFlops(gpu.name, DType::kBFloat16)) {
    std::printf(", %.4g TFLOP/s in bf16", *peak * 1e-12);
  }
  std::printf(why_not.empty() ? "\n" : "; not usable\n");
}

void PrintDevices() {
  const HostInfo host = DescribeHost();
  std::printf("cpu   %s, %s, %s, kernels %s\n", Counted(host.cores, "core").c_str(),
              host.processor.c_str(), HumanBytes(host.memory).c_str(), KernelsInUse().c_str());
  const Gpus gpus = FindGpus();
  const char* const visible = std::getenv("CUDA_VISIBLE_DEVICES");
  const int count = static_cast<int>(gpus.visible.size());
  for (int i = 0; i < count; ++i) PrintGpu(i, gpus.visible[i], WhyUnusable(gpus, i, visible));
  if (const std::string why = WhyUnusable(gpus, 0, visible); !why.empty()) {
    std::printf("cuda  none: %s\n", why.c_str());
  }
  if (gpus.built) {
    std::printf("      CUDA %s%s\n", CudaVersionText(gpus.runtime).c_str(),
                gpus.driver == 0 ? "" : (", driver for " + CudaVersionText(gpus.driver)).c_str());
  }
  for (const GpuLibrary library : kGpuLibraries) {
    const FoundGpuLibrary found = FindGpuLibrary(library, GpuLibraryPlaces());
    const std::string text =
        found.function ? found.path + ", " + GpuLibraryVersionText(found.version) : found.why_not;
    std::printf("      %s: %s\n", FileOf(library), text.c_str());
  }
  std::printf("sim   simulated: addresses and time, no tensor data\n");
}

constexpr int64_t kLongest = 1024;  // Sequence whose FLOPs are counted.

// "-" where its family has no such field.
std::string FieldOf(const ModelShape& shape, const char* name) {
  const std::optional<FieldValue> value = shape.Find(name);
  const auto* number = value ? std::get_if<int64_t>(&*value) : nullptr;
  return number ? std::to_string(*number) : "-";
}

void PrintModels() {
  std::printf("%-16s %-7s %7s %7s %6s %11s %10s %14s\n", "preset", "family", "layers", "hidden",
              "heads", "vocabulary", "positions", "parameters");
  for (const ModelPreset& preset : ModelPresets()) {
    const ModelShape& shape = preset.shape;
    std::printf("%-16s %-7s %7s %7s %6s %11s %10s %14lld\n", std::string(preset.name).c_str(),
                std::string(FamilyOf(shape)).c_str(), FieldOf(shape, "num_hidden_layers").c_str(),
                FieldOf(shape, "hidden_size").c_str(),
                FieldOf(shape, "num_attention_heads").c_str(), FieldOf(shape, "vocab_size").c_str(),
                FieldOf(shape, "max_position_embeddings").c_str(),
                static_cast<long long>(NumParameters(shape)));
  }
}

void PrintModelsAsJson() {
  JsonTree models = JsonTree::List();
  for (const ModelPreset& preset : ModelPresets()) {
    const std::shared_ptr<Model> model = MakeModel(preset.shape);
    const int64_t length = std::min(kLongest, MaxPositions(preset.shape));
    const bool of_sequences = model->Inputs(length) != model->Inputs(length / 2);
    JsonTree one = JsonTree::Object({{"name", preset.name},
                                     {"family", FamilyOf(preset.shape)},
                                     {"parameters", NumParameters(preset.shape)},
                                     {"seq_len", nullptr},
                                     {"flops_per_sample", FlopsPerSample(*model, length)}});
    if (of_sequences) one["seq_len"] = length;
    models.Append(std::move(one));
  }
  std::printf("%s\n", models.Dump(2).c_str());
}

struct ReportFlags {
  std::vector<std::string> directories;
  std::string out;
};

void RunReport(const ReportFlags& flags) {
  const WrittenReport report = WriteReport(flags.directories, flags.out);
  std::printf("%s: %s, %s\n", PrintableName(report.path).c_str(),
              Counted(report.records, "record").c_str(), HumanBytes(report.bytes).c_str());
  if (report.broken > 0) {
    std::printf("%lld broken %s left out\n", static_cast<long long>(report.broken),
                report.broken == 1 ? "line is" : "lines are");
  }
}

}  // namespace

Command DevicesCommand() {
  Command command{"devices", "List this machine's devices and the libraries they would use"};
  command.run = PrintDevices;
  return command;
}

Command ModelsCommand() {
  const auto json = std::make_shared<bool>(false);
  Command command{"models", "List the presets with their numbers of parameters"};
  command.flags = {{"--json", json.get(),
                    "One JSON list, with the FLOPs of a sample, forward and backward. A sample is "
                    "an image, or 1,024 tokens or as many as the model has positions"}};
  command.run = [json] { *json ? PrintModelsAsJson() : PrintModels(); };
  return command;
}

Command ReportCommand() {
  const auto flags = std::make_shared<ReportFlags>();
  Command command{"report", "Write runs, finished or not, as one HTML page that needs no network"};
  command.flags = {
      {"--checkpoint,RUN_DIR", &flags->directories,
       "Run directories, or those of simulate --out; several are overlaid", kRequiredPath},
      {"--out", &flags->out, "The page. Default: report.html in the first run directory",
       FlagRules{.value = "FILE"}},
  };
  command.run = [flags] { RunReport(*flags); };
  return command;
}

}  // namespace fsdp
