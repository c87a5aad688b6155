// Tests: tests/trainer/recipe/load_test.cc
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "models/family.h"
#include "models/shape.h"
#include "trainer/recipe/containers.h"
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
      Key("rank", &R::rank, Integer(1, kMaxHiddenSize), "Rank of an adapter's two matrices."),
      Key("alpha", &R::alpha, Number({.above = 0, .at_most = std::numeric_limits<float>::max()}),
          "An adapter's output is scaled by alpha / rank."),
      Key("targets", &R::targets, ListOf(Text()),
          "The linear layers in blocks that get an adapter, by their Hugging Face names. Each "
          "entry is the last part of a name, as in PEFT's target_modules (`q_proj`, "
          "`self_attn.q_proj`: in any layer), or a glob over the whole name of a weight."),
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
      "The architecture." + others +
      " null: the family of preset or init_from; required if neither is given.";
  Section<R> section({
      Key("family", &R::family, Nullable(OneOfTexts(std::move(families))), about_family.c_str()),
      Key("preset", &R::preset, Nullable(PresetName()),
          "A published size. It sets the fields below; fields given beside it override it. A "
          "preset in a later file replaces the fields of earlier files.")
          .Then(&ForgetShape),
      Key("init_from", &R::init_from, Nullable(Text()),
          "Where shape and weights come from: a Hugging Face directory (config.json and "
          "*.safetensors), a checkpoint, or a run directory (its latest checkpoint). Shape "
          "fields given beside it must agree with it, except num_labels: a head with another "
          "number of classes is initialised anew."),
      Key("lora", &R::lora, Nullable(LoraType()),
          "Low-rank adapters: the adapters train, and all parameters of init_from are frozen. "
          "null: no adapters."),
      Key("vocab_multiple", &R::vocab_multiple, Integer(1, kMaxVocabSize),
          "A vocabulary taken from a tokenizer is rounded up to a multiple of this number. A "
          "vocab_size that is given must be a multiple of it.")
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
