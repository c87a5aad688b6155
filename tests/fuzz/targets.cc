#include "tests/fuzz/targets.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <map>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "models/shape.h"
#include "trainer/checkpoint/chunk_checksum.h"
#include "trainer/checkpoint/manifest.h"
#include "trainer/checkpoint/manifest_writer.h"
#include "trainer/checkpoint/safetensors.h"
#include "trainer/core/errors.h"
#include "trainer/ops/weight_codes.h"
#include "trainer/recipe/load.h"
#include "trainer/recipe/print.h"
#include "trainer/recipe/recipe.h"
#include "trainer/weights/bnb_tensor.h"
#include "trainer/weights/hf_config.h"

namespace fsdp {
namespace {

std::string_view Text(const uint8_t* data, size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

void Require(bool holds, const char* what) {
  if (!holds) throw std::logic_error(what);
}

// A file in memory that is opened by its path, again and again with other contents.
class MemoryFile {
 public:
  MemoryFile() : fd_(memfd_create("fuzz", MFD_CLOEXEC)) {
    Require(fd_ >= 0, "memfd_create");
    path_ = "/proc/self/fd/" + std::to_string(fd_);
  }
  ~MemoryFile() { close(fd_); }

  const std::string& Hold(const uint8_t* data, size_t size) {
    Require(ftruncate(fd_, 0) == 0, "ftruncate");
    Require(pwrite(fd_, data, size, 0) == static_cast<ssize_t>(size), "pwrite");
    return path_;
  }

 private:
  int fd_;
  std::string path_;
};

bool IsFloat(SafetensorsType type) {
  return type == SafetensorsType::kF32 || type == SafetensorsType::kF64 ||
         type == SafetensorsType::kBF16 || type == SafetensorsType::kF16;
}

}  // namespace

int FuzzSafetensors(const uint8_t* data, size_t size) {
  static MemoryFile file;
  try {
    const SafetensorsReader reader(file.Hold(data, size));
    std::vector<SafetensorsEntry> entries;
    int64_t bytes = 0;
    for (const std::string& name : reader.Names()) {
      const SafetensorsInfo& info = reader.Info(name);
      Require(info.begin >= 8 && info.end <= reader.file_bytes(), "a tensor outside its file");
      std::vector<std::byte> contents(static_cast<size_t>(info.bytes()));
      reader.ReadBytes(name, 0, contents);
      bytes += info.bytes();
      if (IsFloat(info.type)) {
        std::vector<float> floats(static_cast<size_t>(info.NumElements()));
        reader.ReadFloat(name, 0, floats);
      }
      entries.push_back({name, info.type, info.shape});
    }
    Require(bytes < reader.file_bytes(), "more tensors than file");
    return 1;
  } catch (const CheckpointError&) {
    return 0;
  }
}

int FuzzBnbTensor(const uint8_t* data, size_t size) {
  static MemoryFile file;
  try {
    const SafetensorsReader reader(file.Hold(data, size));
    std::map<std::string, BnbTensor::Part> parts;
    for (const std::string& name : reader.Names()) parts[name] = {&reader, name};
    int accepted = 0;
    for (const std::string& name : reader.Names()) {
      const auto weight = BnbWeightOf(name);
      if (!weight) continue;
      const BnbTensor tensor(*weight, [&](std::string_view end) {
        const auto at = parts.find(*weight + std::string(end));
        return at == parts.end() ? nullptr : &at->second;
      });
      int64_t elements = 1;
      for (const int64_t dim : tensor.shape()) elements *= dim;
      Require(elements / 2 <= reader.file_bytes(), "more elements than file");
      std::vector<uint8_t> records(static_cast<size_t>(CodedBytes(tensor.code(), elements)));
      tensor.ReadRecords(0, records);
      std::vector<float> values(static_cast<size_t>(elements));
      tensor.ReadFloat(0, values);
      tensor.ReadFloat(elements - 1, std::span(values).first(1));
      accepted = 1;
    }
    return accepted;
  } catch (const CheckpointError&) {
    return 0;
  }
}

int FuzzManifest(const uint8_t* data, size_t size) {
  const std::string rest(Text(data, size));
  char head[64];
  std::snprintf(head, sizeof(head), "{\"checksum\": \"%016llx\",\n",
                static_cast<unsigned long long>(Checksum(std::string_view(rest))));
  try {
    const Manifest manifest = ParseManifest(head + rest, "manifest.json");
    const std::string text = ManifestToText(manifest);
    Require(ManifestToText(ParseManifest(text, "written")) == text, "written and read again");
    for (const ManifestFile& file : manifest.files) {
      ParseManifestFile(ManifestFileToJson(file), "file");
    }
    Require(manifest.DataBytes() >= 0, "bytes");
    // A reader relies on this: every element of a state is in exactly one place.
    for (const auto& [key, extents] : ExtentsOf(manifest)) {
      int64_t reached = 0;
      for (const Extent& extent : extents) {
        Require(extent.begin == reached && extent.count > 0, "extents");
        const ManifestFile& file = manifest.files.at(static_cast<size_t>(extent.file));
        Require(extent.at >= 0 && extent.bytes > 0 && extent.bytes <= file.bytes - extent.at,
                "an extent's bytes");
        reached += extent.count;
      }
    }
    return 1;
  } catch (const CheckpointError&) {
    return 0;
  }
}

int FuzzHfConfig(const uint8_t* data, size_t size) {
  HfConfig config;
  try {
    config = ParseHfConfig(Text(data, size), "config.json");
  } catch (const CheckpointError&) {
    return 0;
  }
  // Whatever is read can be written, and means the same.
  Require(Validate(config.shape).empty(), "a shape that cannot be built");
  Require(ParseHfConfig(HfConfigToJson(config.shape, "float32"), "written").shape == config.shape,
          "written and read again");
  return 1;
}

int FuzzRecipe(const uint8_t* data, size_t size) {
  Recipe recipe;
  try {
    recipe = ParseRecipe({{"recipe", std::string(Text(data, size))}});
  } catch (const ConfigError& error) {
    Require(std::string_view(error.what()).starts_with("recipe:"), "a mistake has a place");
    return 0;
  }
  Require(ParseRecipe({{"printed", PrintRecipe(recipe)}}) == recipe, "printed and read again");
  return 1;
}

}  // namespace fsdp
