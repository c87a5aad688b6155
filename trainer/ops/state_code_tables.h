// The tables of state_codes.h, made by the compiler: the CPU's kernels and the GPU's have one copy
// each.
//
// A code is found without a search. The upper 16 bits of a magnitude's fp32 name a bucket, and no
// bucket has more than one magnitude at which the code changes: two of them are 0.007 of 1 apart
// at the least, and a bucket is 0.0039 wide there. A bucket's entry is the code at its begin,
// times 2^16, plus 0xffff less the lower half of the last magnitude that has this code. Adding the
// lower half of a magnitude carries into the code where it is behind that.
// Tests: tests/trainer/ops/state_codes_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPS_STATE_CODE_TABLES_H_
#define FSDP_TRAIN_TRAINER_OPS_STATE_CODE_TABLES_H_

#include <bit>
#include <cstdint>

namespace fsdp {

struct StateCodeTables {
  // Magnitudes below 2^-23 have the code 0, and none is above 1.
  static constexpr int32_t kFirst = 104 << 7, kBuckets = (127 << 7) - kFirst + 1;

  float values[256] = {};              // By code.
  uint32_t entries[2][kBuckets] = {};  // [0] for x >= 0, [1] for x < 0: by bucket.
};

// sign: for values of both signs.
constexpr StateCodeTables MakeStateCodeTables(bool sign) {
  constexpr float kTens[] = {1e-6f, 1e-5f, 1e-4f, 1e-3f, 1e-2f, 1e-1f, 1};
  StateCodeTables tables;
  int count = 1;  // Magnitudes so far; the first is 0.
  for (int i = 0; i < 7; ++i) {
    const int n = (sign ? 1 : 2) << i;
    // Edge j of n parts of [0.1, 1], as torch.linspace computes it: from the nearer end, a product
    // and a sum with one rounding.
    const float step = (1.0f - 0.1f) / static_cast<float>(n);
    const auto edge = [&](int j) {
      const bool lower = j < (n + 1) / 2;
      const double steps = static_cast<double>(step) * (lower ? j : j - n);
      return static_cast<float>(steps + static_cast<double>(lower ? 0.1f : 1.0f));
    };
    for (int j = 0; j < n; ++j) tables.values[count++] = kTens[i] * ((edge(j) + edge(j + 1)) / 2);
  }
  tables.values[count++] = 1;
  for (int negative = 0; negative < 2; ++negative) {
    const int last = negative == 0 ? count - 1 : count - 2;  // -1 has no code.
    int code = 0;
    uint32_t change = 0;  // Bits of the last magnitude with this code; behind it comes the next.
    const auto find_change = [&] {
      if (code == last) {
        change = 0x7fffffffu;
        return;
      }
      // Exact: neighbours differ by fewer than 29 binary digits.
      const double middle = (double{tables.values[code]} + double{tables.values[code + 1]}) / 2;
      const auto near = static_cast<float>(middle);
      change = std::bit_cast<uint32_t>(near);
      // A tie goes to the lower value: of negative ones, to the larger magnitude.
      const bool behind = negative == 0 ? near > middle : near >= middle;
      if (behind) --change;
    };
    find_change();
    for (int32_t b = 0; b < StateCodeTables::kBuckets; ++b) {
      const auto begin = static_cast<uint32_t>(b + StateCodeTables::kFirst) << 16;
      const uint32_t end = begin + 0x10000u;
      const auto base = static_cast<uint32_t>(code) << 16;
      uint32_t low = 0xffffu;
      int changes = 0;
      while (change < end) {
        low = change & 0xffffu;
        ++code, ++changes;
        find_change();
      }
      if (changes > 1) throw "a bucket of two changes";
      tables.entries[negative][b] = base + (0xffffu - low);
    }
  }
  for (int code = 1; sign && code < count - 1; ++code) {
    tables.values[256 - code] = -tables.values[code];
  }
  return tables;
}

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_STATE_CODE_TABLES_H_
