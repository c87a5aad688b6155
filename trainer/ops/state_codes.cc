#include "trainer/ops/state_codes.h"

#include <algorithm>
#include <bit>
#include <cstddef>

namespace fsdp {

constinit const StateCodeTables kSignedCodes = MakeStateCodeTables(true);
constinit const StateCodeTables kUnsignedCodes = MakeStateCodeTables(false);

float EncodeBlock(const StateCodeTables& tables, std::span<const float> x, uint8_t* codes) {
  using T = StateCodeTables;
  uint32_t largest = 0;
  for (const float value : x) largest = std::max(largest, std::bit_cast<uint32_t>(value) << 1 >> 1);
  const auto absmax = std::bit_cast<float>(largest);
  const uint32_t least = &tables == &kUnsignedCodes ? 1 : 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const auto bits = std::bit_cast<uint32_t>(largest == 0 ? 0 : x[i] / absmax);
    const bool negative = bits >> 31 != 0;
    const auto bucket = static_cast<int32_t>(bits << 1 >> 17) - T::kFirst;
    const uint32_t entry = tables.entries[negative][std::clamp(bucket, 0, T::kBuckets - 1)];
    uint32_t code = (entry + (bits & 0xffffu)) >> 16;
    if (x[i] > 0) code = std::max(code, least);
    codes[i] = static_cast<uint8_t>(negative ? 0 - code : code);
  }
  return absmax;
}

void DecodeBlock(const StateCodeTables& tables, const uint8_t* codes, float absmax,
                 std::span<float> x) {
  for (size_t i = 0; i < x.size(); ++i) x[i] = tables.values[codes[i]] * absmax;
}

}  // namespace fsdp
