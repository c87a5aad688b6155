// Expressions.
// Tests: tests/trainer/data/jinja/jinja_template_test.cc
#include "trainer/data/jinja/filters.h"
#include "trainer/data/jinja/machine.h"
#include "trainer/data/jinja/methods.h"
#include "trainer/data/jinja/python_text.h"

namespace fsdp::jinja {

using Kind = Expr::Kind;

Value Machine::Evaluate(const Expr& expr) {
  budget_.Charge();
  switch (expr.kind) {
    case Kind::kConstant:
      return expr.constant;
    case Kind::kName:
      return Load(expr);
    default:
      break;
  }
  const Depth depth(*this);
  return EvaluateParts(expr);
}

Value Machine::Load(const Expr& expr) {
  const Value& value = Slot(expr.variable);
  if (!value.Is(Value::Kind::kMissing)) return value;
  line_ = expr.line;
  if (ScopeOf(expr.variable).closed) {
    throw Fault("a macro uses `" + expr.name + "` behind the loop or block that it is of");
  }
  std::string why = "`" + expr.name + "` is undefined";
  if (expr.name == "strftime_now") {
    why += ": the template asks for the date, which is given by `data.train.date`";
  }
  return Value::Undefined(std::move(why));
}

Value Machine::EvaluateParts(const Expr& expr) {
  switch (expr.kind) {
    case Kind::kList:
    case Kind::kTuple: {
      Values items;
      for (const ExprPtr& part : expr.parts) items.push_back(Evaluate(*part));
      line_ = expr.line;
      return expr.kind == Kind::kList ? Value::List(std::move(items))
                                      : Value::Tuple(std::move(items));
    }
    case Kind::kDict: {
      Dict dict;
      for (size_t i = 0; i < expr.parts.size(); i += 2) {
        const Value key = Evaluate(*expr.parts[i]);
        Value value = Evaluate(*expr.parts[i + 1]);
        line_ = expr.line;
        dict.Set(key, std::move(value));
      }
      return Value::Of(std::move(dict));
    }
    case Kind::kConcat:
      return Concatenate(expr);
    case Kind::kAttribute: {
      const Value whole = Evaluate(*expr.parts[0]);
      line_ = expr.line;
      return Attribute(whole, expr.name);
    }
    case Kind::kElement: {
      const Value whole = Evaluate(*expr.parts[0]);
      const Value key = Evaluate(*expr.parts[1]);
      line_ = expr.line;
      return Element(whole, key);
    }
    case Kind::kSlice:
      return SliceOf(expr);
    case Kind::kCall:
      return EvaluateCall(expr);
    case Kind::kFilter:
      return Filtered(expr);
    case Kind::kTest:
      return Tested(expr);
    case Kind::kNot:
      return Value::Bool(!Truth(Evaluate(*expr.parts[0])));
    case Kind::kNegative:
    case Kind::kPositive: {
      const Value value = Evaluate(*expr.parts[0]);
      line_ = expr.line;
      return expr.kind == Kind::kNegative ? Negate(value) : Positive(value);
    }
    case Kind::kBinary: {
      const Value left = Evaluate(*expr.parts[0]);
      const Value right = Evaluate(*expr.parts[1]);
      line_ = expr.line;
      return Apply(expr.op, left, right, budget_);
    }
    case Kind::kAnd:
    case Kind::kOr: {
      Value left = Evaluate(*expr.parts[0]);
      if (Truth(left) == (expr.kind == Kind::kOr)) return left;
      return Evaluate(*expr.parts[1]);
    }
    case Kind::kCompare:
      return CompareAll(expr);
    case Kind::kCondition:
      if (Truth(Evaluate(*expr.parts[0]))) return Evaluate(*expr.parts[1]);
      if (expr.parts[2]) return Evaluate(*expr.parts[2]);
      return Value::Undefined("the condition is false, and there is no else");
    default:
      throw Fault("an expression that has no value");
  }
}

Value Machine::Concatenate(const Expr& expr) {
  std::string text;
  for (const ExprPtr& part : expr.parts) {
    const Value value = Evaluate(*part);
    line_ = expr.line;
    const std::string next = Str(value, budget_);
    budget_.CheckText(text.size() + next.size());
    budget_.Charge(static_cast<int64_t>(next.size() / 32));
    text += next;
  }
  return Value::Text(std::move(text));
}

Value Machine::CompareAll(const Expr& expr) {
  Value left = Evaluate(*expr.parts[0]);
  for (size_t i = 0; i < expr.comparisons.size(); ++i) {
    Value right = Evaluate(*expr.parts[i + 1]);
    line_ = expr.line;
    if (!Compare(expr.comparisons[i], left, right, budget_)) return Value::Bool(false);
    left = std::move(right);
  }
  return Value::Bool(true);
}

Value Machine::SliceOf(const Expr& expr) {
  const Value whole = Evaluate(*expr.parts[0]);
  Value bounds[3];
  for (size_t i = 0; i < 3; ++i) {
    bounds[i] = expr.parts[i + 1] ? Evaluate(*expr.parts[i + 1]) : Value::None();
  }
  line_ = expr.line;
  return Slice(whole, bounds[0], bounds[1], bounds[2], budget_);
}

Arguments Machine::EvaluateArguments(const CallArguments& call) {
  Arguments arguments;
  for (const ExprPtr& given : call.positional) arguments.positional.push_back(Evaluate(*given));
  for (const auto& [name, given] : call.named) arguments.named.emplace_back(name, Evaluate(*given));
  if (call.rest) {
    for (Value& item : ToList(Evaluate(*call.rest), budget_)) {
      arguments.positional.push_back(std::move(item));
    }
  }
  if (!call.rest_named) return arguments;
  const Value rest = Evaluate(*call.rest_named);
  if (!rest.IsDict()) throw Fault(std::string("`**` wants a dict, got ") + TypeName(rest));
  for (const auto& [key, value] : rest.dict().entries()) {
    if (!key.IsText()) throw Fault("`**` wants keys that are texts");
    for (const auto& [known, unused] : arguments.named) {
      if (known == key.text()) throw Fault("the argument `" + known + "` is given twice");
    }
    arguments.named.emplace_back(key.text(), value);
  }
  return arguments;
}

Value Machine::EvaluateCall(const Expr& expr) {
  const Value callee = Evaluate(*expr.parts[0]);
  Arguments arguments = EvaluateArguments(expr.call);
  line_ = expr.line;
  Value value = Call(callee, arguments);
  line_ = expr.line;
  return value;
}

Value Machine::Call(const Value& callee, Arguments& arguments) {
  if (callee.IsUndefined()) RefuseUndefined(callee);
  if (!callee.Is(Value::Kind::kObject)) {
    throw Fault(std::string("calls a ") + TypeName(callee) + ", which is no function");
  }
  return callee.object().Call(*this, arguments);
}

Value Machine::Filtered(const Expr& expr) {
  const Value value = expr.parts[0] ? Evaluate(*expr.parts[0]) : std::move(block_text_);
  Arguments arguments = EvaluateArguments(expr.call);
  line_ = expr.line;
  if (!expr.filter) throw Fault("there is no filter `" + expr.name + "`");
  return expr.filter->apply(*this, value, arguments);
}

Value Machine::Tested(const Expr& expr) {
  const Value value = Evaluate(*expr.parts[0]);
  Arguments arguments = EvaluateArguments(expr.call);
  line_ = expr.line;
  if (!expr.test) throw Fault("there is no test `" + expr.name + "`");
  return Value::Bool(expr.test->holds(*this, value, arguments));
}

Value Machine::ApplyFilter(const Value& name, const Value& value, Arguments& arguments) {
  budget_.Charge();
  const Filter* filter = name.IsText() ? FindFilter(name.text()) : nullptr;
  if (filter) return filter->apply(*this, value, arguments);
  const std::string shown = Repr(name, budget_);
  if (name.IsText() && IsForeignFilter(name.text())) {
    throw Fault("the filter " + shown + " is not among what chat templates use");
  }
  throw Fault("there is no filter " + shown);
}

bool Machine::ApplyTest(const Value& name, const Value& value, Arguments& arguments) {
  budget_.Charge();
  const Test* test = name.IsText() ? FindTest(name.text()) : nullptr;
  if (!test) throw Fault("there is no test " + Repr(name, budget_));
  return test->holds(*this, value, arguments);
}

Value Machine::Attribute(const Value& whole, const std::string& name) {
  if (whole.IsUndefined()) RefuseUndefined(whole);
  Value found = FindAttribute(whole, name);
  if (!found.Is(Value::Kind::kMissing)) return found;
  if (whole.IsDict()) {
    if (const Value* value = whole.dict().Find(std::string_view(name))) return *value;
  }
  return Value::Undefined(std::string("a ") + TypeName(whole) + " has no `" + name + "`");
}

Value Machine::Element(const Value& whole, const Value& key) {
  if (std::optional<Value> found = Subscript(whole, key, budget_)) return std::move(*found);
  if (key.IsText()) {
    Value attribute = FindAttribute(whole, key.text());
    if (!attribute.Is(Value::Kind::kMissing)) return attribute;
  }
  const bool shown = key.IsNumber() || (key.IsText() && key.text().size() < 100);
  return Value::Undefined(std::string("a ") + TypeName(whole) + " has no element" +
                          (shown ? " " + Repr(key, budget_) : ""));
}

}  // namespace fsdp::jinja
