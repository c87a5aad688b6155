#include "trainer/loop/attention_choice.h"

#include <cstdint>
#include <string>
#include <utility>
#include <variant>

namespace fsdp {
namespace {

// Of training and of evaluation, which has micro-batches of the same size; a sample is one row.
AttentionDims DimsOf(const Recipe& recipe, const ModelShape& shape) {
  const DecoderShape model = DecoderOf(shape);
  return {recipe.train.micro_batch_size, recipe.data.seq_len, model.num_heads,
          model.num_key_value_heads, model.head_dim};
}

// What cuDNN is not to be asked for: why, or nothing.
std::string NotForCudnn(const Recipe& recipe, const ModelShape& shape) {
  if (recipe.data.documents) return "data.documents";
  if (recipe.data.SeparatesDocuments()) return "data.packing";
  const auto rate = shape.Find("attention_dropout");
  return rate && std::get<double>(*rate) > 0 ? "model.attention_dropout" : "";
}

AttentionBackend Wanted(const Recipe& recipe) {
  return recipe.run.deterministic ? AttentionBackend::kCudnnDeterministic
                                  : AttentionBackend::kCudnn;
}

}  // namespace

FoundAttention AttentionOf(const Recipe& recipe, const ModelShape& shape,
                           const ChosenDevice& device) {
  if (device.type != DeviceType::kCuda || !shape.family().Decoder(shape)) return {};
  if (const std::string why = NotForCudnn(recipe, shape); !why.empty()) {
    return {AttentionBackend::kOwn, "own kernels (" + why + ")"};
  }
  return FindAttention(Wanted(recipe), device.gpu, DimsOf(recipe, shape),
                       recipe.fsdp.mixed_precision.param_dtype, recipe.eval.sample.has_value());
}

void PrepareAttention(const Recipe& recipe, const ModelShape& shape, AttentionBackend backend) {
  if (backend == AttentionBackend::kOwn) return;
  PrepareAttentionCudnn(backend, DimsOf(recipe, shape), recipe.fsdp.mixed_precision.param_dtype,
                        recipe.eval.sample.has_value());
}

AttentionBackend AttentionToPlan(const Recipe& recipe, const ModelShape& shape, DeviceType device) {
  const bool own = device != DeviceType::kCuda || !shape.family().Decoder(shape) ||
                   !NotForCudnn(recipe, shape).empty();
  return own ? AttentionBackend::kOwn : Wanted(recipe);
}

AttentionDims AttentionDimsOf(const Recipe& recipe, const ModelShape& shape) {
  return DimsOf(recipe, shape);
}

}  // namespace fsdp
