#include "trainer/loop/products.h"

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <vector>

#include "trainer/comm/store.h"
#include "trainer/comm/together.h"
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

// Of the first rank with such a GPU. `how`: they came about, for people.
GemmAlgorithms Choose(Device& device, const std::vector<GemmShape>& shapes,
                      const GemmAlgorithms& about, const ProductsOfRun& run, GemmLibrary& library,
                      const std::function<void(std::string_view)>& say, std::string* how) {
  const std::string file = FileFor(about);
  std::vector<GemmShape> unknown = shapes;
  GemmAlgorithms recorded = about;
  if (run.deterministic && !run.recorded.empty()) {
    recorded = Recorded(run, about);
    unknown = UseKnown(recorded, unknown, library);
    for (const GemmShape& shape : unknown) {
      if (!recorded.by_shape.contains(shape.Text())) continue;
      throw ConfigError("run.deterministic: " + about.library + " does not know " + run.checkpoint +
                        "'s algorithm for " + shape.Text() +
                        ": the bits would not be the same. run.deterministic=false goes on");
    }
  }
  GemmAlgorithms kept = Kept(file, about);
  unknown = UseKnown(kept, unknown, library);
  for (const auto& [shape, choice] : recorded.by_shape) kept.by_shape[shape] = choice;
  *how = std::to_string(shapes.size()) + " shapes as they were timed before";
  if (!unknown.empty()) {
    say("timing " + std::to_string(unknown.size()) + " shapes of matrix products, once for " +
        about.library + " on " + about.gpu);
    const double begin = device.Now();
    try {
      TimeAlgorithms(device, unknown, library, &kept);
      *how = std::to_string(unknown.size()) + " of " + std::to_string(shapes.size()) +
             " shapes timed in " + InMilliseconds(device.Now() - begin);
      CreateDirectories(CacheDirectory("products"));
      WriteWholeFile(file, ToJson(kept) + "\n");
    } catch (const MemoryError& error) {
      *how = "the library's own choice for " + std::to_string(unknown.size()) +
             " shapes: " + error.what();
      for (const GemmShape& shape : unknown) {
        const std::vector<GemmAlgorithm> own = library.Candidates(shape, 1);
        if (!own.empty() && library.Use(shape, own[0])) kept.by_shape[shape.Text()] = {own[0]};
      }
    } catch (const CheckpointError& error) {
      *how += std::string(", not kept: ") + error.what();
    }
  }
  // Of what a file may hold only this run's.
  GemmAlgorithms chosen = about;
  for (const GemmShape& shape : shapes) {
    const auto at = kept.by_shape.find(shape.Text());
    if (at != kept.by_shape.end()) chosen.by_shape[shape.Text()] = at->second;
  }
  return chosen;
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
      Exchange(*job.store, "products/gpus", job.rank, job.world, algorithms.gpu);
  const auto first = std::find(gpus.begin(), gpus.end(), algorithms.gpu) - gpus.begin();
  std::string how;
  const std::vector<std::string> chosen =
      Together(*job.store, "products/algorithms", job.rank, job.world, [&]() -> std::string {
        if (run.deterministic && first != 0) {
          throw ConfigError("run.deterministic: ranks have a " + gpus[0] + " and a " +
                            algorithms.gpu +
                            ", whose products differ in bits: all of one kind, or "
                            "run.deterministic=false");
        }
        if (job.rank != first) return "";
        algorithms = Choose(device, shapes, algorithms, run, *products.library, say, &how);
        return ToJson(algorithms);
      });
  if (job.rank == first) {
    say("products by " + algorithms.library + " (" + found.path + "), " + how);
    return products;
  }
  if (const auto told = ParseGemmAlgorithms(chosen[first])) algorithms = *told;
  for (const GemmShape& shape : UseKnown(algorithms, shapes, *products.library)) {
    throw DeviceError("cuBLASLt does not know rank " + std::to_string(first) + "'s algorithm for " +
                      shape.Text() + ", on the same GPU and in the same version");
  }
  return products;
}

}  // namespace fsdp
