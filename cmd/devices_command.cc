#include "cmd/devices_command.h"

#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>

#include "trainer/core/units.h"
#include "trainer/observe/peak_flops.h"
#include "trainer/observe/provenance.h"
#include "trainer/runtime/gpu_libraries.h"
#include "trainer/runtime/gpus.h"

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
  std::printf("cpu   %s, %s, %s\n", Counted(host.cores, "core").c_str(), host.processor.c_str(),
              HumanBytes(host.memory).c_str());
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

}  // namespace

void AddDevicesCommand(CLI::App& app) {
  app.add_subcommand("devices", "List this machine's devices and the libraries they would use")
      ->callback(PrintDevices);
}

}  // namespace fsdp
