#include "trainer/data/check_row.h"

#include <algorithm>
#include <cstddef>

#include "trainer/core/errors.h"
#include "trainer/core/units.h"

namespace fsdp {
namespace {

// Loops that vectorise; a negative number becomes a large one.
bool TokensAreRight(const TokenRow& row, uint32_t vocab_size) {
  uint32_t largest = 0;
  for (const int32_t token : row.tokens) largest = std::max(largest, static_cast<uint32_t>(token));
  for (size_t i = 0; i < row.targets.size(); ++i) {
    const uint32_t target = row.weights[i] == 0 ? 0 : static_cast<uint32_t>(row.targets[i]);
    largest = std::max(largest, target);
  }
  return largest < vocab_size;
}

bool IsRight(const TokenRow& row, const RowLimits& limits, size_t i) {
  const int64_t position = row.positions[i];
  const bool next = i > 0 && position == int64_t{row.positions[i - 1]} + 1;
  if (limits.cache_capacity == 0) return position == 0 || next;
  return position >= 0 && position < limits.cache_capacity && (i == 0 || next);
}

bool PositionsAreRight(const TokenRow& row, const RowLimits& limits) {
  const std::span<const int32_t> p = row.positions;
  if (p.empty()) return true;
  if (limits.cache_capacity > 0) {
    for (size_t i = 0; i < p.size(); ++i) {
      if (!IsRight(row, limits, i)) return false;
    }
    return true;
  }
  uint32_t wrong = static_cast<uint32_t>(p[0]);
  for (size_t i = 1; i < p.size(); ++i) {
    const uint32_t step = static_cast<uint32_t>(p[i]) - static_cast<uint32_t>(p[i - 1]);
    wrong |= p[i] == 0 ? 0 : step ^ 1;
  }
  return wrong == 0;
}

[[noreturn]] void Refuse(const TokenPlace& place, const std::string& what) {
  throw DataError("data: " + place.where + ": " + what +
                  (place.sample.empty() ? "" : " (" + place.sample + ")"));
}

}  // namespace

void CheckRow(const TokenRow& row, const RowLimits& limits, const PlaceOfToken& place) {
  const int32_t vocab = limits.vocab_size;
  if (!TokensAreRight(row, static_cast<uint32_t>(vocab))) {
    const auto check = [&](int32_t token, size_t at) {
      if (token >= 0 && token < vocab) return;
      const TokenPlace found = place(static_cast<int64_t>(at));
      Refuse(found, "token " + std::to_string(token) + " is outside the vocabulary of " +
                        Counted(vocab, "token") + (found.cure.empty() ? "" : ": " + found.cure));
    };
    for (size_t i = 0; i < row.tokens.size(); ++i) check(row.tokens[i], i);
    for (size_t i = 0; i < row.targets.size(); ++i) {
      if (row.weights[i] != 0) check(row.targets[i], i + 1);
    }
  }
  if (!PositionsAreRight(row, limits)) {
    for (size_t i = 0; i < row.positions.size(); ++i) {
      if (IsRight(row, limits, i)) continue;
      Refuse(place(static_cast<int64_t>(i)),
             "position " + std::to_string(row.positions[i]) +
                 (limits.cache_capacity == 0
                      ? " is neither 0 nor one more than before"
                      : " is not the next of a cache of " + std::to_string(limits.cache_capacity)));
    }
  }
}

}  // namespace fsdp
