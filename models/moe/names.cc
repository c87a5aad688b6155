#include "models/moe/names.h"

#include <string_view>

#include "models/moe/hf_config.h"
#include "trainer/core/errors.h"

namespace fsdp {

ExpertNames NamesOf(const MoeConfig& config) {
  static const std::vector<MoeRelative> relatives = MoeRelatives();
  std::string_view type;
  try {
    type = MoeRelativeOf(relatives, config).model_type;
  } catch (const CheckpointError&) {  // Nobody has such a shape.
  }
  if (type == "mixtral") return {"block_sparse_moe.", "w1", "w3", "w2"};
  ExpertNames names;
  if (type == "dots1") names.shared = "shared_experts.";
  return names;
}

}  // namespace fsdp
