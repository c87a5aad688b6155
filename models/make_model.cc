#include "models/make_model.h"

#include "models/gpt2/gpt2.h"
#include "models/llama/llama.h"

namespace fsdp {
namespace {

std::unique_ptr<Model> Make(const Gpt2Config& config) { return std::make_unique<Gpt2>(config); }
std::unique_ptr<Model> Make(const LlamaConfig& config) { return std::make_unique<Llama>(config); }

}  // namespace

std::unique_ptr<Model> MakeModel(const ModelShape& shape) {
  return std::visit([](const auto& config) { return Make(config); }, shape);
}

}  // namespace fsdp
