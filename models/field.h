// The fields of a model's shape, as a family declares them: each in one row, from which follow the
// recipe's key, its documentation, the shape in a checkpoint and the key in config.json. And the
// checks of a shape that families share: bounds of fields, and mistakes in words.
// Tests: tests/models/family_test.cc
#ifndef FSDP_TRAIN_MODELS_FIELD_H_
#define FSDP_TRAIN_MODELS_FIELD_H_

#include <cstdint>
#include <initializer_list>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace fsdp {

// The members of a field that is a map, by name: those that are given.
using FieldScalar = std::variant<int64_t, double, bool, std::string>;
using FieldMap = std::map<std::string, FieldScalar, std::less<>>;

using FieldValue = std::variant<int64_t, double, bool, std::vector<int64_t>, std::vector<double>,
                                FieldMap, std::string>;

// Values by the names of their fields.
using FieldValues = std::map<std::string, FieldValue, std::less<>>;

// The values that a field may have, or each element of a list.
struct IntegerRange {
  int64_t min = 1, max = 1;
};
struct RealRange {
  std::optional<double> at_least = std::nullopt;
  std::optional<double> above = std::nullopt;
  std::optional<double> at_most = std::nullopt;
  std::optional<double> below = std::nullopt;
};
struct BooleanRange {};
// One of these names. `later`: names that other programs know and this version does not.
struct NameRange {
  std::vector<std::string> names;
  std::vector<std::string> later = {};
};

// A member of a field that is a map: null where it is not given.
struct FieldMember {
  std::string name;
  std::variant<IntegerRange, RealRange, BooleanRange, NameRange> range;
  std::string text;  // For docs/recipe.md, with its full stop.
  std::vector<std::string> elsewhere = {};
};
// The first member is a name that decides which others there are: it is always given.
struct MapRange {
  std::vector<FieldMember> members;
  FieldMap standard;
};

struct Field {
  std::string name;  // In recipes.
  std::variant<IntegerRange, RealRange, BooleanRange, MapRange, NameRange> range;
  bool is_list = false;
  std::string text;      // The description, without a full stop: "Width of the residual stream".
  std::string standard;  // Its value where nobody gives one: "768", or in words.
  std::vector<std::string> elsewhere = {};  // Names in other programs, for hints.
  // A dropout says how a model is trained, and is no part of its shape.
  bool is_dropout = false;
  // No tensor's shape follows from it, and files that lack it are good: a recipe may give another
  // value than the weights that a run begins with.
  bool is_free = false;
  // Time and memory alone follow from it: a free field that a resume may change, too.
  bool is_tuning = false;
};

// As a recipe shows it: "768", "[1, 2]", "{type: linear, factor: 8}" in the order of `range`.
std::string Show(const FieldValue& value, const Field& field);

// Says what is wrong with a value: "want an integer from 1 to 16, got 17"; empty: nothing. The
// family judges maps. A name is always one of its field's.
std::string WhyNot(const FieldValue& value, const Field& field);

// Upper bounds of the fields: far above any machine, and products of them fit in 64 bits.
inline constexpr int64_t kMaxHiddenSize = int64_t{1} << 20;
inline constexpr int64_t kMaxIntermediateSize = int64_t{1} << 22;
inline constexpr int64_t kMaxHiddenLayers = int64_t{1} << 10;  // The deepest published have 1,000.
inline constexpr int64_t kMaxHeads = int64_t{1} << 14;
inline constexpr int64_t kMaxVocabSize = int64_t{1} << 24;
inline constexpr int64_t kMaxPositions = int64_t{1} << 24;

struct ShapeMistake {
  std::string field;  // A member of the family's config, with its dots.
  std::string message;
  std::vector<std::string> others = {};  // Further fields that the rule reads.
};

class ShapeChecks {
 public:
  void Add(const std::string& field, const std::string& message,
           const std::vector<std::string>& others = {}) {
    mistakes_.push_back({field, message, others});
  }
  // From 1 to `max`.
  void Integer(const std::string& field, int64_t value, int64_t max);
  // Elements of one head: from 1 to the most that the attention op computes.
  void HeadDim(const std::string& field, int64_t value,
               const std::vector<std::string>& others = {});
  // Whether none of the fields has a mistake yet.
  bool AreGood(std::initializer_list<std::string_view> fields) const;

  std::vector<ShapeMistake> Take() { return std::move(mistakes_); }

 private:
  std::vector<ShapeMistake> mistakes_;
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_MODELS_FIELD_H_
