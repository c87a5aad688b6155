#include "models/shape_checks.h"

#include <cmath>

namespace fsdp {

bool ShapeChecks::Integer(const std::string& field, int64_t value, int64_t max) {
  if (value >= 1 && value <= max) return true;
  Add(field, "want an integer from 1 to " + std::to_string(max) + ", got " + std::to_string(value));
  return false;
}

bool ShapeChecks::HeadDim(const std::string& field, int64_t value) {
  if (value >= 1 && value <= kMaxHeadDim) return true;
  Add(field, "heads are " + std::to_string(value) + " wide; attention computes 1 to " +
                 std::to_string(kMaxHeadDim));
  return false;
}

void ShapeChecks::AtLeastZero(const std::string& field, double value) {
  if (std::isfinite(value) && value >= 0) return;
  Add(field, "want a number of at least 0, got " + std::to_string(value));
}

void ShapeChecks::Share(const std::string& field, double value) {
  if (value >= 0 && value < 1) return;
  Add(field, "want a number of at least 0 and below 1, got " + std::to_string(value));
}

}  // namespace fsdp
