// Common parts of all families' checks of a shape: bounds of fields, and mistakes in words.
// Tests: tests/models/family_test.cc
#ifndef FSDP_TRAIN_MODELS_SHAPE_CHECKS_H_
#define FSDP_TRAIN_MODELS_SHAPE_CHECKS_H_

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace fsdp {

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
};

class ShapeChecks {
 public:
  void Add(const std::string& field, const std::string& message) {
    mistakes_.push_back({field, message});
  }
  // From 1 to `max`.
  void Integer(const std::string& field, int64_t value, int64_t max);
  // Elements of one head: from 1 to the most that the attention op computes.
  void HeadDim(const std::string& field, int64_t value);
  // Whether none of the fields has a mistake yet.
  bool AreGood(std::initializer_list<std::string_view> fields) const;

  std::vector<ShapeMistake> Take() { return std::move(mistakes_); }

 private:
  std::vector<ShapeMistake> mistakes_;
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_MODELS_SHAPE_CHECKS_H_
