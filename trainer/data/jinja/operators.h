// Python's operators and built-in functions on values. Each charges the budget for its work and
// throws Fault where Python raises, or where an integer would need more than 64 bits.
// Tests: tests/trainer/data/jinja/jinja_template_test.cc
#ifndef FSDP_TRAIN_TRAINER_DATA_JINJA_OPERATORS_H_
#define FSDP_TRAIN_TRAINER_DATA_JINJA_OPERATORS_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "trainer/data/jinja/value.h"

namespace fsdp::jinja {

enum class Operator : uint8_t { kAdd, kSub, kMul, kDiv, kFloorDiv, kMod, kPow };
Value Apply(Operator op, const Value& a, const Value& b, Budget& budget);
Value Negate(const Value& a);
Value Positive(const Value& a);

enum class Comparison : uint8_t { kEq, kNe, kLt, kLe, kGt, kGe, kIn, kNotIn };
bool Compare(Comparison op, const Value& a, const Value& b, Budget& budget);
bool Contains(const Value& whole, const Value& part, Budget& budget);

bool Truth(const Value& value);
std::string Str(const Value& value, Budget& budget);
std::string Repr(const Value& value, Budget& budget);
std::string FloatRepr(double value);
int64_t Length(const Value& value);
bool HasLength(const Value& value);
bool CanIterate(const Value& value);
// Keys of a dict, characters of a text. Throws Fault: cannot be iterated.
std::unique_ptr<Cursor> Iterate(const Value& value, Budget& budget);
Values ToList(const Value& value, Budget& budget);

// whole[key]; none where Python raises TypeError, IndexError or KeyError.
std::optional<Value> Subscript(const Value& whole, const Value& key, Budget& budget);
// whole[start:stop:step]; missing values are None.
Value Slice(const Value& whole, const Value& start, const Value& stop, const Value& step,
            Budget& budget);
// Throws Fault: `value` is undefined.
[[noreturn]] void RefuseUndefined(const Value& value);

// HTML's characters replaced, as markupsafe.escape() does; a safe text is as it is.
Value Escape(const Value& value, Budget& budget);

// range(start, stop, step). Throws Fault for more than 100,000 numbers, as jinja2's sandbox does.
Value Range(int64_t start, int64_t stop, int64_t step);

}  // namespace fsdp::jinja

#endif  // FSDP_TRAIN_TRAINER_DATA_JINJA_OPERATORS_H_
