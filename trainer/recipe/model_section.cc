// Tests: tests/trainer/recipe/load_test.cc
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "models/family.h"
#include "models/shape.h"
#include "trainer/recipe/containers.h"
#include "trainer/recipe/model_fields.h"
#include "trainer/recipe/sections.h"

namespace fsdp::recipe {
namespace {

Type<int64_t> Of(const IntegerRange& range) { return Integer(range.min, range.max); }
Type<bool> Of(const BooleanRange&) { return Boolean(); }
Type<std::string> Of(const NameRange& range) { return OneOfTexts(range.names, Later(range.later)); }
Type<double> Of(const RealRange& range) {
  return Number({.at_least = range.at_least,
                 .above = range.above,
                 .at_most = range.at_most,
                 .below = range.below});
}

// A value of type V among the values of `Map`, by its name. `nullable`: it need not be there.
template <typename Map, typename V>
class Entry final : public ValueType {
 public:
  Entry(std::string name, const Type<V>& type) : name_(std::move(name)), type_(Nullable(type)) {}

  Json Schema() const override { return type_->Schema(); }
  bool Read(const YamlNode& node, const std::string& key, RecipeReader& reader,
            void* value) const override {
    Map& values = *static_cast<Map*>(value);
    std::optional<V> entry = Find(values);
    const bool good = type_.Read(node, key, reader, entry);
    if (entry) {
      values.insert_or_assign(name_, std::move(*entry));
    } else {
      values.erase(name_);
    }
    return good;
  }
  Json Write(const void* value) const override {
    return type_.Write(Find(*static_cast<const Map*>(value)));
  }

 private:
  std::optional<V> Find(const Map& values) const {
    const auto at = values.find(name_);
    return at == values.end() ? std::nullopt : std::optional<V>(std::get<V>(at->second));
  }

  const std::string name_;
  const Type<std::optional<V>> type_;
};

// A value of type V that is always there, such as a map's first member.
class NameEntry final : public ValueType {
 public:
  NameEntry(std::string name, const Type<std::string>& type)
      : name_(std::move(name)), type_(type) {}

  Json Schema() const override { return type_->Schema(); }
  bool Read(const YamlNode& node, const std::string& key, RecipeReader& reader,
            void* value) const override {
    return type_.Read(node, key, reader, std::get<std::string>(At(value)));
  }
  Json Write(const void* value) const override {
    return type_.Write(std::get<std::string>(At(const_cast<void*>(value))));
  }

 private:
  FieldScalar& At(void* map) const { return static_cast<FieldMap*>(map)->at(name_); }

  const std::string name_;
  const Type<std::string> type_;
};

AnyType MemberType(const FieldMember& member) {
  return std::visit(
      [&](const auto& range) -> AnyType {
        const auto type = Of(range);
        if constexpr (std::is_same_v<std::decay_t<decltype(range)>, NameRange>) {
          return AnyType(std::make_shared<NameEntry>(member.name, type));
        } else {
          using V = std::decay_t<decltype(type)>;
          return AnyType(std::make_shared<Entry<FieldMap, typename V::Value>>(member.name, type));
        }
      },
      member.range);
}

// Owns the map's default, whose members begin at its address.
class MapEntry final : public ValueType {
 public:
  explicit MapEntry(const MapRange& range)
      : standard_(range.standard), map_(MapOf(SectionOf(range, standard_), &standard_)) {}

  Json Schema() const override { return map_->Schema(); }
  bool Read(const YamlNode& node, const std::string& key, RecipeReader& reader,
            void* value) const override {
    FieldMap& map = *static_cast<FieldMap*>(value);
    if (map.empty()) map = standard_;
    return map_->Read(node, key, reader, value);
  }
  Json Write(const void* value) const override { return map_->Write(value); }

 private:
  static AnySection SectionOf(const MapRange& range, const FieldMap& standard) {
    AnySection section;
    for (const FieldMember& member : range.members) {
      AnyField field(member.name.c_str(), member.text.c_str(), MemberType(member), /*offset=*/0);
      field.aliases = member.elsewhere;
      section.fields.push_back(std::move(field));
    }
    section.before = [first = range.members[0].name, &standard](const YamlNode& node, void* map) {
      if (node.Find(first) != nullptr) *static_cast<FieldMap*>(map) = standard;
    };
    return section;
  }

  const FieldMap standard_;
  const AnyType map_;
};

template <typename V>
Type<FieldValues> Named(const Field& field, const Type<V>& type) {
  return Type<FieldValues>(std::make_shared<Entry<FieldValues, V>>(field.name, type));
}

// The type of the entry named like the field. A map that names its first member replaces the map
// before it; otherwise members that it does not name stay.
Type<FieldValues> EntryType(const Field& field) {
  return std::visit(
      [&](const auto& range) -> Type<FieldValues> {
        using Range = std::decay_t<decltype(range)>;
        if constexpr (std::is_same_v<Range, MapRange>) {
          return Named(field, Type<FieldMap>(std::make_shared<MapEntry>(range)));
        } else if constexpr (std::is_same_v<Range, BooleanRange> ||
                             std::is_same_v<Range, NameRange>) {
          return Named(field, Of(range));
        } else {
          return field.is_list ? Named(field, ListOf(Of(range))) : Named(field, Of(range));
        }
      },
      field.range);
}

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

Type<LoraOptions> LoraType() {
  using R = LoraOptions;
  return Map<R>({
      Key("rank", &R::rank, Integer(0, kMaxHiddenSize),
          "Rank of an adapter's two matrices. 0: no adapters, so base is for what "
          "optimizer.groups freezes."),
      Key("alpha", &R::alpha, Number({.above = 0, .at_most = std::numeric_limits<float>::max()}),
          "An adapter's output is scaled by alpha / rank."),
      Key("targets", &R::targets, ListOf(Text()),
          "The linear layers in blocks that get an adapter, by their Hugging Face names. Each "
          "entry is the last part of a name, as in PEFT's target_modules (`q_proj`, "
          "`self_attn.q_proj`: in any layer), or a glob over the whole name of a weight."),
      Key("dropout", &R::dropout, Number({.at_least = 0, .below = 1}),
          "Share of the elements of a layer's input that its adapter does not see, drawn anew in "
          "each training step, as PEFT's lora_dropout."),
      Key("full", &R::full, ListOf(Text()),
          "Parameters that train whole beside the adapters, as PEFT's modules_to_save: modules "
          "(`lm_head`), or globs over whole names. A weight among them gets no adapter."),
      Key("base", &R::base, OneOf<LoraBase>(),
          "The form of the frozen weights of linear layers in blocks, in memory and as they are "
          "gathered: none (param_dtype), nf4 (QLoRA's four bits) or int8, in blocks of 64."),
      Key("base_scales", &R::base_scales, OneOf<BaseScales>(),
          "How nf4 keeps the scales of its blocks; 8bit is QLoRA's double quantisation. int8 has "
          "fp32 scales."),
      Key("base_exclude", &R::base_exclude, ListOf(Text()),
          "Frozen weights of linear layers that stay in param_dtype: modules (`down_proj`), or "
          "globs over whole names."),
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
      Key("init_from", &R::init_from, Nullable(Path()),
          "Where shape and weights come from: a Hugging Face directory (config.json and "
          "*.safetensors), a checkpoint, a run directory (its latest checkpoint), or a PEFT "
          "adapter, which is merged into its base. Shape fields given beside it must agree with "
          "it, except num_labels: a head with another number of classes is initialised anew."),
      Key("base", &R::base, Nullable(Path()),
          "The weights that a PEFT adapter in init_from is merged into. null: those beside it, or "
          "else those that its adapter_config.json names."),
      Key("lora", &R::lora, Nullable(LoraType()),
          "Low-rank adapters: the adapters train, and the parameters of init_from are frozen. "
          "null: no adapters."),
      Key("vocab_multiple", &R::vocab_multiple, Integer(1, kMaxVocabSize),
          "A vocabulary taken from a tokenizer is rounded up to a multiple of this number. A "
          "vocab_size that is given must be a multiple of it."),
  });
  for (const ModelField& of : ModelFields()) {
    section.Add(Key(of.field.name.c_str(), &R::fields, EntryType(of.field), of.description.c_str())
                    .Elsewhere(of.field.elsewhere));
  }
  section.one_required = {"family", "preset", "init_from"};
  return Map(section);
}

}  // namespace fsdp::recipe
