#include "trainer/recipe/hardware.h"

#include <vector>

#include "trainer/core/errors.h"
#include "trainer/recipe/containers.h"
#include "trainer/recipe/mistakes.h"

namespace fsdp {
namespace {

using recipe::Integer;
using recipe::Key;
using recipe::Nullable;
using recipe::Number;

constexpr int64_t kMostBytes = int64_t{1} << 60;

auto Rate(const char* name, std::optional<double> Hardware::*field, const char* about) {
  return Key(name, field, Nullable(Number({.above = 0})), about);
}

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
      Rate("bf16_flops", &H::bf16_flops, "FLOP/s of a large product of bf16."),
      Rate("fp16_flops", &H::fp16_flops, "The same of fp16."),
      Rate("fp32_flops", &H::fp32_flops, "The same of fp32."),
      Key("multiprocessors", &H::multiprocessors, Nullable(Integer(1, 4096)),
          "How many tiles of a product are worked on at once. null: every shape has the rate "
          "above."),
      Rate("attention_forward_flops", &H::attention_forward_flops,
           "FLOP/s of causal attention in bf16, below the diagonal."),
      Rate("attention_backward_flops", &H::attention_backward_flops, "The same on the way back."),
      Rate("attention_64_forward_flops", &H::attention_64_forward_flops,
           "The same of heads of up to 64, forward. null: as of all."),
      Rate("attention_64_backward_flops", &H::attention_64_backward_flops, "And on the way back."),
      Rate("copy_bytes_per_s", &H::copy_bytes_per_s,
           "Bytes a second of a copy in device memory, read and written."),
      Rate("host_link_bytes_per_s", &H::host_link_bytes_per_s,
           "Bytes a second between a device and its host, each way."),
      Rate("host_copy_bytes_per_s", &H::host_copy_bytes_per_s,
           "Bytes a second of a copy in a rank's share of its host, read and written."),
      Rate("disk_read_bytes_per_s", &H::disk_read_bytes_per_s, "Bytes a second from its disk."),
      Rate("disk_write_bytes_per_s", &H::disk_write_bytes_per_s, "Bytes a second to its disk."),
  });
  return type;
}

}  // namespace

Hardware ReadHardware(const std::string& path) {
  std::string text;
  if (const std::string why = recipe::ReadTextFile(path, text); !why.empty()) {
    throw ConfigError(path + ": " + why);
  }
  recipe::RecipeReader reader({"name", "device", "memory", "outside", "host_memory", "bf16_flops",
                               "fp16_flops", "fp32_flops", "multiprocessors",
                               "attention_forward_flops", "attention_backward_flops",
                               "attention_64_forward_flops", "attention_64_backward_flops",
                               "copy_bytes_per_s", "host_link_bytes_per_s", "host_copy_bytes_per_s",
                               "disk_read_bytes_per_s", "disk_write_bytes_per_s"});
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
