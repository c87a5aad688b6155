// Operators of numbers, texts and lists.
// Tests: tests/trainer/data/jinja/jinja_template_test.cc
#include <cmath>
#include <limits>

#include "trainer/data/jinja/format.h"
#include "trainer/data/jinja/operators.h"

namespace fsdp::jinja {
namespace {

using Kind = Value::Kind;

constexpr const char* kSymbols[] = {"+", "-", "*", "/", "//", "%", "**"};
const char* Symbol(Operator op) { return kSymbols[static_cast<size_t>(op)]; }

[[noreturn]] void RefuseTypes(Operator op, const Value& a, const Value& b) {
  throw Fault(std::string("has no `") + Symbol(op) + "` for " + TypeName(a) + " and " +
              TypeName(b));
}

[[noreturn]] void RefuseOverflow(Operator op, int64_t a, int64_t b) {
  throw Fault("integer overflow: " + std::to_string(a) + " " + Symbol(op) + " " +
              std::to_string(b) + " does not fit 64 bits");
}

int64_t FloorDiv(int64_t a, int64_t b) {
  if (a == std::numeric_limits<int64_t>::min() && b == -1) {
    RefuseOverflow(Operator::kFloorDiv, a, b);
  }
  const int64_t quotient = a / b;
  return quotient - (a % b != 0 && (a < 0) != (b < 0) ? 1 : 0);
}

int64_t FloorMod(int64_t a, int64_t b) {
  if (b == -1) return 0;
  const int64_t rest = a % b;
  return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}

int64_t IntegerPower(int64_t base, int64_t exponent) {
  int64_t result = 1;
  if (base == 0 || base == 1) return exponent == 0 ? 1 : base;
  if (base == -1) return exponent % 2 == 0 ? 1 : -1;
  for (int64_t i = 0; i < exponent; ++i) {
    if (__builtin_mul_overflow(result, base, &result)) {
      RefuseOverflow(Operator::kPow, base, exponent);
    }
  }
  return result;
}

Value Integers(Operator op, int64_t a, int64_t b) {
  int64_t result = 0;
  bool overflow = false;
  switch (op) {
    case Operator::kAdd:
      overflow = __builtin_add_overflow(a, b, &result);
      break;
    case Operator::kSub:
      overflow = __builtin_sub_overflow(a, b, &result);
      break;
    case Operator::kMul:
      overflow = __builtin_mul_overflow(a, b, &result);
      break;
    case Operator::kDiv:
      return Value::Float(
          static_cast<double>(static_cast<long double>(a) / static_cast<long double>(b)));
    case Operator::kFloorDiv:
      return Value::Int(FloorDiv(a, b));
    case Operator::kMod:
      return Value::Int(FloorMod(a, b));
    case Operator::kPow:
      if (b < 0) return Value::Float(std::pow(static_cast<double>(a), static_cast<double>(b)));
      return Value::Int(IntegerPower(a, b));
  }
  if (overflow) RefuseOverflow(op, a, b);
  return Value::Int(result);
}

// float_divmod() of CPython.
double FloatMod(double a, double b) {
  double rest = std::fmod(a, b);
  if (rest != 0) {
    if ((b < 0) != (rest < 0)) rest += b;
  } else {
    rest = std::copysign(0.0, b);
  }
  return rest;
}
double FloatFloorDiv(double a, double b) {
  double rest = std::fmod(a, b), quotient = (a - rest) / b;
  if (rest != 0 && (b < 0) != (rest < 0)) quotient -= 1;
  if (quotient == 0) return std::copysign(0.0, a / b);
  const double floored = std::floor(quotient);
  return quotient - floored > 0.5 ? floored + 1 : floored;
}

double FloatPower(double a, double b) {
  if (a < 0 && std::isfinite(a) && std::isfinite(b) && b != std::floor(b)) {
    throw Fault("a power that is a complex number");
  }
  const double power = std::pow(a, b);
  if (std::isinf(power) && std::isfinite(a) && std::isfinite(b)) {
    throw Fault("a power that is too large");
  }
  return power;
}

Value Floats(Operator op, double a, double b) {
  switch (op) {
    case Operator::kAdd:
      return Value::Float(a + b);
    case Operator::kSub:
      return Value::Float(a - b);
    case Operator::kMul:
      return Value::Float(a * b);
    case Operator::kDiv:
      return Value::Float(a / b);
    case Operator::kFloorDiv:
      return Value::Float(FloatFloorDiv(a, b));
    case Operator::kMod:
      return Value::Float(FloatMod(a, b));
    case Operator::kPow:
      return Value::Float(FloatPower(a, b));
  }
  return {};
}

Value Numbers(Operator op, const Value& a, const Value& b) {
  const bool divides = op == Operator::kDiv || op == Operator::kFloorDiv || op == Operator::kMod;
  if ((divides && b.number() == 0) || (op == Operator::kPow && a.number() == 0 && b.number() < 0)) {
    throw Fault("divides by zero");
  }
  if (a.IsInteger() && b.IsInteger()) return Integers(op, a.integer(), b.integer());
  return Floats(op, a.number(), b.number());
}

Value Repeat(const Value& what, int64_t times, Budget& budget) {
  times = std::max<int64_t>(times, 0);
  if (what.IsText()) {
    const auto size = static_cast<int64_t>(what.text().size());
    int64_t bytes;
    if (__builtin_mul_overflow(size, times, &bytes)) bytes = std::numeric_limits<int64_t>::max();
    budget.Text(static_cast<size_t>(bytes));
    std::string text;
    text.reserve(static_cast<size_t>(bytes));
    for (int64_t i = 0; size > 0 && i < times; ++i) text += what.text();
    return Value::Text(std::move(text), what.safe());
  }
  const auto size = static_cast<int64_t>(what.items().size());
  int64_t count;
  if (__builtin_mul_overflow(size, times, &count)) count = std::numeric_limits<int64_t>::max() / 2;
  budget.Charge(count);
  Values items;
  items.reserve(static_cast<size_t>(count));
  for (int64_t i = 0; size > 0 && i < times; ++i) {
    items.insert(items.end(), what.items().begin(), what.items().end());
  }
  return what.Is(Kind::kList) ? Value::List(std::move(items)) : Value::Tuple(std::move(items));
}

Value Join(const Value& a, const Value& b, Budget& budget) {
  if (a.IsText()) {
    const bool safe = a.safe() || b.safe();  // Markup escapes what it is joined with.
    const Value& left = safe ? Escape(a, budget) : a;
    const Value& right = safe ? Escape(b, budget) : b;
    budget.Text(left.text().size() + right.text().size());
    return Value::Text(left.text() + right.text(), safe);
  }
  budget.Charge(static_cast<int64_t>(a.items().size() + b.items().size()));
  Values items = a.items();
  items.insert(items.end(), b.items().begin(), b.items().end());
  return a.Is(Kind::kList) ? Value::List(std::move(items)) : Value::Tuple(std::move(items));
}

}  // namespace

Value Apply(Operator op, const Value& a, const Value& b, Budget& budget) {
  if (op == Operator::kMod && a.IsText()) return PercentFormat(a, b, budget);
  for (const Value* value : {&a, &b}) {
    if (value->IsUndefined()) RefuseUndefined(*value);
  }
  if (a.IsNumber() && b.IsNumber()) return Numbers(op, a, b);
  if (op == Operator::kAdd && a.kind() == b.kind() && (a.IsText() || a.IsSequence())) {
    return Join(a, b, budget);
  }
  if (op == Operator::kMul) {
    if ((a.IsText() || a.IsSequence()) && b.IsInteger()) return Repeat(a, b.integer(), budget);
    if ((b.IsText() || b.IsSequence()) && a.IsInteger()) return Repeat(b, a.integer(), budget);
  }
  RefuseTypes(op, a, b);
}

Value Negate(const Value& a) {
  if (a.IsUndefined()) RefuseUndefined(a);
  if (a.Is(Kind::kFloat)) return Value::Float(-a.number());
  if (a.IsInteger()) return Integers(Operator::kSub, 0, a.integer());
  throw Fault(std::string("has no `-` for ") + TypeName(a));
}

Value Positive(const Value& a) {
  if (a.IsUndefined()) RefuseUndefined(a);
  if (a.Is(Kind::kFloat)) return a;
  if (a.IsInteger()) return Value::Int(a.integer());
  throw Fault(std::string("has no `+` for ") + TypeName(a));
}

}  // namespace fsdp::jinja
