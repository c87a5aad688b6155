// Operands: names, literals, and what stands behind them: attributes, calls, filters, tests.
// Tests: tests/trainer/data/jinja/jinja_template_test.cc
#include <optional>

#include "trainer/data/jinja/filters.h"
#include "trainer/data/jinja/parser.h"

namespace fsdp::jinja {
namespace {

using Type = Token::Type;
using Kind = Expr::Kind;

std::optional<Value> ConstantOf(const std::string& name) {
  if (name == "true" || name == "True") return Value::Bool(true);
  if (name == "false" || name == "False") return Value::Bool(false);
  if (name == "none" || name == "None") return Value::None();
  return std::nullopt;
}

}  // namespace

ExprPtr ExpressionParser::Unary(bool with_filters) {
  const Level level(*this);
  ExprPtr value;
  if (current().IsOperator("-") || current().IsOperator("+")) {
    const Token sign = Take();
    value = Make(sign.text == "-" ? Kind::kNegative : Kind::kPositive, sign.line);
    Add(*value, Unary(false));
  } else {
    value = Primary();
  }
  value = Postfix(std::move(value));
  return with_filters ? FiltersAndTests(std::move(value)) : std::move(value);
}

ExprPtr ExpressionParser::Primary(bool with_members) {
  const Token& token = current();
  const int line = token.line;
  ExprPtr expr;
  switch (token.type) {
    case Type::kName: {
      const std::string name = Take().text;
      if (std::optional<Value> constant = ConstantOf(name)) {
        expr = Make(Kind::kConstant, line);
        expr->constant = std::move(*constant);
        return expr;
      }
      const bool member = with_members && SkipOperator(".");
      expr = Make(member ? Kind::kMember : Kind::kName, line);
      expr->name = name;
      if (member) expr->attribute = TakeName();
      return expr;
    }
    case Type::kText: {
      std::string text = Take().text;
      while (current().type == Type::kText) text += Take().text;
      expr = Make(Kind::kConstant, line);
      expr->constant = Value::Text(std::move(text));
      return expr;
    }
    case Type::kInteger:
      expr = Make(Kind::kConstant, line);
      expr->constant = Value::Int(Take().integer);
      return expr;
    case Type::kFloat:
      expr = Make(Kind::kConstant, line);
      expr->constant = Value::Float(Take().number);
      return expr;
    default:
      break;
  }
  if (SkipOperator("(")) {
    const Level level(*this);
    expr = Tuple(true, true);
    ExpectOperator(")");
    return expr;
  }
  if (token.IsOperator("[")) return ListLiteral();
  if (token.IsOperator("{")) return DictLiteral();
  Refuse(line, "unexpected " + Describe(token));
}

ExprPtr ExpressionParser::ListLiteral() {
  ExprPtr list = Make(Kind::kList, Take().line);
  while (!current().IsOperator("]")) {
    if (!list->parts.empty()) ExpectOperator(",");
    if (current().IsOperator("]")) break;
    Add(*list, Expression());
  }
  ExpectOperator("]");
  return list;
}

ExprPtr ExpressionParser::DictLiteral() {
  ExprPtr dict = Make(Kind::kDict, Take().line);
  while (!current().IsOperator("}")) {
    if (!dict->parts.empty()) ExpectOperator(",");
    if (current().IsOperator("}")) break;
    Add(*dict, Expression());
    ExpectOperator(":");
    Add(*dict, Expression());
  }
  ExpectOperator("}");
  return dict;
}

ExprPtr ExpressionParser::Postfix(ExprPtr value) {
  while (true) {
    if (current().IsOperator(".") || current().IsOperator("[")) {
      value = AttributeOrElement(std::move(value));
    } else if (current().IsOperator("(")) {
      value = Call(std::move(value));
    } else {
      return value;
    }
  }
}

ExprPtr ExpressionParser::FiltersAndTests(ExprPtr value) {
  while (true) {
    if (current().IsOperator("|")) {
      value = Filters(std::move(value), false);
    } else if (current().IsName("is")) {
      value = TestOf(std::move(value));
    } else if (current().IsOperator("(")) {
      value = Call(std::move(value));
    } else {
      return value;
    }
  }
}

ExprPtr ExpressionParser::AttributeOrElement(ExprPtr whole) {
  const Token token = Take();
  if (token.text == "[") return ElementOrSlice(std::move(whole), token.line);
  const Token member = Take();
  ExprPtr expr = Make(member.type == Type::kName ? Kind::kAttribute : Kind::kElement, token.line);
  Add(*expr, std::move(whole));
  if (member.type == Type::kName) {
    expr->name = member.text;
  } else if (member.type == Type::kInteger) {
    ExprPtr index = Make(Kind::kConstant, member.line);
    index->constant = Value::Int(member.integer);
    Add(*expr, std::move(index));
  } else {
    Refuse(member.line, "want a name or a number behind the dot, got " + Describe(member));
  }
  return expr;
}

ExprPtr ExpressionParser::ElementOrSlice(ExprPtr whole, int line) {
  ExprPtr expr = Make(Kind::kElement, line);
  Add(*expr, std::move(whole));
  ExprPtr keys = Make(Kind::kTuple, line);
  while (!current().IsOperator("]")) {
    if (!keys->parts.empty()) ExpectOperator(",");
    ExprPtr first = current().IsOperator(":") ? nullptr : Expression();
    if (first && !current().IsOperator(":")) {
      Add(*keys, std::move(first));
      continue;
    }
    if (!keys->parts.empty()) {
      Refuse(line, "a slice in several dimensions is not among what chat templates use");
    }
    ExpectOperator(":");
    expr->kind = Kind::kSlice;
    Add(*expr, std::move(first));
    const auto ends = [this] {
      return current().IsOperator(":") || current().IsOperator("]") || current().IsOperator(",");
    };
    Add(*expr, ends() ? nullptr : Expression());
    Add(*expr, SkipOperator(":") && !ends() ? Expression() : nullptr);
    break;
  }
  if (expr->kind == Kind::kSlice && current().IsOperator(",")) {
    Refuse(line, "a slice in several dimensions is not among what chat templates use");
  }
  ExpectOperator("]");
  if (expr->kind == Kind::kSlice) return expr;
  Add(*expr, keys->parts.size() == 1 ? std::move(keys->parts[0]) : std::move(keys));
  return expr;
}

ExprPtr ExpressionParser::Call(ExprPtr callee) {
  ExprPtr call = Make(Kind::kCall, current().line);
  Add(*call, std::move(callee));
  AddArguments(*call);
  return call;
}

void ExpressionParser::AddArguments(Expr& to) {
  CallArguments& call = to.call;
  const int line = current().line;
  const auto check = [&](bool in_order) {
    if (!in_order) Refuse(line, "arguments of a call in an order that Python does not know");
  };
  ExpectOperator("(");
  bool first = true;
  while (!current().IsOperator(")")) {
    if (!first) {
      ExpectOperator(",");
      if (current().IsOperator(")")) break;
    }
    first = false;
    ExprPtr value;
    if (SkipOperator("**")) {
      check(!call.rest_named);
      call.rest_named = Expression();
      Deepen(to, call.rest_named.get());
    } else if (SkipOperator("*")) {
      check(!call.rest && !call.rest_named);
      call.rest = Expression();
      Deepen(to, call.rest.get());
    } else if (current().type == Type::kName && ahead().IsOperator("=")) {
      check(!call.rest_named);
      std::string name = TakeName();
      Take();
      value = Expression();
      for (const auto& [known, unused] : call.named) {
        if (known == name) Refuse(line, "the argument `" + name + "` is given twice");
      }
      Deepen(to, value.get());
      call.named.emplace_back(std::move(name), std::move(value));
    } else {
      check(!call.rest && !call.rest_named && call.named.empty());
      value = Expression();
      Deepen(to, value.get());
      call.positional.push_back(std::move(value));
    }
  }
  ExpectOperator(")");
}

ExprPtr ExpressionParser::Filters(ExprPtr value, bool begins_here) {
  while (begins_here || current().IsOperator("|")) {
    if (!begins_here) Take();
    begins_here = false;
    ExprPtr expr = Make(Kind::kFilter, current().line);
    expr->name = TakeName();
    while (SkipOperator(".")) expr->name += "." + TakeName();
    Add(*expr, std::move(value));
    expr->filter = FindFilter(expr->name);
    if (IsForeignFilter(expr->name)) {
      Refuse(expr->line, "the filter `" + expr->name + "` is not among what chat templates use");
    }
    if (current().IsOperator("(")) AddArguments(*expr);
    value = std::move(expr);
  }
  return value;
}

ExprPtr ExpressionParser::TestOf(ExprPtr value) {
  const int line = Take().line;
  const bool negated = SkipName("not");
  ExprPtr test = Make(Kind::kTest, line);
  test->name = TakeName();
  while (SkipOperator(".")) test->name += "." + TakeName();
  Add(*test, std::move(value));
  test->test = FindTest(test->name);
  const Token& next = current();
  const bool argument = next.type == Type::kName || next.type == Type::kText ||
                        next.type == Type::kInteger || next.type == Type::kFloat ||
                        next.IsOperator("[") || next.IsOperator("{");
  if (next.IsOperator("(")) {
    AddArguments(*test);
  } else if (argument && !next.IsName("else") && !next.IsName("or") && !next.IsName("and")) {
    if (next.IsName("is")) Refuse(next.line, "chains tests with `is`");
    ExprPtr given = Postfix(Primary());
    Deepen(*test, given.get());
    test->call.positional.push_back(std::move(given));
  }
  if (!negated) return test;
  ExprPtr expr = Make(Kind::kNot, line);
  Add(*expr, std::move(test));
  return expr;
}

}  // namespace fsdp::jinja
