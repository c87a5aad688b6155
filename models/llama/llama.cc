#include "models/llama/llama.h"

#include <memory>

namespace fsdp {

std::shared_ptr<Model> MakeLlama(const LlamaConfig& config) {
  return std::make_shared<Llama>(config);
}

}  // namespace fsdp
