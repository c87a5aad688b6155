#include "trainer/loop/gemm_choice.h"

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "trainer/core/atomic_file.h"
#include "trainer/core/cache_directory.h"
#include "trainer/core/errors.h"
#include "trainer/engine/gemm_algorithms.h"
#include "trainer/ops/cuda/cublaslt.h"
#include "trainer/recipe/recipe.h"

namespace fsdp {
namespace {

std::string FileFor(const GemmAlgorithms& of) {
  std::string name = of.gpu + "-" + of.library + (of.deterministic ? "-deterministic" : "");
  if (of.multiprocessors > 0) name += "-" + std::to_string(of.multiprocessors);
  for (char& c : name) {
    if (std::isalnum(static_cast<unsigned char>(c)) == 0 && c != '.' && c != '-') c = '_';
  }
  return CacheDirectory("products") + "/" + name + ".json";
}

// Empty where the file holds no algorithms for `about`.
GemmAlgorithms Kept(const std::string& file, const GemmAlgorithms& about) {
  if (std::filesystem::exists(file)) {
    try {
      const std::optional<GemmAlgorithms> kept = ParseGemmAlgorithms(ReadWholeFile(file));
      if (kept && kept->IsOf(about)) return *kept;
    } catch (const CheckpointError&) {  // A file that cannot be read is timed again.
    }
  }
  return about;
}

std::string InMilliseconds(double seconds) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.0f ms", 1e3 * seconds);
  return text;
}

// The algorithms that `c.held` has for `about`; none without it.
GemmAlgorithms Held(const Choosing& c, const GemmAlgorithms& about) {
  if (c.held.empty()) return about;
  const std::optional<GemmAlgorithms> recorded = ParseGemmAlgorithms(c.held);
  if (!recorded) throw CheckpointError(c.checkpoint + ": what it says of products is damaged");
  // Another number of multiprocessors comes with other ranks, whose sums differ anyway.
  if (!recorded->deterministic || recorded->multiprocessors != about.multiprocessors) return about;
  if (!recorded->IsOf(about)) {
    throw ConfigError("run.deterministic: " + c.checkpoint + " was computed by " +
                      recorded->library + " on " + recorded->gpu + ", and here are " +
                      about.library + " and " + about.gpu +
                      ": the bits would not be the same. Go on there, or with "
                      "run.deterministic=false");
  }
  return *recorded;
}

// Finds an algorithm for each shape: held, kept from an earlier run, or timed. c.how says which.
GemmAlgorithms FindAlgorithms(Choosing& c, const std::vector<GemmShape>& shapes,
                              const GemmAlgorithms& about) {
  const std::string file = FileFor(about);
  GemmLibrary& library = *c.products;
  const GemmAlgorithms held = Held(c, about);
  std::vector<GemmShape> unknown = shapes;
  if (!c.held.empty()) {
    unknown = UseKnown(held, unknown, library);
    for (const GemmShape& shape : unknown) {
      if (!held.by_shape.contains(shape.Text())) continue;
      throw ConfigError("run.deterministic: " + about.library + " does not know " + c.checkpoint +
                        "'s algorithm for " + shape.Text() +
                        ": the bits would not be the same. run.deterministic=false goes on");
    }
  }
  GemmAlgorithms kept = Kept(file, about);
  unknown = UseKnown(kept, unknown, library);
  for (const auto& [shape, choice] : held.by_shape) kept.by_shape[shape] = choice;
  c.how = std::to_string(shapes.size()) + " shapes as they were timed before";
  if (!unknown.empty()) {
    c.say("timing " + std::to_string(unknown.size()) + " shapes of matrix products, once for " +
          about.library + " on " + about.gpu);
    const double begin = c.device->Now();
    try {
      TimeAlgorithms(*c.device, unknown, library, &kept);
      c.how = std::to_string(unknown.size()) + " of " + std::to_string(shapes.size()) +
              " shapes timed in " + InMilliseconds(c.device->Now() - begin);
      CreateDirectories(CacheDirectory("products"));
      WriteAtomicFile(file, ToJson(kept) + "\n");
    } catch (const MemoryError& error) {
      c.how = "the library's own choice for " + std::to_string(unknown.size()) +
              " shapes: " + error.what();
      for (const GemmShape& shape : unknown) {
        const std::vector<GemmAlgorithm> own = library.Candidates(shape, 1);
        if (!own.empty() && library.Use(shape, own[0])) kept.by_shape[shape.Text()] = {own[0]};
      }
    } catch (const CheckpointError& error) {
      c.how += std::string(", not kept: ") + error.what();
    }
  }
  // The file may hold shapes of other runs.
  GemmAlgorithms chosen = about;
  for (const GemmShape& shape : shapes) {
    const auto at = kept.by_shape.find(shape.Text());
    if (at != kept.by_shape.end()) chosen.by_shape[shape.Text()] = at->second;
  }
  return chosen;
}

class Library final : public Choice {
 public:
  ChoiceId id() const override { return ChoiceId::kLibrary; }
  bool meets() const override { return false; }

  std::string Ask(Choosing& c) const override {
    if (c.run.place.device) c.run.library = FindGemmLibrary(c.run.place.device->type);
    return GpuLibraryVersionText(c.run.library.version);
  }

  std::string Agree(const Choosing& c) const override { return c.answers[c.mine]; }

  Chosen Record(const std::string& version, Choosing& c) const override {
    return {.id = id(),
            .value = c.run.library.function ? "cuBLASLt " + version : "",
            .labels = {{"cuBLASLt", version}}};
  }
};

class Algorithms final : public Choice {
 public:
  ChoiceId id() const override { return ChoiceId::kAlgorithms; }
  When when() const override { return When::kOnTheDevice; }
  bool meets() const override { return true; }
  bool Concerns(const Choosing& c) const override { return c.products != nullptr; }

  std::string Hold(const Choosing& c) const override {
    return c.run.recipe->run.deterministic ? c.algorithms : "";
  }

  // The kind of GPU.
  std::string Tell(const Choosing& c) const override { return c.run.place.device->name; }

  // The first rank with such a GPU answers; the others' answers are empty.
  std::string Ask(Choosing& c) const override {
    const size_t first = First(c);
    if (c.run.recipe->run.deterministic && first != 0) {
      throw ConfigError("run.deterministic: ranks have a " + c.told[0] + " and a " +
                        c.told[c.mine] +
                        ", whose products differ in bits: all of one kind, or "
                        "run.deterministic=false");
    }
    if (c.mine != first) return "";
    return ToJson(FindAlgorithms(c, Shapes(c), About(c)));
  }

  std::string Agree(const Choosing& c) const override { return c.answers[First(c)]; }

  Chosen Record(const std::string& algorithms, Choosing& c) const override {
    Chosen chosen{.id = id(), .value = algorithms};
    if (!c.how.empty()) {
      chosen.line = "products by " + About(c).library + " (" + c.run.library.path + "), " + c.how;
      c.say(chosen.line);
      return chosen;
    }
    const GemmAlgorithms told = ParseGemmAlgorithms(algorithms).value_or(About(c));
    for (const GemmShape& shape : UseKnown(told, Shapes(c), *c.products)) {
      throw DeviceError("cuBLASLt does not know rank " + std::to_string(First(c)) +
                        "'s algorithm for " + shape.Text() +
                        ", on the same GPU and in the same version");
    }
    return chosen;
  }

 private:
  static size_t First(const Choosing& c) {
    const std::string& mine = c.told[c.mine];
    return static_cast<size_t>(std::find(c.told.begin(), c.told.end(), mine) - c.told.begin());
  }

  static GemmAlgorithms About(const Choosing& c) {
    return {.library = c.run.Of(ChoiceId::kLibrary).value,
            .gpu = c.run.place.device->name,
            .deterministic = c.run.recipe->run.deterministic,
            .multiprocessors = c.run.multiprocessors.products(),
            .by_shape = {}};
  }

  static std::vector<GemmShape> Shapes(const Choosing& c) {
    return StepGemmShapes(*c.run.model, c.run.options, c.run.place.world, *c.products);
  }
};

}  // namespace

FoundGpuLibrary FindGemmLibrary(DeviceType device) {
  if (device != DeviceType::kCuda || OpenCublasLt == nullptr) return {};
  FoundGpuLibrary found = FindGpuLibrary(GpuLibrary::kCublasLt, GpuLibraryPlaces());
  if (!found.function) {
    throw DeviceError("a GPU's products need cuBLASLt: " + found.why_not);
  }
  return found;
}

std::unique_ptr<GemmLibrary> OpenGemmLibrary(const ResolvedRun& run) {
  if (!run.library.function) return nullptr;
  return OpenCublasLt(run.library, run.recipe->run.deterministic, run.multiprocessors.products());
}

const Choice& LibraryChoice() {
  static const Library choice;
  return choice;
}

const Choice& AlgorithmsChoice() {
  static const Algorithms choice;
  return choice;
}

}  // namespace fsdp
