#include "trainer/ops/state_codes.h"

#include <algorithm>
#include <bit>
#include <cstddef>

namespace fsdp {

constinit const StateCodeTables kSignedCodes = MakeStateCodeTables(true);
constinit const StateCodeTables kUnsignedCodes = MakeStateCodeTables(false);

uint8_t EncodeQuotient(const StateCodeTables& tables, float quotient) {
  using T = StateCodeTables;
  const auto bits = std::bit_cast<uint32_t>(quotient);
  const bool negative = bits >> 31 != 0;
  const auto bucket = static_cast<int32_t>(bits << 1 >> 17) - T::kFirst;
  const uint32_t entry = tables.entries[negative][std::clamp(bucket, 0, T::kBuckets - 1)];
  const uint32_t code = (entry + (bits & 0xffffu)) >> 16;
  return static_cast<uint8_t>(negative ? 0 - code : code);
}

float EncodeBlock(const StateCodeTables& tables, std::span<const float> x, uint8_t* codes) {
  uint32_t largest = 0;
  for (const float value : x) largest = std::max(largest, std::bit_cast<uint32_t>(value) << 1 >> 1);
  const auto absmax = std::bit_cast<float>(largest);
  for (size_t i = 0; i < x.size(); ++i) {
    codes[i] = EncodeQuotient(tables, largest == 0 ? 0 : x[i] / absmax);
    if (&tables == &kUnsignedCodes && x[i] > 0 && codes[i] == 0) codes[i] = 1;
  }
  return absmax;
}

void DecodeBlock(const StateCodeTables& tables, const uint8_t* codes, float absmax,
                 std::span<float> x) {
  for (size_t i = 0; i < x.size(); ++i) x[i] = tables.values[codes[i]] * absmax;
}

}  // namespace fsdp
