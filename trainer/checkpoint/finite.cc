#include "trainer/checkpoint/finite.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "trainer/core/check.h"

namespace fsdp {
namespace {

// By bits: `infinity` are those of a positive one, a NaN's are above them, and the highest is the
// sign. In blocks and of plain numbers, so that the compiler makes vectors of them: gcc 12 does not
// of structs.
template <typename Bits, typename T>
std::optional<size_t> FirstFrom(Bits infinity, std::span<const T> values) {
  constexpr size_t kBlock = 1024;
  constexpr Bits kMagnitude = std::numeric_limits<Bits>::max();
  const auto above = [infinity](T v) {  // Negative where it is not finite.
    return static_cast<Bits>(infinity - 1 - (std::bit_cast<Bits>(v) & kMagnitude));
  };
  for (size_t begin = 0; begin < values.size(); begin += kBlock) {
    const auto block = values.subspan(begin, std::min(kBlock, values.size() - begin));
    Bits any = 0;
    for (const T v : block) any = static_cast<Bits>(any | above(v));
    if (any >= 0) continue;
    const auto first = std::find_if(block.begin(), block.end(), [&](T v) { return above(v) < 0; });
    return begin + static_cast<size_t>(first - block.begin());
  }
  return std::nullopt;
}

}  // namespace

std::optional<size_t> FirstNotFinite(std::span<const float> values) {
  return FirstFrom(std::bit_cast<int32_t>(INFINITY), values);
}

std::optional<size_t> FirstNotFinite(ConstView values) {
  const auto count = static_cast<size_t>(values.NumElements());
  switch (values.dtype) {
    case DType::kFloat32:
      return FirstNotFinite(std::span(values.As<float>(), count));
    case DType::kBFloat16:
      return FirstFrom(static_cast<int16_t>(BFloat16(INFINITY).bits),
                       std::span(values.As<int16_t>(), count));
    case DType::kFloat16:
      return FirstFrom(static_cast<int16_t>(Float16(INFINITY).bits),
                       std::span(values.As<int16_t>(), count));
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
  return state + " of unit " + flat.name + ": element " + std::to_string(element) +
         ", between two parameters, is " + NotFiniteName(value);
}

std::string DescribeNotFinite(const std::string& state, const FlatParameter& flat, int64_t begin,
                              ConstView shard, const SpillMemory* spill) {
  std::string wrong;
  const auto look = [&](ConstView values) {
    if (!wrong.empty()) return;
    if (const std::optional<size_t> first = FirstNotFinite(values)) {
      const auto at = static_cast<int64_t>(*first);
      wrong = DescribeNotFinite(state, flat, begin + at, FloatAt(values, at));
    }
    begin += values.NumElements();
  };
  if (spill != nullptr && spill->Holds(shard)) {
    spill->ReadInOrder(shard, look);
  } else {
    look(shard);
  }
  return wrong;
}

std::string DescribeNotFinite(const Parameter& parameter, int64_t begin,
                              std::span<const float> values) {
  const std::optional<size_t> first = FirstNotFinite(values);
  if (!first) return "";
  const SlicePiece piece = SlicePieces(parameter, begin + static_cast<int64_t>(*first), 1).front();
  return piece.slice->name + ": element " + std::to_string(piece.begin) + " is " +
         NotFiniteName(values[*first]);
}

std::string DescribeNotFinite(const std::string& tensor, int64_t begin, ConstView values) {
  const std::optional<size_t> first = FirstNotFinite(values);
  if (!first) return "";
  const auto index = static_cast<int64_t>(*first);
  return tensor + ": element " + std::to_string(begin + index) + " is " +
         NotFiniteName(FloatAt(values, index));
}

}  // namespace fsdp
