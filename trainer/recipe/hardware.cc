#include "trainer/recipe/hardware.h"

#include <cstring>
#include <vector>

#include "trainer/core/errors.h"
#include "trainer/recipe/containers.h"
#include "trainer/recipe/mistakes.h"

namespace fsdp {
namespace {

using recipe::Integer;
using recipe::Key;
using recipe::Nullable;

constexpr int64_t kMostBytes = int64_t{1} << 60;

const recipe::Type<Hardware>& HardwareType() {
  using H = Hardware;
  static const recipe::Type<H> type = recipe::Map<H>({
      Key("name", &H::name, recipe::Text(), "As the driver calls it.").Required(),
      Key("device", &H::device, recipe::OneOf<H::Device>({"cpu", "cuda"}, recipe::Later()),
          "What computes."),
      Key("memory", &H::memory, Nullable(Integer(1, kMostBytes)),
          "Bytes that a program gets of one device. null: unknown."),
      Key("outside", &H::outside, Nullable(Integer(0, kMostBytes)),
          "Bytes of those that contexts and libraries of a rank take. null: not measured."),
      Key("host_memory", &H::host_memory, Nullable(Integer(1, kMostBytes)),
          "Bytes of a host, for all of its ranks. null: unknown."),
  });
  return type;
}

}  // namespace

Hardware ReadHardware(const std::string& path) {
  std::string text;
  if (const int error = recipe::ReadTextFile(path, text); error != 0) {
    throw ConfigError(path + ": " + std::strerror(error));
  }
  recipe::RecipeReader reader({"name", "device", "memory", "outside", "host_memory"});
  const auto tree = recipe::ParseYaml(text, 0, /*place_lines=*/true, reader.mistakes());
  Hardware hardware;
  if (tree) HardwareType().Read(*tree, "", reader, hardware);
  if (reader.mistakes().empty() && hardware.name.empty()) {
    reader.Mistake({0, 1, 1}, "name", "missing: what the driver calls the device");
  }
  if (!reader.mistakes().empty()) recipe::ThrowMistakes(reader.mistakes(), {path});
  return hardware;
}

}  // namespace fsdp
