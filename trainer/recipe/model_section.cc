// Tests: tests/trainer/recipe/load_test.cc
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "trainer/recipe/field_types.h"
#include "trainer/recipe/model_fields.h"
#include "trainer/recipe/sections.h"

namespace fsdp::recipe {
namespace {

Type<std::string> PresetName() {
  std::vector<std::string> names;
  for (const ModelPreset& preset : ModelPresets()) names.emplace_back(preset.name);
  return OneOfTexts(std::move(names));
}

void ForgetShape(const YamlNode& preset, ModelRecipe& model) {
  if (preset.kind == YamlNode::Kind::kNull) return;
  for (const ModelField& of : ModelFields()) {
    if (!of.field.is_dropout) model.fields.erase(of.field.name);
  }
}

Type<LoraRecipe> LoraType() {
  using R = LoraRecipe;
  return Map<R>({
      Key("rank", &R::rank, Integer(1, kMaxHiddenSize), "Of an adapter's two matrices."),
      Key("alpha", &R::alpha, Number({.above = 0, .at_most = std::numeric_limits<float>::max()}),
          "What adapters add is scaled by alpha / rank."),
      Key("targets", &R::targets, ListOf(Text()),
          "Which linear layers in blocks have an adapter, by their names in Hugging Face files: "
          "their last parts, as PEFT's target_modules (`q_proj`, `self_attn.q_proj`: of any "
          "layer), or globs over the whole names of their weights."),
  });
}

}  // namespace

Type<ModelRecipe> ModelType() {
  using R = ModelRecipe;
  std::vector<std::string> families;
  std::string others;
  for (const ModelFamily* family : Families()) {
    families.emplace_back(family->name());
    if (family->relatives().empty()) continue;
    others += " " + families.back() + ": " + std::string(family->relatives()) + ".";
  }
  const std::string about_family =
      "The architecture." + others + " null: that of preset or init_from; required without either.";
  Section<R> section({
      Key("family", &R::family, Nullable(OneOfTexts(std::move(families))), about_family.c_str()),
      Key("preset", &R::preset, Nullable(PresetName()),
          "A published size: sets the fields below, and those beside it override it. Given in a "
          "later file, it replaces the fields of earlier ones.")
          .Then(&ForgetShape),
      Key("init_from", &R::init_from, Nullable(Text()),
          "A Hugging Face directory (config.json and *.safetensors), a run directory (its latest "
          "checkpoint) or a checkpoint to take shape and weights from. Shape fields given beside "
          "it must agree with it, but for num_labels: a head for other classes is drawn anew."),
      Key("lora", &R::lora, Nullable(LoraType()),
          "Low-rank adapters: all parameters of init_from are frozen, and the adapters train. "
          "null: none."),
      Key("vocab_multiple", &R::vocab_multiple, Integer(1, kMaxVocabSize),
          "A vocabulary that is taken from a tokenizer is rounded up to a multiple of this. One "
          "that is given must be such a multiple.")
          .Elsewhere({"pad_to_multiple_of", "make_vocab_size_divisible_by"}),
  });
  for (const ModelField& of : ModelFields()) {
    section.Add(Key(of.field.name.c_str(), &R::fields, EntryType(of.field), of.description.c_str())
                    .Elsewhere(of.field.elsewhere));
  }
  section.one_required = {"family", "preset", "init_from"};
  return Map(section);
}

}  // namespace fsdp::recipe
