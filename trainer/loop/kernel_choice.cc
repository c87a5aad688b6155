#include "trainer/loop/kernel_choice.h"

#include <cstdint>
#include <string>
#include <utility>
#include <variant>

#include "models/shape.h"
#include "trainer/engine/step_operations.h"
#include "trainer/ops/attention_inputs.h"
#include "trainer/ops/cudnn/attention_cudnn.h"
#include "trainer/ops/cudnn/convolution_cudnn.h"
#include "trainer/recipe/recipe.h"
#include "trainer/runtime/choose_device.h"

namespace fsdp {
namespace {

// The dimensions in training and in evaluation, whose micro-batches have the same size. A sample is
// one row.
AttentionDims DimsOf(const Recipe& recipe, const ModelShape& shape) {
  const DecoderShape model = DecoderOf(shape);
  return {recipe.train.micro_batch_size, recipe.data.seq_len, model.num_heads,
          model.num_key_value_heads, model.head_dim};
}

// Why cuDNN is not to be asked; empty: it may be.
std::string NotForCudnn(const Recipe& recipe, const ModelShape& shape) {
  if (recipe.data.documents) return "data.documents";
  if (recipe.data.SeparatesDocuments()) return "data.packing";
  const auto rate = shape.Find("attention_dropout");
  return rate && std::get<double>(*rate) > 0 ? "model.attention_dropout" : "";
}

bool IsMath(const Recipe& recipe) {
  return recipe.train.attention == TrainRecipe::Attention::kMath;
}

AttentionBackend Wanted(const Recipe& recipe) {
  return recipe.run.deterministic ? AttentionBackend::kCudnnDeterministic
                                  : AttentionBackend::kCudnn;
}

// Asks this host.
FoundAttention Find(const Recipe& recipe, const ModelShape& shape, const ChosenDevice& device) {
  if (IsMath(recipe)) return {AttentionBackend::kMath, "own kernels (train.attention: math)"};
  if (device.type != DeviceType::kCuda || !shape.family().Decoder(shape)) return {};
  if (const std::string why = NotForCudnn(recipe, shape); !why.empty()) {
    return {AttentionBackend::kOwn, "own kernels (" + why + ")"};
  }
  return FindAttention(Wanted(recipe), device.gpu, DimsOf(recipe, shape),
                       recipe.fsdp.mixed_precision.param_dtype, recipe.eval.sample.has_value());
}

// Ranks compare what they have found: bits are those of one backend, and of one version.
class Attention final : public Choice {
 public:
  ChoiceId id() const override { return ChoiceId::kAttention; }
  bool meets() const override { return false; }

  std::string Ask(Choosing& c) const override {
    ResolvedRun& run = c.run;
    AttentionBackend& backend = run.options.executor.attention;
    if (!run.place.device) {
      backend = AttentionToPlan(*run.recipe, run.shape, run.target.device);
      return "";
    }
    const FoundAttention found = Find(*run.recipe, run.shape, *run.place.device);
    backend = found.backend;
    return found.name;
  }

  std::string Agree(const Choosing& c) const override { return c.answers[c.mine]; }

  Chosen Record(const std::string& name, Choosing& c) const override {
    const bool own = c.run.options.executor.attention == AttentionBackend::kOwn;
    return {.id = id(),
            .value = name,
            .line = name.empty() ? "" : "attention: " + name,
            .labels = {{"attention", own ? "own kernels" : name}}};
  }
};

}  // namespace

const Choice& AttentionChoice() {
  static const Attention choice;
  return choice;
}

void PrepareAttention(const Recipe& recipe, const ModelShape& shape, AttentionBackend backend) {
  if (backend == AttentionBackend::kOwn || backend == AttentionBackend::kMath) return;
  PrepareAttentionCudnn(backend, DimsOf(recipe, shape), recipe.fsdp.mixed_precision.param_dtype,
                        recipe.eval.sample.has_value());
}

AttentionBackend AttentionToPlan(const Recipe& recipe, const ModelShape& shape, DeviceType device) {
  if (IsMath(recipe)) return AttentionBackend::kMath;
  const bool own = device != DeviceType::kCuda || !shape.family().Decoder(shape) ||
                   !NotForCudnn(recipe, shape).empty();
  return own ? AttentionBackend::kOwn : Wanted(recipe);
}

namespace {

// Ranks compare what they have found: bits are those of one backend, and of one version.
class ConvolutionKernels final : public Choice {
 public:
  ChoiceId id() const override { return ChoiceId::kConvolution; }
  bool meets() const override { return false; }

  std::string Ask(Choosing& c) const override {
    ResolvedRun& run = c.run;
    ConvolutionBackend& backend = run.options.executor.convolution;
    if (!run.place.device) {
      backend.cudnn = run.target.device == DeviceType::kCuda;
      return "";
    }
    if (run.place.device->type != DeviceType::kCuda) return "";
    run.convolutions = StepConvolutions(*run.model, run.options);
    FoundConvolutions found = FindConvolutions(run.place.device->gpu, run.convolutions);
    backend = std::move(found.backend);
    if (!backend.cudnn) run.convolutions.clear();
    for (const ConvolutionCall& call : backend.refused) run.convolutions.erase(call);
    return found.name;
  }

  std::string Agree(const Choosing& c) const override { return c.answers[c.mine]; }

  Chosen Record(const std::string& name, Choosing& c) const override {
    Chosen chosen{.id = id(), .value = name};
    if (name.empty()) return chosen;
    chosen.line = "convolutions: " + name;
    const bool own = !c.run.options.executor.convolution.cudnn;
    chosen.labels = {{"convolutions", own ? "own kernels" : name}};
    return chosen;
  }
};

}  // namespace

const Choice& ConvolutionChoice() {
  static const ConvolutionKernels choice;
  return choice;
}

}  // namespace fsdp
