#include "trainer/data/jinja/methods.h"

#include <algorithm>
#include <cmath>

#include "trainer/data/jinja/globals.h"
#include "trainer/data/jinja/operators.h"

namespace fsdp::jinja {
namespace {

using Kind = Value::Kind;

// Methods that Python has and we do not: saying so beats treating them as undefined.
constexpr std::string_view kForeignText[] = {"casefold",    "encode",    "expandtabs",
                                             "format_map",  "isnumeric", "isidentifier",
                                             "isprintable", "maketrans", "translate"};
constexpr std::string_view kForeignNumber[] = {
    "as_integer_ratio", "bit_count", "bit_length", "conjugate", "denominator", "from_bytes",
    "fromhex",          "hex",       "imag",       "numerator", "real",        "to_bytes"};
// Those that the sandbox keeps from templates, because they change a list or dict.
constexpr std::string_view kChangesList[] = {"append", "clear",   "extend", "insert",
                                             "pop",    "reverse", "remove", "sort"};
constexpr std::string_view kChangesDict[] = {"clear", "pop", "popitem", "setdefault", "update"};

template <typename Names>
bool Has(const Names& names, std::string_view name) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

Value Bind(const Value& value, const std::string& name, Function::Body body) {
  return Value::Of(std::shared_ptr<Object>(std::make_shared<Function>(name, value, body)));
}

Value Unsafe(const Value& value, const std::string& name) {
  return Value::Undefined(std::string("the sandbox keeps templates from `") + name + "` of a " +
                          TypeName(value));
}

template <DictView::What what>
Value View(Machine& /*machine*/, const Value& self, Arguments& arguments) {
  const Parameters given("dict.items", arguments, {});
  return Value::Of(std::shared_ptr<Object>(std::make_shared<DictView>(self, what)));
}

Value DictGet(Machine& machine, const Value& self, Arguments& arguments) {
  if (!arguments.named.empty()) throw Fault("`dict.get` takes no named arguments");
  const Parameters given("dict.get", arguments, {"key", "default"}, 1);
  machine.budget().Charge(given[0].extent().weight);
  const Value* found = self.dict().Find(given[0]);
  if (found) return *found;
  return given.Has(1) ? given[1] : Value::None();
}

Value Copy(Machine& /*machine*/, const Value& self, Arguments& arguments) {
  const Parameters given("copy", arguments, {});
  return self;
}

Value SequenceCount(Machine& machine, const Value& self, Arguments& arguments) {
  const Parameters given("count", arguments, {"value"}, 1);
  int64_t count = 0;
  for (const Value& item : ToList(self, machine.budget())) {
    if (Same(item, given[0]) || Compare(Comparison::kEq, item, given[0], machine.budget())) ++count;
  }
  return Value::Int(count);
}

Value SequenceIndex(Machine& machine, const Value& self, Arguments& arguments) {
  const Parameters given("index", arguments, {"value", "start", "stop"}, 1);
  const Value start = given.Has(1) ? given[1] : Value::Int(0);
  const Value stop = given.Has(2) ? given[2] : Value::Int(Length(self));
  const int64_t length = Length(self);
  const auto place = [&](const Value& value) {
    if (!value.IsInteger()) throw Fault("`index` wants integers");
    const int64_t at = value.integer() < 0 ? value.integer() + length : value.integer();
    return std::clamp<int64_t>(at, 0, length);
  };
  const Values items = ToList(self, machine.budget());
  for (int64_t i = place(start); i < place(stop); ++i) {
    const Value& item = items[static_cast<size_t>(i)];
    if (Same(item, given[0]) || Compare(Comparison::kEq, item, given[0], machine.budget())) {
      return Value::Int(i);
    }
  }
  throw Fault("`index` finds no such value");
}

Value IsInteger(Machine& /*machine*/, const Value& self, Arguments& arguments) {
  const Parameters given("is_integer", arguments, {});
  return Value::Bool(std::isfinite(self.number()) && self.number() == std::floor(self.number()));
}

Value OfDict(const Value& value, const std::string& name) {
  if (name == "items") return Bind(value, name, View<DictView::What::kItems>);
  if (name == "keys") return Bind(value, name, View<DictView::What::kKeys>);
  if (name == "values") return Bind(value, name, View<DictView::What::kValues>);
  if (name == "get") return Bind(value, name, DictGet);
  if (name == "copy") return Bind(value, name, Copy);
  if (Has(kChangesDict, name)) return Unsafe(value, name);
  if (name == "fromkeys") throw Fault("`dict.fromkeys` is not among what chat templates use");
  return {};
}

Value OfSequence(const Value& value, const std::string& name) {
  if (name == "count") return Bind(value, name, SequenceCount);
  if (name == "index") return Bind(value, name, SequenceIndex);
  if (!value.Is(Kind::kList)) return {};
  if (name == "copy") return Bind(value, name, Copy);
  return Has(kChangesList, name) ? Unsafe(value, name) : Value();
}

}  // namespace

Value FindAttribute(const Value& value, const std::string& name) {
  if (name.starts_with('_')) return {};  // The sandbox hides all of these; none is an element.
  switch (value.kind()) {
    case Kind::kDict:
      return OfDict(value, name);
    case Kind::kList:
    case Kind::kTuple:
      return OfSequence(value, name);
    case Kind::kText:
      if (const Function::Body method = FindTextMethod(name)) return Bind(value, name, method);
      if (Has(kForeignText, name)) {
        throw Fault("`str." + name + "` is not among what chat templates use");
      }
      return {};
    case Kind::kBool:
    case Kind::kInt:
    case Kind::kFloat:
      if (name == "is_integer" && value.Is(Kind::kFloat)) return Bind(value, name, IsInteger);
      if (Has(kForeignNumber, name)) {
        throw Fault(std::string("`") + TypeName(value) + "." + name +
                    "` is not among what chat templates use");
      }
      return {};
    case Kind::kObject:
      if (dynamic_cast<const RangeObject*>(&value.object())) {
        if (name == "count") return Bind(value, name, SequenceCount);
        if (name == "index") return Bind(value, name, SequenceIndex);
        for (const char* const foreign : {"start", "stop", "step"}) {
          if (name != foreign) continue;
          throw Fault("`range." + name + "` is not among what chat templates use");
        }
      }
      return value.object().Attribute(name);
    default:
      return {};
  }
}

}  // namespace fsdp::jinja
