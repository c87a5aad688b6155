#include "models/shape_checks.h"

#include <algorithm>

#include "trainer/ops/attention_inputs.h"

namespace fsdp {

void ShapeChecks::Integer(const std::string& field, int64_t value, int64_t max) {
  if (value >= 1 && value <= max) return;
  Add(field, "want an integer from 1 to " + std::to_string(max) + ", got " + std::to_string(value));
}

void ShapeChecks::HeadDim(const std::string& field, int64_t value) {
  if (value >= 1 && value <= kMaxHeadDim) return;
  Add(field, "heads are " + std::to_string(value) + " wide; attention computes 1 to " +
                 std::to_string(kMaxHeadDim));
}

bool ShapeChecks::AreGood(std::initializer_list<std::string_view> fields) const {
  return std::none_of(mistakes_.begin(), mistakes_.end(), [&](const ShapeMistake& mistake) {
    return std::find(fields.begin(), fields.end(), mistake.field) != fields.end();
  });
}

}  // namespace fsdp
