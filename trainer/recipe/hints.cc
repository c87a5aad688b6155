#include "trainer/recipe/hints.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <vector>

#include "models/family.h"

namespace fsdp::recipe {

std::span<const PeersValue> PeersValues() {
  static const std::vector<PeersValue> values = [] {
    std::vector<PeersValue> all = {
        {"run.device", "gpu", "cuda"},
        {"run.device", "nvidia", "cuda"},
        {"optimizer.name", "adam", "adamw"},
        {"optimizer.name", "adamw_torch", "adamw"},
        {"optimizer.name", "adamw_torch_fused", "adamw"},
    };
    for (const ModelFamily* family : Families()) {
      for (const std::string_view name : family->kin()) {
        all.push_back({"model.family", name, family->name()});
      }
    }
    return all;
  }();
  return values;
}

std::string_view FindPeersValue(std::string_view key, std::string_view word) {
  const auto same = [](char a, char b) {
    return std::tolower(static_cast<unsigned char>(a)) ==
           std::tolower(static_cast<unsigned char>(b));
  };
  for (const PeersValue& value : PeersValues()) {
    if (value.key == key &&
        std::equal(word.begin(), word.end(), value.word.begin(), value.word.end(), same)) {
      return value.ours;
    }
  }
  return "";
}

std::string_view FindPeersScalar(std::string_view key, std::string_view scalar) {
  struct Row {
    std::string_view key, scalar, map;
  };
  static constexpr auto rows = std::to_array<Row>({
      {"fsdp.cpu_offload", "true", "{optimizer: true, params: true}"},
      {"fsdp.cpu_offload", "false", "{optimizer: false, params: false}"},
      {"fsdp.auto_wrap", "true", "{policy: transformer_block}"},
      {"model.lora", "true", "{rank: 8}"},
      {"data", "*", "{train: {paths: FILES}}"},
  });
  const auto row = std::ranges::find_if(rows, [&](const Row& row) {
    return row.key == key && (row.scalar == scalar || row.scalar == "*");
  });
  return row == rows.end() ? "" : row->map;
}

}  // namespace fsdp::recipe
