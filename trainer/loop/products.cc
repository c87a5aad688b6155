#include "trainer/loop/products.h"

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <vector>

#include "trainer/comm/store.h"
#include "trainer/core/cache_directory.h"
#include "trainer/core/errors.h"
#include "trainer/core/whole_file.h"
#include "trainer/ops/cuda/cublaslt.h"

namespace fsdp {
namespace {

std::string FileFor(const GemmAlgorithms& of) {
  std::string name = of.gpu + "-" + of.library + (of.deterministic ? "-deterministic" : "");
  for (char& c : name) {
    if (std::isalnum(static_cast<unsigned char>(c)) == 0 && c != '.' && c != '-') c = '_';
  }
  return CacheDirectory("products") + "/" + name + ".json";
}

// Empty where the file does not hold what this is about.
GemmAlgorithms Kept(const std::string& file, const GemmAlgorithms& about) {
  if (std::filesystem::exists(file)) {
    try {
      const std::optional<GemmAlgorithms> kept = ParseGemmAlgorithms(ReadWholeFile(file));
      if (kept && kept->IsOf(about)) return *kept;
    } catch (const CheckpointError&) {  // What cannot be read is timed again.
    }
  }
  return about;
}

std::string InMilliseconds(double seconds) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.0f ms", 1e3 * seconds);
  return text;
}

GemmAlgorithms Recorded(const ProductsOfRun& run, const GemmAlgorithms& about) {
  const std::optional<GemmAlgorithms> recorded = ParseGemmAlgorithms(run.recorded);
  if (!recorded) throw CheckpointError(run.checkpoint + ": what it says of products is damaged");
  if (!recorded->deterministic) return about;
  if (!recorded->IsOf(about)) {
    throw ConfigError("run.deterministic: " + run.checkpoint + " was computed by " +
                      recorded->library + " on " + recorded->gpu + ", and here are " +
                      about.library + " and " + about.gpu +
                      ": the bits would not be the same. Go on there, or with "
                      "run.deterministic=false");
  }
  return *recorded;
}

}  // namespace

FoundGpuLibrary FindGemmLibrary(DeviceType device) {
  if (device != DeviceType::kCuda || OpenCublasLt == nullptr) return {};
  FoundGpuLibrary found = FindGpuLibrary(GpuLibrary::kCublasLt, GpuLibraryPlaces());
  if (!found.function) {
    throw DeviceError("a GPU's products need cuBLASLt: " + found.why_not);
  }
  return found;
}

RunProducts OpenProducts(const FoundGpuLibrary& found, Device& device, const Job& job, Model& model,
                         const SessionOptions& options, const ProductsOfRun& run,
                         const std::function<void(std::string_view)>& say) {
  RunProducts products;
  if (!found.function) return products;
  products.library = OpenCublasLt(found, run.deterministic);
  GemmAlgorithms& algorithms = products.algorithms;
  algorithms.library = "cuBLASLt " + GpuLibraryVersionText(found.version);
  algorithms.gpu = job.device.name;
  algorithms.deterministic = run.deterministic;
  const std::vector<GemmShape> shapes =
      StepGemmShapes(model, options, job.world, *products.library);

  const std::vector<std::string> gpus =
      Exchange(*job.store, "products", job.rank, job.world, algorithms.gpu);
  const auto first = std::find(gpus.begin(), gpus.end(), algorithms.gpu) - gpus.begin();
  const std::string key = "products/of_rank_" + std::to_string(first);
  if (job.rank != first) {
    algorithms = ParseGemmAlgorithms(job.store->Get(key)).value();
    UseKnown(algorithms, shapes, *products.library);
    return products;
  }
  const std::string file = FileFor(algorithms);
  std::vector<GemmShape> unknown = shapes;
  if (run.deterministic && !run.recorded.empty()) {
    algorithms = Recorded(run, algorithms);
    unknown = UseKnown(algorithms, unknown, *products.library);
  }
  GemmAlgorithms kept = Kept(file, algorithms);
  kept.by_shape.insert(algorithms.by_shape.begin(), algorithms.by_shape.end());
  unknown = UseKnown(kept, unknown, *products.library);
  std::string how = std::to_string(shapes.size()) + " shapes as they were timed before";
  if (!unknown.empty()) {
    say("timing " + std::to_string(unknown.size()) + " shapes of matrix products, once for " +
        algorithms.library + " on " + algorithms.gpu);
    const double begin = device.Now();
    try {
      TimeAlgorithms(device, unknown, *products.library, &kept);
      how = std::to_string(unknown.size()) + " of " + std::to_string(shapes.size()) +
            " shapes timed in " + InMilliseconds(device.Now() - begin);
      CreateDirectories(CacheDirectory("products"));
      WriteWholeFile(file, ToJson(kept) + "\n");
    } catch (const MemoryError& error) {
      how = "the library's own choice for " + std::to_string(unknown.size()) +
            " shapes: " + error.what();
    } catch (const CheckpointError& error) {
      how += std::string(", not kept: ") + error.what();
    }
  }
  // Of what a file may hold only this run's.
  for (const GemmShape& shape : shapes) {
    const auto at = kept.by_shape.find(shape.Text());
    if (at != kept.by_shape.end()) algorithms.by_shape[shape.Text()] = at->second;
  }
  job.store->Set(key, ToJson(algorithms));
  say("products by " + algorithms.library + " (" + found.path + "), " + how);
  return products;
}

}  // namespace fsdp
