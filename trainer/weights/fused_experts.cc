#include "trainer/weights/fused_experts.h"

#include <string_view>

namespace fsdp {
namespace {

constexpr std::string_view kExperts = ".experts.";

struct Kind {
  std::string_view end;                    // Ends the tensor's name, behind kExperts.
  std::vector<std::string_view> matrices;  // An expert's, in the order of their rows.
};

const std::vector<Kind>& Kinds() {
  static const std::vector<Kind> kinds = {
      {"gate_up_proj", {"gate_proj.weight", "up_proj.weight"}},
      {"down_proj", {"down_proj.weight"}},
  };
  return kinds;
}

// Null: the tensor is none.
const Kind* KindOf(const std::string& tensor) {
  for (const Kind& kind : Kinds()) {
    if (tensor.ends_with(std::string(kExperts) + std::string(kind.end))) return &kind;
  }
  return nullptr;
}

}  // namespace

bool IsFused(const std::string& tensor) { return KindOf(tensor) != nullptr; }

std::vector<FusedPart> FusedParts(const std::string& tensor, const std::vector<int64_t>& shape) {
  const Kind* const kind = KindOf(tensor);
  if (kind == nullptr || shape.size() != 3) return {};
  const auto matrices = static_cast<int64_t>(kind->matrices.size());
  if (shape[1] % matrices != 0) return {};
  const std::string prefix = tensor.substr(0, tensor.size() - kind->end.size());
  const std::vector<int64_t> part = {shape[1] / matrices, shape[2]};
  std::vector<FusedPart> parts;
  for (int64_t expert = 0; expert < shape[0]; ++expert) {
    for (const std::string_view matrix : kind->matrices) {
      parts.push_back({prefix + std::to_string(expert) + "." + std::string(matrix),
                       static_cast<int64_t>(parts.size()) * part[0] * part[1], part});
    }
  }
  return parts;
}

std::map<std::string, std::vector<int64_t>> FuseShapes(
    const std::vector<std::pair<std::string, std::vector<int64_t>>>& parts) {
  std::map<std::string, std::vector<int64_t>> fused;
  for (const auto& [name, shape] : parts) {
    const size_t at = name.find(kExperts), begin = at + kExperts.size();
    if (at == std::string::npos || shape.size() != 2) continue;
    const std::string matrix = name.substr(name.find('.', begin) + 1);
    for (const Kind& kind : Kinds()) {
      if (kind.matrices[0] != matrix) continue;
      auto& whole = fused[name.substr(0, begin) + std::string(kind.end)];
      const int64_t experts = whole.empty() ? 1 : whole[0] + 1;
      whole = {experts, shape[0] * static_cast<int64_t>(kind.matrices.size()), shape[1]};
    }
  }
  return fused;
}

}  // namespace fsdp
