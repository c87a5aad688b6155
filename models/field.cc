#include "models/field.h"

#include <algorithm>
#include <cmath>
#include <sstream>
#include <type_traits>
#include <utility>

#include "trainer/ops/attention_inputs.h"

namespace fsdp {
namespace {

std::string Text(int64_t value) { return std::to_string(value); }
std::string Text(bool value) { return value ? "true" : "false"; }
std::string Text(const std::string& value) { return value; }
std::string Text(double value) {
  std::ostringstream text;
  text << value;
  return text.str();
}
template <typename T>
std::string Text(const std::vector<T>& list) {
  std::string text = "[";
  for (const T element : list) text += (text.size() > 1 ? ", " : "") + Text(element);
  return text + "]";
}

std::string WhyNot(int64_t value, const IntegerRange& range) {
  if (value >= range.min && value <= range.max) return "";
  return "want an integer from " + Text(range.min) + " to " + Text(range.max) + ", got " +
         Text(value);
}

std::string WhyNot(double value, const RealRange& range) {
  const bool inside =
      !(range.at_least && value < *range.at_least) && !(range.above && value <= *range.above) &&
      !(range.at_most && value > *range.at_most) && !(range.below && value >= *range.below);
  if (std::isfinite(value) && inside) return "";
  std::string want;
  const auto bound = [&](const std::optional<double>& at, const char* words) {
    if (at) want += (want.empty() ? " " : " and ") + std::string(words) + Text(*at);
  };
  bound(range.at_least, "of at least ");
  bound(range.above, "above ");
  bound(range.at_most, "of at most ");
  bound(range.below, "below ");
  return "want a number" + want + ", got " + Text(value);
}

}  // namespace

std::string Show(const FieldValue& value, const Field& field) {
  const auto* const map = std::get_if<FieldMap>(&value);
  if (map == nullptr) {
    return std::visit(
        [](const auto& v) -> std::string {
          if constexpr (std::is_same_v<std::decay_t<decltype(v)>, FieldMap>)
            return "";
          else
            return Text(v);
        },
        value);
  }
  std::string text;
  for (const FieldMember& member : std::get<MapRange>(field.range).members) {
    const auto at = map->find(member.name);
    if (at == map->end()) continue;
    text += (text.empty() ? "{" : ", ") + member.name + ": " +
            std::visit([](const auto& v) { return Text(v); }, at->second);
  }
  return text + "}";
}

std::string WhyNot(const FieldValue& value, const Field& field) {
  const auto why = [&](const auto& v) -> std::string {
    using T = std::decay_t<decltype(v)>;
    if constexpr (std::is_same_v<T, int64_t>) return WhyNot(v, std::get<IntegerRange>(field.range));
    if constexpr (std::is_same_v<T, double>) return WhyNot(v, std::get<RealRange>(field.range));
    return "";
  };
  return std::visit(
      [&](const auto& v) -> std::string {
        constexpr bool kIsName = std::is_same_v<std::decay_t<decltype(v)>, std::string>;
        if constexpr (!kIsName && requires { v.front(); }) {
          for (const auto& element : v) {
            if (std::string bad = why(element); !bad.empty()) return bad;
          }
          return "";
        } else {
          return why(v);
        }
      },
      value);
}

void ShapeChecks::Integer(const std::string& field, int64_t value, int64_t max) {
  if (value >= 1 && value <= max) return;
  Add(field, "want an integer from 1 to " + std::to_string(max) + ", got " + std::to_string(value));
}

void ShapeChecks::HeadDim(const std::string& field, int64_t value,
                          const std::vector<std::string>& others) {
  if (value >= 1 && value <= kMaxHeadDim) return;
  Add(field,
      "heads are " + std::to_string(value) + " wide; attention computes 1 to " +
          std::to_string(kMaxHeadDim),
      others);
}

bool ShapeChecks::AreGood(std::initializer_list<std::string_view> fields) const {
  return std::none_of(mistakes_.begin(), mistakes_.end(), [&](const ShapeMistake& mistake) {
    return std::find(fields.begin(), fields.end(), mistake.field) != fields.end();
  });
}

}  // namespace fsdp
