#include "models/llama/config.h"

#include "models/shape_checks.h"

namespace fsdp {

int64_t LlamaConfig::max_positions() const {
  if (rope_scaling.type != RopeScaling::Type::kDynamic || !rope_scaling.factor) {
    return max_position_embeddings;
  }
  const double stretched = *rope_scaling.factor * static_cast<double>(max_position_embeddings);
  return stretched < static_cast<double>(kMaxPositions) ? static_cast<int64_t>(stretched)
                                                        : kMaxPositions;
}

}  // namespace fsdp
