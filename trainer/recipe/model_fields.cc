#include "trainer/recipe/model_fields.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <variant>

#include "models/family.h"
#include "trainer/core/check.h"

namespace fsdp::recipe {
namespace {

template <typename T, typename Less>
void Widen(std::optional<T>& bound, const std::optional<T>& other, Less less) {
  if (!bound || !other) {
    bound.reset();
  } else if (less(*other, *bound)) {
    bound = other;
  }
}

void Widen(Field& field, const Field& other) {
  FSDP_CHECK(field.range.index() == other.range.index() && field.is_list == other.is_list)
      << "families disagree about the type of " << field.name;
  if (auto* range = std::get_if<IntegerRange>(&field.range)) {
    const auto& more = std::get<IntegerRange>(other.range);
    *range = {std::min(range->min, more.min), std::max(range->max, more.max)};
  } else if (auto* real = std::get_if<RealRange>(&field.range)) {
    const auto& more = std::get<RealRange>(other.range);
    Widen(real->at_least, more.at_least, std::less<>());
    Widen(real->above, more.above, std::less<>());
    Widen(real->at_most, more.at_most, std::greater<>());
    Widen(real->below, more.below, std::greater<>());
  }
}

using Owners = std::vector<std::pair<const ModelFamily*, const Field*>>;

// "b: Base of its wavelengths. null: 10000." or, where all families have it,
// "Transformer blocks. null: a: 12, b: 32."
std::string Describe(const Field& field, const Owners& owners) {
  std::string whose;
  if (owners.size() < Families().size()) {
    for (const auto& [family, ours] : owners) {
      whose += (whose.empty() ? "" : ", ") + std::string(family->name());
    }
    whose += ": ";
  }
  std::string text = field.text;
  if (!whose.empty() && text.size() > 1 && (text[1] == ' ' || (text[1] >= 'a' && text[1] <= 'z'))) {
    text[0] = static_cast<char>(text[0] - 'A' + 'a');
  }
  text = whose + text + ". null: ";
  if (field.is_dropout) return text + "what init_from's config.json says; without one 0.";
  if (field.name == kVocabulary) {
    text +=
        "the preset's; without one as many as the tokenizer of data has, 256 for bytes; where no "
        "file says it ";
  }
  const bool alike = std::all_of(owners.begin(), owners.end(), [&](const auto& owner) {
    return owner.second->standard == field.standard;
  });
  if (alike) return text + field.standard + ".";
  std::string standards;
  for (const auto& [family, ours] : owners) {
    standards +=
        (standards.empty() ? "" : ", ") + std::string(family->name()) + ": " + ours->standard;
  }
  return text + standards + ".";
}

// A field that only this family has goes right before the family's next shared field.
void Insert(const ModelFamily& family, std::vector<std::string>& names) {
  const std::span<const Field> fields = family.fields();
  auto at = names.end();
  for (auto field = fields.rbegin(); field != fields.rend(); ++field) {
    const auto known = std::find(names.begin(), names.end(), field->name);
    at = known != names.end() ? known : names.insert(at, field->name);
  }
}

std::vector<ModelField> Collect() {
  std::vector<std::string> names;
  for (const ModelFamily* family : Families()) Insert(*family, names);
  // Dropouts of all families come last.
  const auto is_dropout = [](const std::string& name) {
    return std::any_of(Families().begin(), Families().end(), [&](const ModelFamily* family) {
      const Field* const field = family->Find(name);
      return field != nullptr && field->is_dropout;
    });
  };
  std::stable_partition(names.begin(), names.end(), [&](const auto& n) { return !is_dropout(n); });

  std::vector<ModelField> all;
  for (const std::string& name : names) {
    Owners owners;
    for (const ModelFamily* family : Families()) {
      if (const Field* const field = family->Find(name)) owners.emplace_back(family, field);
    }
    Field field = *owners[0].second;
    for (const auto& [family, other] : owners) Widen(field, *other);
    std::string description = Describe(field, owners);
    all.push_back({std::move(field), std::move(description)});
  }
  return all;
}

}  // namespace

const std::vector<ModelField>& ModelFields() {
  static const std::vector<ModelField> fields = Collect();
  return fields;
}

std::vector<std::string> AllowedChanges() {
  std::vector<std::string> changes;
  for (const ModelField& of : ModelFields()) {
    if (of.field.is_dropout) changes.push_back("model." + of.field.name);
  }
  for (const char* change :
       {"train.grad_clip", "train.ema.decay", "optimizer.lr", "optimizer.betas", "optimizer.eps",
        "optimizer.weight_decay", "optimizer.table_lr", "schedule", "records"}) {
    changes.emplace_back(change);
  }
  return changes;
}

void FillDropouts(FieldValues& fields) {
  for (const ModelField& of : ModelFields()) {
    if (of.field.is_dropout) fields.try_emplace(of.field.name, 0.0);
  }
}

}  // namespace fsdp::recipe
