// A family made of its struct: a row for each field, and code for what no row can say.
// Tests: tests/models/family_test.cc
#ifndef FSDP_TRAIN_MODELS_TABLE_FAMILY_H_
#define FSDP_TRAIN_MODELS_TABLE_FAMILY_H_

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "models/family.h"
#include "trainer/core/check.h"
#include "trainer/core/errors.h"
#include "trainer/core/json_tree.h"

namespace fsdp {

// A field and its member.
template <typename Config>
struct FieldRow {
  Field field;
  std::function<FieldValue(const Config&)> get;
  std::function<void(Config&, const FieldValue&)> set;
  std::string hf_key = {};      // In config.json; empty: the family's code reads and writes it.
  bool judged_by_code = false;  // By FamilyTable::validate, not by its range.
};

// The row of a struct as one of a struct that derives from it.
template <typename Derived, typename Config>
FieldRow<Derived> Lifted(const FieldRow<Config>& row) {
  return {row.field, row.get, row.set, row.hf_key, row.judged_by_code};
}

template <typename Config, typename T>
FieldRow<Config> Row(const char* name, T Config::*member, const decltype(Field::range)& range,
                     const std::string& text, const std::string& standard,
                     const std::vector<std::string>& elsewhere = {},
                     const std::string& hf_key = {}) {
  FieldRow<Config> row;
  row.field = {
      .name = name,
      .range = range,
      .is_list = std::is_same_v<T, std::vector<int64_t>> || std::is_same_v<T, std::vector<double>>,
      .text = text,
      .standard = standard,
      .elsewhere = elsewhere};
  row.get = [member](const Config& config) -> FieldValue { return config.*member; };
  row.set = [member](Config& config, const FieldValue& value) {
    config.*member = std::get<T>(value);
  };
  row.hf_key = hf_key;
  return row;
}

// Row() for a member that is a struct. `to` and `from` convert it to a map and back.
template <typename Config, typename T>
FieldRow<Config> MapRow(const char* name, T Config::*member, const MapRange& range,
                        const std::string& text, const std::string& standard,
                        const std::vector<std::string>& elsewhere, FieldMap (*to)(const T&),
                        T (*from)(const FieldMap&)) {
  FieldRow<Config> row;
  row.field = {
      .name = name, .range = range, .text = text, .standard = standard, .elsewhere = elsewhere};
  row.get = [member, to](const Config& config) -> FieldValue { return to(config.*member); };
  row.set = [member, from](Config& config, const FieldValue& value) {
    config.*member = from(std::get<FieldMap>(value));
  };
  return row;
}

// Row() for a member that is an enumeration, with `names` in the order of its values.
template <typename Config, typename T>
FieldRow<Config> NameRow(const char* name, T Config::*member, const std::vector<std::string>& names,
                         const std::string& text, const std::string& standard) {
  FieldRow<Config> row;
  row.field = {.name = name, .range = NameRange{names}, .text = text, .standard = standard};
  row.get = [member, names](const Config& config) -> FieldValue {
    return names[static_cast<size_t>(config.*member)];
  };
  row.set = [member, names](Config& config, const FieldValue& value) {
    const auto at = std::find(names.begin(), names.end(), std::get<std::string>(value));
    FSDP_CHECK(at != names.end()) << std::get<std::string>(value);
    config.*member = static_cast<T>(at - names.begin());
  };
  return row;
}

// Row() for a member that no tensor's shape follows from (Field::is_free).
template <typename Config, typename T>
FieldRow<Config> FreeRow(const char* name, T Config::*member, const decltype(Field::range)& range,
                         const std::string& text, const std::string& standard,
                         const std::vector<std::string>& elsewhere, const std::string& hf_key) {
  FieldRow<Config> row = Row(name, member, range, text, standard, elsewhere, hf_key);
  row.field.is_free = true;
  return row;
}

// FreeRow() for a member from which time and memory alone follow (Field::is_tuning).
template <typename Config, typename T>
FieldRow<Config> TuningRow(const char* name, T Config::*member, const decltype(Field::range)& range,
                           const std::string& text, const std::string& standard) {
  FieldRow<Config> row = FreeRow(name, member, range, text, standard, {}, "");
  row.field.is_tuning = true;
  return row;
}

template <typename Config>
FieldRow<Config> DropoutRow(const char* name, double Config::*member, const std::string& text,
                            const std::vector<std::string>& elsewhere = {},
                            const std::string& hf_key = {}) {
  FieldRow<Config> row =
      Row(name, member, RealRange{.at_least = 0, .below = 1}, text, "0", elsewhere, hf_key);
  row.field.is_dropout = true;
  return row;
}

// A field in config.json. ReadHfField() returns whether the key is there, and keeps the value's
// type.
bool ReadHfField(const std::string& key, HfObject& hf, FieldValue& value);
void WriteHfField(const FieldValue& value, JsonTree& json);

// A model of transformers that is one of the family.
template <typename Config>
struct HfRelative {
  std::string_view model_type, architecture;
  Config standard;  // Has the values of keys that are absent.
};

template <typename Config>
struct FamilyTable {
  std::string_view name;
  std::vector<FieldRow<Config>> rows;  // Rows of dropouts are last.
  std::function<std::shared_ptr<Model>(const Config&)> make;
  std::string_view relatives = {};
  std::vector<std::string_view> kin = {};
  std::vector<std::pair<std::string_view, Config>> presets = {};
  // Code for what rows do not say; null: nothing. `validate` is told which fields are in their
  // ranges.
  void (*fill_dependent)(Config&, const ModelFamily::Given&) = nullptr;
  void (*validate)(const Config&, ShapeChecks&) = nullptr;
  void (*shrink)(Config&) = nullptr;
  DecoderShape (*decoder)(const Config&) = nullptr;
  DecoderShape (*target_decoder)(const Config&) = nullptr;
  MixtureShape (*mixture)(const Config&) = nullptr;  // With 0 layers: there is none.
  std::vector<std::string_view> kept_fp32_in_fp16 = {};
  int64_t Config::*target_length = nullptr;
  bool Config::*branches_are_blocks = nullptr;
  int64_t Config::*expert_pieces = nullptr;  // A config with experts has it.
  ModelHead head = {};
  // Files of Hugging Face; without relatives there are none.
  std::vector<HfRelative<Config>> hf = {};
  HfNames hf_names = {};
  std::vector<HfFeature> hf_features = {};
  // Run when the rows that have a key have been read or written.
  void (*read_hf)(const HfRelative<Config>&, HfObject&, Config&) = nullptr;
  void (*write_hf)(const HfRelative<Config>&, const Config&, JsonTree&) = nullptr;
  // Returns the one of `hf` that has such a shape; null: the first of `hf`. Throws CheckpointError
  // where none has.
  const HfRelative<Config>& (*relative_of)(const std::vector<HfRelative<Config>>&,
                                           const Config&) = nullptr;
};

template <typename Config>
class TableFamily final : public ModelFamily {
 public:
  explicit TableFamily(FamilyTable<Config> table) : table_(std::move(table)) {
    for (const FieldRow<Config>& row : table_.rows) fields_.push_back(row.field);
    for (const auto& [name, config] : table_.presets) presets_.push_back({name, ShapeOf(config)});
    for (const HfRelative<Config>& relative : table_.hf) hf_types_.push_back(relative.model_type);
  }

  std::string_view name() const override { return table_.name; }
  std::string_view relatives() const override { return table_.relatives; }
  std::span<const std::string_view> kin() const override { return table_.kin; }
  std::span<const Field> fields() const override { return fields_; }
  ModelShape Standard() const override { return ShapeOf(Config()); }
  std::span<const ModelPreset> presets() const override { return presets_; }

  void FillDependent(ModelShape& shape, const Given& given) const override {
    if (table_.fill_dependent != nullptr) table_.fill_dependent(Of(shape), given);
  }
  std::vector<ShapeMistake> Validate(const ModelShape& shape) const override {
    ShapeChecks checks;
    for (const FieldRow<Config>& row : table_.rows) {
      if (row.judged_by_code) continue;
      const std::string why = WhyNot(row.get(Of(shape)), row.field);
      if (!why.empty()) checks.Add(row.field.name, why);
    }
    if (table_.validate != nullptr) table_.validate(Of(shape), checks);
    return checks.Take();
  }
  std::shared_ptr<Model> Make(const ModelShape& shape) const override {
    for (const ShapeMistake& mistake : Validate(shape)) {
      throw std::invalid_argument("[" + std::string(name()) + "] " + mistake.field + ": " +
                                  mistake.message);
    }
    return table_.make(Of(shape));
  }
  ModelShape SmallestAlike(const ModelShape& shape) const override {
    ModelShape small = shape;
    if (table_.shrink != nullptr) table_.shrink(Of(small));
    return small;
  }
  std::optional<DecoderShape> Decoder(const ModelShape& shape) const override {
    if (table_.decoder == nullptr) return std::nullopt;
    return table_.decoder(Of(shape));
  }
  std::optional<DecoderShape> TargetDecoder(const ModelShape& shape) const override {
    if (table_.target_decoder == nullptr) return std::nullopt;
    return table_.target_decoder(Of(shape));
  }

  std::optional<MixtureShape> Mixture(const ModelShape& shape) const override {
    const MixtureShape mixture = table_.mixture ? table_.mixture(Of(shape)) : MixtureShape();
    return mixture.layers > 0 ? std::optional(mixture) : std::nullopt;
  }

  void SetTargetLength(ModelShape& shape, int64_t tokens) const override {
    if (table_.target_length != nullptr) Of(shape).*table_.target_length = tokens;
  }

  bool SplitsBranches() const override { return table_.branches_are_blocks != nullptr; }
  void CutBlocks(ModelShape& shape, const BlockCut& cut) const override {
    if (SplitsBranches()) Of(shape).*table_.branches_are_blocks = cut.branches;
    if (table_.expert_pieces != nullptr) Of(shape).*table_.expert_pieces = cut.expert_pieces;
  }

  const ModelHead& head() const override { return table_.head; }
  std::span<const std::string_view> kept_fp32_in_fp16() const override {
    return table_.kept_fp32_in_fp16;
  }

  std::span<const std::string_view> hf_types() const override { return hf_types_; }
  const HfNames& hf_names() const override { return table_.hf_names; }
  ModelShape ReadHf(std::string_view model_type, HfObject& hf) const override {
    const auto relative =
        std::find_if(table_.hf.begin(), table_.hf.end(),
                     [&](const HfRelative<Config>& r) { return r.model_type == model_type; });
    FSDP_CHECK(relative != table_.hf.end()) << model_type;
    Config config = relative->standard;
    for (const FieldRow<Config>& row : table_.rows) {
      if (row.hf_key.empty()) continue;
      FieldValue value = row.get(config);
      if (ReadHfField(row.hf_key, hf, value)) row.set(config, value);
    }
    if (table_.read_hf != nullptr) table_.read_hf(*relative, hf, config);
    for (const HfFeature& feature : table_.hf_features) {
      hf.WantOneOf(feature.key, feature.harmless);
    }
    return ShapeOf(config);
  }
  JsonTree WriteHf(const ModelShape& shape) const override {
    const HfRelative<Config>& relative = RelativeOf(shape);
    JsonTree json = JsonTree::Object({{"architectures", JsonTree::List({relative.architecture})},
                                      {"model_type", relative.model_type}});
    for (const FieldRow<Config>& row : table_.rows) {
      if (row.hf_key.empty()) continue;
      WriteHfField(row.get(Of(shape)), json[row.hf_key]);
    }
    if (table_.write_hf != nullptr) table_.write_hf(relative, Of(shape), json);
    return json;
  }
  std::string_view HfType(const ModelShape& shape) const override {
    return RelativeOf(shape).model_type;
  }

 private:
  static Config& Of(ModelShape& shape) { return *std::any_cast<Config>(&shape.config_); }
  static const Config& Of(const ModelShape& shape) { return *shape.As<Config>(); }
  // ModelShape's constructor would ask for the family while the family is being made.
  ModelShape ShapeOf(const Config& config) const {
    ModelShape shape;
    shape.family_ = this;
    shape.config_ = config;
    return shape;
  }

  const HfRelative<Config>& RelativeOf(const ModelShape& shape) const {
    if (table_.hf.empty()) {
      throw CheckpointError("no model of transformers is a `" + std::string(name()) +
                            "`: this one cannot be exported");
    }
    return table_.relative_of == nullptr ? table_.hf[0] : table_.relative_of(table_.hf, Of(shape));
  }

  FieldValue Get(const ModelShape& shape, size_t field) const override {
    return table_.rows[field].get(Of(shape));
  }
  void Set(ModelShape& shape, size_t field, const FieldValue& value) const override {
    table_.rows[field].set(Of(shape), value);
  }
  bool AreEqual(const ModelShape& a, const ModelShape& b) const override { return Of(a) == Of(b); }

  const FamilyTable<Config> table_;
  std::vector<Field> fields_;
  std::vector<ModelPreset> presets_;
  std::vector<std::string_view> hf_types_;
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_MODELS_TABLE_FAMILY_H_
