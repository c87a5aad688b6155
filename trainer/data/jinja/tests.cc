// jinja2's tests, what stands behind `is`.
// Tests: tests/trainer/data/jinja/jinja_template_test.cc
#include <algorithm>
#include <cmath>
#include <iterator>

#include "trainer/data/jinja/filters.h"
#include "trainer/data/jinja/machine.h"
#include "trainer/data/jinja/objects.h"
#include "trainer/data/jinja/operators.h"
#include "trainer/data/jinja/python_text.h"

namespace fsdp::jinja {
namespace {

using Kind = Value::Kind;

// A test of the value alone.
template <bool (*holds)(const Value&)>
bool Alone(Machine& /*machine*/, const Value& value, Arguments& arguments) {
  const Parameters given("is", arguments, {});
  return holds(value);
}

template <Comparison op>
bool Compared(Machine& machine, const Value& value, Arguments& arguments) {
  const Parameters given("is", arguments, {"other"}, 1);
  return Compare(op, value, given[0], machine.budget());
}

bool Rest(Machine& machine, const Value& value, const Value& by, const Value& want) {
  const Value rest = Apply(Operator::kMod, value, by, machine.budget());
  return Compare(Comparison::kEq, rest, want, machine.budget());
}
bool Odd(Machine& machine, const Value& value, Arguments& arguments) {
  const Parameters given("odd", arguments, {});
  return Rest(machine, value, Value::Int(2), Value::Int(1));
}
bool Even(Machine& machine, const Value& value, Arguments& arguments) {
  const Parameters given("even", arguments, {});
  return Rest(machine, value, Value::Int(2), Value::Int(0));
}
bool DivisibleBy(Machine& machine, const Value& value, Arguments& arguments) {
  const Parameters given("divisibleby", arguments, {"num"}, 1);
  return Rest(machine, value, given[0], Value::Int(0));
}

template <bool (*is)(std::string_view)>
bool Cased(Machine& machine, const Value& value, Arguments& arguments) {
  const Parameters given("is", arguments, {});
  return is(Str(value, machine.budget()));
}

bool SameAs(Machine& /*machine*/, const Value& value, Arguments& arguments) {
  const Parameters given("sameas", arguments, {"other"}, 1);
  if (value.IsText() && given[0].IsText() && value.text() == given[0].text() &&
      value.address() != given[0].address()) {
    throw Fault("`sameas` of equal texts: Python does not say whether they are the same");
  }
  return Same(value, given[0]);
}

template <bool filters>
bool Named(Machine& machine, const Value& value, Arguments& arguments) {
  const Parameters given("filter", arguments, {});
  if (!value.IsText()) {
    Hash(value);  // Refuses what cannot be looked for.
    return false;
  }
  machine.budget().Charge();
  return filters ? FindFilter(value.text()) || IsForeignFilter(value.text())
                 : FindTest(value.text()) != nullptr;
}

bool IsDefined(const Value& value) { return !value.IsUndefined(); }
bool IsUndefined(const Value& value) { return value.IsUndefined(); }
bool IsNone(const Value& value) { return value.IsNone(); }
bool IsBoolean(const Value& value) { return value.Is(Kind::kBool); }
bool IsTrue(const Value& value) { return value.IsTrue(); }
bool IsFalse(const Value& value) { return value.Is(Kind::kBool) && !value.IsTrue(); }
bool IsInteger(const Value& value) { return value.Is(Kind::kInt); }
bool IsFloat(const Value& value) { return value.Is(Kind::kFloat); }
bool IsNumber(const Value& value) { return value.IsNumber(); }
bool IsString(const Value& value) { return value.IsText(); }
bool IsMapping(const Value& value) { return value.IsDict(); }
bool IsEscaped(const Value& value) { return value.IsText() && value.safe(); }
bool IsSequence(const Value& value) {
  if (value.Is(Kind::kObject)) return dynamic_cast<const RangeObject*>(&value.object()) != nullptr;
  return value.IsUndefined() || value.IsText() || value.IsSequence() || value.IsDict();
}
bool IsCallable(const Value& value) {
  return value.IsUndefined() || (value.Is(Kind::kObject) && value.object().callable());
}

constexpr Test kTests[] = {
    {"!=", Compared<Comparison::kNe>},
    {"<", Compared<Comparison::kLt>},
    {"<=", Compared<Comparison::kLe>},
    {"==", Compared<Comparison::kEq>},
    {">", Compared<Comparison::kGt>},
    {">=", Compared<Comparison::kGe>},
    {"boolean", Alone<IsBoolean>},
    {"callable", Alone<IsCallable>},
    {"defined", Alone<IsDefined>},
    {"divisibleby", DivisibleBy},
    {"eq", Compared<Comparison::kEq>},
    {"equalto", Compared<Comparison::kEq>},
    {"escaped", Alone<IsEscaped>},
    {"even", Even},
    {"false", Alone<IsFalse>},
    {"filter", Named<true>},
    {"float", Alone<IsFloat>},
    {"ge", Compared<Comparison::kGe>},
    {"greaterthan", Compared<Comparison::kGt>},
    {"gt", Compared<Comparison::kGt>},
    {"in", Compared<Comparison::kIn>},
    {"integer", Alone<IsInteger>},
    {"iterable", Alone<CanIterate>},
    {"le", Compared<Comparison::kLe>},
    {"lessthan", Compared<Comparison::kLt>},
    {"lower", Cased<IsLower>},
    {"lt", Compared<Comparison::kLt>},
    {"mapping", Alone<IsMapping>},
    {"ne", Compared<Comparison::kNe>},
    {"none", Alone<IsNone>},
    {"number", Alone<IsNumber>},
    {"odd", Odd},
    {"sameas", SameAs},
    {"sequence", Alone<IsSequence>},
    {"string", Alone<IsString>},
    {"test", Named<false>},
    {"true", Alone<IsTrue>},
    {"undefined", Alone<IsUndefined>},
    {"upper", Cased<IsUpper>},
};

}  // namespace

const Test* FindTest(std::string_view name) {
  const auto* const found = std::find_if(std::begin(kTests), std::end(kTests),
                                         [&](const Test& test) { return test.name == name; });
  return found == std::end(kTests) ? nullptr : found;
}

}  // namespace fsdp::jinja
