// Operators, from the loosest to the tightest.
// Tests: tests/trainer/data/jinja/jinja_template_test.cc
#include <optional>

#include "trainer/data/jinja/parser.h"

namespace fsdp::jinja {
namespace {

using Type = Token::Type;
using Kind = Expr::Kind;

std::optional<Comparison> ComparisonOf(const Token& token) {
  if (token.type != Type::kOperator) return std::nullopt;
  if (token.text == "==") return Comparison::kEq;
  if (token.text == "!=") return Comparison::kNe;
  if (token.text == "<") return Comparison::kLt;
  if (token.text == "<=") return Comparison::kLe;
  if (token.text == ">") return Comparison::kGt;
  if (token.text == ">=") return Comparison::kGe;
  return std::nullopt;
}

std::optional<Operator> ProductOf(const Token& token) {
  if (token.IsOperator("*")) return Operator::kMul;
  if (token.IsOperator("/")) return Operator::kDiv;
  if (token.IsOperator("//")) return Operator::kFloorDiv;
  if (token.IsOperator("%")) return Operator::kMod;
  return std::nullopt;
}

}  // namespace

ExpressionParser::Level::Level(ExpressionParser& parser) : parser_(parser) {
  if (++parser.level_ > kMostNesting) {
    --parser.level_;
    parser.Refuse(parser.current().line,
                  "nests more than " + std::to_string(kMostNesting) + " deep");
  }
}

void ExpressionParser::Refuse(int line, const std::string& what) const {
  throw TemplateError(name_, line, what);
}

std::string ExpressionParser::Describe(const Token& token) {
  switch (token.type) {
    case Type::kData:
      return "text";
    case Type::kBlockBegin:
      return "`{%`";
    case Type::kBlockEnd:
      return "`%}`";
    case Type::kVariableBegin:
      return "`{{`";
    case Type::kVariableEnd:
      return "`}}`";
    case Type::kText:
      return "a text";
    case Type::kInteger:
    case Type::kFloat:
      return "a number";
    case Type::kEnd:
      return "the end of the template";
    default:
      return "`" + token.text + "`";
  }
}

Token ExpressionParser::Take() {
  Token token = current();
  if (at_ + 1 < tokens_.size()) ++at_;
  return token;
}

bool ExpressionParser::SkipName(std::string_view name) {
  if (!current().IsName(name)) return false;
  Take();
  return true;
}

bool ExpressionParser::SkipOperator(std::string_view op) {
  if (!current().IsOperator(op)) return false;
  Take();
  return true;
}

void ExpressionParser::ExpectOperator(std::string_view op) {
  if (!SkipOperator(op)) {
    Refuse(current().line, "want `" + std::string(op) + "`, got " + Describe(current()));
  }
}

void ExpressionParser::ExpectName(std::string_view name) {
  if (!SkipName(name)) {
    Refuse(current().line, "want `" + std::string(name) + "`, got " + Describe(current()));
  }
}

std::string ExpressionParser::TakeName() {
  if (current().type != Type::kName) {
    Refuse(current().line, "want a name, got " + Describe(current()));
  }
  return Take().text;
}

ExprPtr ExpressionParser::Make(Kind kind, int line) const {
  auto expr = std::make_unique<Expr>();
  expr->kind = kind;
  expr->line = line;
  return expr;
}

void ExpressionParser::Deepen(Expr& expr, const Expr* part) const {
  if (!part) return;
  expr.depth = std::max(expr.depth, part->depth + 1);
  if (expr.depth > kMostTreeDepth) {
    Refuse(expr.line, "an expression of more than " + std::to_string(kMostTreeDepth) +
                          " operators in one another");
  }
}

void ExpressionParser::Add(Expr& to, ExprPtr part) const {
  Deepen(to, part.get());
  to.parts.push_back(std::move(part));
}

bool ExpressionParser::TupleEnds(Ends ends) const {
  return current().type == Type::kVariableEnd || current().type == Type::kBlockEnd ||
         current().IsOperator(")") || (ends == Ends::kAtIn && current().IsName("in"));
}

ExprPtr ExpressionParser::Expression(bool with_condition) {
  const Level level(*this);
  return with_condition ? Condition() : Or();
}

ExprPtr ExpressionParser::Tuple(bool with_condition, bool in_brackets) {
  ExprPtr tuple = Make(Kind::kTuple, current().line);
  bool is_tuple = false;
  while (true) {
    if (!tuple->parts.empty()) ExpectOperator(",");
    if (TupleEnds(Ends::kNowhere)) break;
    Add(*tuple, Expression(with_condition));
    if (!current().IsOperator(",")) break;
    is_tuple = true;
  }
  if (is_tuple) return tuple;
  if (!tuple->parts.empty()) return std::move(tuple->parts[0]);
  if (!in_brackets) Refuse(current().line, "want an expression, got " + Describe(current()));
  return tuple;
}

void ExpressionParser::CheckTarget(const Expr& target) const {
  if (target.kind == Kind::kTuple) {
    for (const ExprPtr& part : target.parts) CheckTarget(*part);
  } else if (target.kind != Kind::kName && target.kind != Kind::kMember) {
    Refuse(target.line, "assigns to what is no variable");
  }
}

ExprPtr ExpressionParser::Target(Ends ends, bool with_members) {
  const Level level(*this);
  ExprPtr tuple = Make(Kind::kTuple, current().line);
  bool is_tuple = false;
  while (true) {
    if (!tuple->parts.empty()) ExpectOperator(",");
    if (TupleEnds(ends)) break;
    Add(*tuple, Primary(with_members));
    if (!current().IsOperator(",")) break;
    is_tuple = true;
  }
  if (tuple->parts.empty()) Refuse(current().line, "want a name, got " + Describe(current()));
  ExprPtr target = is_tuple ? std::move(tuple) : std::move(tuple->parts[0]);
  CheckTarget(*target);
  return target;
}

ExprPtr ExpressionParser::Condition() {
  const Level level(*this);
  ExprPtr value = Or();
  while (current().IsName("if")) {
    ExprPtr condition = Make(Kind::kCondition, Take().line);
    Add(*condition, Or());
    Add(*condition, std::move(value));
    Add(*condition, SkipName("else") ? Condition() : nullptr);
    value = std::move(condition);
  }
  return value;
}

ExprPtr ExpressionParser::Or() {
  ExprPtr left = And();
  while (current().IsName("or")) {
    ExprPtr both = Make(Kind::kOr, Take().line);
    Add(*both, std::move(left));
    Add(*both, And());
    left = std::move(both);
  }
  return left;
}

ExprPtr ExpressionParser::And() {
  ExprPtr left = Not();
  while (current().IsName("and")) {
    ExprPtr both = Make(Kind::kAnd, Take().line);
    Add(*both, std::move(left));
    Add(*both, Not());
    left = std::move(both);
  }
  return left;
}

ExprPtr ExpressionParser::Not() {
  if (!current().IsName("not")) return Comparisons();
  const Level level(*this);
  ExprPtr expr = Make(Kind::kNot, Take().line);
  Add(*expr, Not());
  return expr;
}

ExprPtr ExpressionParser::Comparisons() {
  ExprPtr first = Sum();
  ExprPtr all;
  while (true) {
    std::optional<Comparison> op = ComparisonOf(current());
    const int line = current().line;
    if (op) {
      Take();
    } else if (SkipName("in")) {
      op = Comparison::kIn;
    } else if (current().IsName("not") && ahead().IsName("in")) {
      Take();
      Take();
      op = Comparison::kNotIn;
    } else {
      return all ? std::move(all) : std::move(first);
    }
    if (!all) {
      all = Make(Kind::kCompare, line);
      Add(*all, std::move(first));
    }
    all->comparisons.push_back(*op);
    Add(*all, Sum());
  }
}

ExprPtr ExpressionParser::Sum() {
  ExprPtr left = Concat();
  while (current().IsOperator("+") || current().IsOperator("-")) {
    const Token op = Take();
    ExprPtr both = Make(Kind::kBinary, op.line);
    both->op = op.text == "+" ? Operator::kAdd : Operator::kSub;
    Add(*both, std::move(left));
    Add(*both, Concat());
    left = std::move(both);
  }
  return left;
}

ExprPtr ExpressionParser::Concat() {
  ExprPtr first = Product();
  if (!current().IsOperator("~")) return first;
  ExprPtr all = Make(Kind::kConcat, current().line);
  Add(*all, std::move(first));
  while (SkipOperator("~")) Add(*all, Product());
  return all;
}

ExprPtr ExpressionParser::Product() {
  ExprPtr left = Power();
  while (const std::optional<Operator> op = ProductOf(current())) {
    ExprPtr both = Make(Kind::kBinary, Take().line);
    both->op = *op;
    Add(*both, std::move(left));
    Add(*both, Power());
    left = std::move(both);
  }
  return left;
}

ExprPtr ExpressionParser::Power() {
  ExprPtr left = Unary();
  while (current().IsOperator("**")) {  // jinja2 takes these from the left, as it does the others.
    ExprPtr both = Make(Kind::kBinary, Take().line);
    both->op = Operator::kPow;
    Add(*both, std::move(left));
    Add(*both, Unary());
    left = std::move(both);
  }
  return left;
}

}  // namespace fsdp::jinja
