#include "trainer/checkpoint/finite.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "trainer/core/check.h"

namespace fsdp {
namespace {

// Of 16-bit values, whose infinity has the bits `infinity`; a NaN's are above it.
std::optional<size_t> FirstNotBelow(std::span<const uint16_t> values, uint16_t infinity) {
  constexpr uint16_t kMagnitude = 0x7fff;
  const auto first = std::find_if(values.begin(), values.end(),
                                  [infinity](uint16_t v) { return (v & kMagnitude) >= infinity; });
  if (first == values.end()) return std::nullopt;
  return static_cast<size_t>(first - values.begin());
}

}  // namespace

std::optional<size_t> FirstNotFinite(std::span<const float> values) {
  constexpr size_t kBlock = 1024;
  constexpr int32_t kMagnitude = 0x7fffffff, kLargestFinite = 0x7f7fffff;
  for (size_t begin = 0; begin < values.size(); begin += kBlock) {
    const auto block = values.subspan(begin, std::min(kBlock, values.size() - begin));
    int32_t any = 0;  // Negative as soon as one magnitude is above the largest finite one.
    for (const float v : block) {
      any |= kLargestFinite - (std::bit_cast<int32_t>(v) & kMagnitude);
    }
    if (any >= 0) continue;
    const auto first =
        std::find_if_not(block.begin(), block.end(), [](float v) { return std::isfinite(v); });
    return begin + static_cast<size_t>(first - block.begin());
  }
  return std::nullopt;
}

std::optional<size_t> FirstNotFinite(ConstView values) {
  const auto count = static_cast<size_t>(values.NumElements());
  switch (values.dtype) {
    case DType::kFloat32:
      return FirstNotFinite(std::span(values.As<float>(), count));
    case DType::kBFloat16:
      return FirstNotBelow({values.As<uint16_t>(), count}, BFloat16(INFINITY).bits);
    case DType::kFloat16:
      return FirstNotBelow({values.As<uint16_t>(), count}, Float16(INFINITY).bits);
    default:
      return std::nullopt;
  }
}

float FloatAt(ConstView values, int64_t index) {
  switch (values.dtype) {
    case DType::kFloat32:
      return values.As<float>()[index];
    case DType::kBFloat16:
      return static_cast<float>(values.As<BFloat16>()[index]);
    case DType::kFloat16:
      return static_cast<float>(values.As<Float16>()[index]);
    default:
      FSDP_CHECK(false) << Name(values.dtype) << " is no floating type";
  }
}

std::string NotFiniteName(float value) {
  return std::isnan(value) ? "nan" : value < 0 ? "-inf" : "inf";
}

std::string DescribeNotFinite(const std::string& state, const FlatParameter& flat, int64_t element,
                              float value) {
  for (const Placement& p : flat.parameters) {
    if (element < p.offset || element >= p.offset + p.size()) continue;
    return state + " of " + p.name + ": element " + std::to_string(element - p.offset) + " is " +
           NotFiniteName(value);
  }
  return state + " of flat parameter " + flat.name + ": element " + std::to_string(element) +
         ", between two parameters, is " + NotFiniteName(value);
}

std::string DescribeNotFinite(const Parameter& parameter, int64_t begin,
                              std::span<const float> values) {
  const std::optional<size_t> first = FirstNotFinite(values);
  if (!first) return "";
  const SlicePiece piece = SlicePieces(parameter, begin + static_cast<int64_t>(*first), 1).front();
  return piece.slice->name + ": element " + std::to_string(piece.begin) + " is " +
         NotFiniteName(values[*first]);
}

}  // namespace fsdp
