#include "models/family.h"

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

}  // namespace fsdp
