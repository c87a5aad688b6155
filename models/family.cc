#include "models/family.h"

#include <type_traits>

#include "models/table_family.h"
#include "trainer/core/check.h"

namespace fsdp {

const Field* ModelFamily::Find(std::string_view field) const {
  for (const Field& f : fields()) {
    if (f.name == field) return &f;
  }
  return nullptr;
}

std::optional<FieldValue> ModelShape::Find(std::string_view field) const {
  const Field* const found = family().Find(field);
  if (found == nullptr) return std::nullopt;
  return family().Get(*this, static_cast<size_t>(found - family().fields().data()));
}

void ModelShape::Set(std::string_view field, const FieldValue& value) {
  const Field* const found = family().Find(field);
  FSDP_CHECK(found != nullptr) << "no field " << field;
  family().Set(*this, static_cast<size_t>(found - family().fields().data()), value);
}

bool ModelShape::operator==(const ModelShape& other) const {
  if (family_ != other.family_) return false;
  return family_ == nullptr || family_->AreEqual(*this, other);
}

bool ReadHfField(const std::string& key, HfObject& hf, FieldValue& value) {
  const auto json = hf.Find(key);
  if (!json) return false;
  const auto read = [](const JsonValue& from, auto& to) {
    using T = std::decay_t<decltype(to)>;
    if constexpr (std::is_same_v<T, int64_t>) to = from.Integer();
    if constexpr (std::is_same_v<T, double>) to = from.Number();
    if constexpr (std::is_same_v<T, bool>) to = from.Boolean();
  };
  std::visit(
      [&](auto& to) {
        if constexpr (requires { to.emplace_back(); }) {
          to.clear();
          for (const JsonValue& element : json->Elements()) read(element, to.emplace_back());
        } else {
          read(*json, to);
        }
      },
      value);
  return true;
}

void WriteHfField(const FieldValue& value, JsonTree& json) {
  std::visit(
      [&](const auto& v) {
        if constexpr (!std::is_same_v<std::decay_t<decltype(v)>, FieldMap>) json = v;
      },
      value);
}

}  // namespace fsdp
