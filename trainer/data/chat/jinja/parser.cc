// Tests: tests/trainer/data/chat/jinja/jinja_template_test.cc
#include <algorithm>
#include <optional>
#include <set>

#include "trainer/data/chat/jinja/ast.h"
#include "trainer/data/chat/jinja/builtins.h"
#include "trainer/data/chat/jinja/lexer.h"

namespace fsdp::jinja {
namespace {

using Type = Token::Type;
using Kind = Expr::Kind;

// How deep brackets, operators and tags may nest: neither the parser nor what walks the tree can
// exhaust a stack.
constexpr int kMostNesting = 120, kMostTreeDepth = 250;

// Operators by level, from the loosest; `not` stands between the second and the third.
struct Infix {
  std::string_view symbol;
  int level;
  Operator op;
};
constexpr int kComparison = 2, kLevels = 6;
constexpr Infix kInfix[] = {
    {"or", 0, Operator::kOr},  {"and", 1, Operator::kAnd}, {"==", 2, Operator::kEq},
    {"!=", 2, Operator::kNe},  {"<", 2, Operator::kLt},    {"<=", 2, Operator::kLe},
    {">", 2, Operator::kGt},   {">=", 2, Operator::kGe},   {"in", 2, Operator::kIn},
    {"not", 2, Operator::kIn}, {"+", 3, Operator::kAdd},   {"-", 3, Operator::kSub},
    {"~", 4, Operator::kCat},  {"*", 5, Operator::kMul},   {"%", 5, Operator::kMod}};

std::optional<Value> ConstantOf(const std::string& name) {
  if (name == "true" || name == "True") return Value::Bool(true);
  if (name == "false" || name == "False") return Value::Bool(false);
  if (name == "none" || name == "None") return Value::None();
  return std::nullopt;
}

class Parser {
 public:
  Parser(const std::string& name, std::string_view source) : tokens_(name, source) {
    program_.name = name;
    program_.body = Statements({});
    if (!unknown_.empty()) tokens_.Refuse(unknown_[0].first, unknown_[0].second);
  }
  Program Take() { return std::move(program_); }

 private:
  using Flag = Scoped<bool>;

  const Token& current() const { return tokens_.current(); }
  [[noreturn]] void RefuseForeign(int line, const std::string& what) const {
    tokens_.Refuse(line, NotAmong(what));
  }
  int Deeper() const {
    if (level_ < kMostNesting) return level_ + 1;
    tokens_.Refuse(current().line, "nests more than " + std::to_string(kMostNesting) + " deep");
  }

  // --- Statements ---

  // Up to a tag of one of these names, which is then the current token; empty: to the end.
  Block Statements(const std::vector<std::string_view>& ends) {
    const Scoped<int> level(level_, Deeper());
    Block block;
    while (current().type != Type::kEnd) {
      Token token = tokens_.Take();
      if (token.type == Type::kBlock) {
        if (current().type == Type::kName && Has(ends, current().text)) return block;
        block.push_back(Statement(ends));
        tokens_.Expect(Type::kBlockEnd);
      } else if (token.type == Type::kData) {
        block.push_back(Make<Stmt>(Stmt::Kind::kText, token.line));
        block.back()->text = std::move(token.text);
      } else {  // `{{`: nothing else stands between tags.
        block.push_back(Make<Stmt>(Stmt::Kind::kOutput, token.line));
        block.back()->exprs.push_back(Tuple(true));
        tokens_.Expect(Type::kPrintEnd);
      }
    }
    if (ends.empty()) return block;
    tokens_.Want("{% " + std::string(ends.back()) + " %}");
  }

  // Adds the body of a tag. Returns the name of the tag that ends it.
  std::string Body(Stmt& stmt, const std::vector<std::string_view>& ends) {
    tokens_.Expect(Type::kBlockEnd);
    stmt.bodies.push_back(Statements(ends));
    return tokens_.TakeName();
  }

  StmtPtr Statement(const std::vector<std::string_view>& ends) {
    const int line = current().line;
    const std::string tag = tokens_.TakeName();
    if (tag == "if") return If(line);
    if (tag == "for") return For(line);
    if (tag == "set") return Set(line);
    if (tag == "macro") return Macro(line);
    if (tag == "filter") {
      StmtPtr stmt = Make<Stmt>(Stmt::Kind::kCapture, line);
      stmt->exprs.push_back(Filters(nullptr));
      return Capture(std::move(stmt), "{% filter %}", "endfilter");
    }
    if (tag == "generation") return Generation(line);
    if (tag == "break" || tag == "continue") {
      if (!in_loop_) tokens_.Refuse(line, "{% " + tag + " %} outside of a loop");
      return Make<Stmt>(tag == "break" ? Stmt::Kind::kBreak : Stmt::Kind::kContinue, line);
    }
    if (!tag.starts_with("e") || tag == "extends") RefuseForeign(line, "{% " + tag + " %}");
    const std::string want =
        ends.empty() ? "" : "; want {% " + std::string(ends.back()) + " %} first";
    tokens_.Refuse(line, "there is no tag {% " + tag + " %}" + want);
  }

  StmtPtr If(int line) {
    StmtPtr stmt = Make<Stmt>(Stmt::Kind::kIf, line);
    const Flag in_if(in_if_, true);
    std::string ended = "elif";
    while (ended == "elif") {
      stmt->exprs.push_back(Tuple(false));
      ended = Body(*stmt, {"elif", "else", "endif"});
    }
    if (ended == "else") Body(*stmt, {"endif"});
    return stmt;
  }

  StmtPtr For(int line) {
    StmtPtr stmt = Make<Stmt>(Stmt::Kind::kFor, line);
    stmt->target = Target(false);
    if (!tokens_.SkipName("in")) tokens_.Want("`in`");
    stmt->exprs.push_back(Tuple(false));
    const Flag in_if(in_if_, false), in_frame(in_frame_, true);
    if (tokens_.SkipName("if")) stmt->condition = Expression();
    if (current().IsName("recursive")) RefuseForeign(line, "a `recursive` loop");
    const bool in_loop = std::exchange(in_loop_, true);
    const std::string ended = Body(*stmt, {"else", "endfor"});
    in_loop_ = in_loop;
    if (ended == "else") Body(*stmt, {"endfor"});
    return stmt;
  }

  StmtPtr Set(int line) {
    StmtPtr stmt = Make<Stmt>(Stmt::Kind::kSet, line);
    stmt->target = Target(true);
    if (tokens_.Skip("=")) {
      stmt->exprs.push_back(Tuple(true));
    } else {
      stmt->kind = Stmt::Kind::kCapture;
      stmt = Capture(std::move(stmt), "{% set %} that has a body", "endset");
    }
    MarkOwn(*stmt->target);
    return stmt;
  }

  // As jinja2 decides before anything runs: names that are set before they are read.
  void MarkOwn(const Expr& target) {
    for (const ExprPtr& part : target.parts) MarkOwn(*part);
    if (in_frame_ || target.kind != Kind::kName) return;
    if (seen_.insert(target.name).second && !in_if_) program_.own.insert(target.name);
  }

  // A body the text of which goes elsewhere first.
  StmtPtr Capture(StmtPtr stmt, const char* tag, std::string_view end) {
    const Scoped<const char*> inside(inside_, tag);
    const Flag in_if(in_if_, false), in_frame(in_frame_, true);
    Body(*stmt, {end});
    return stmt;
  }

  StmtPtr Macro(int line) {
    if (in_frame_) RefuseForeign(line, "{% macro %} within a loop or another block");
    StmtPtr stmt = Make<Stmt>(Stmt::Kind::kMacro, line);
    stmt->text = tokens_.TakeName();
    named_.insert(stmt->text);
    tokens_.Expect("(");
    while (!tokens_.Skip(")")) {
      std::string name = tokens_.TakeName();
      stmt->parameters.emplace_back(std::move(name), tokens_.Skip("=") ? Expression() : nullptr);
      if (!current().IsOperator(")")) tokens_.Expect(",");
    }
    return Capture(std::move(stmt), "{% macro %}", "endmacro");
  }

  StmtPtr Generation(int line) {
    if (inside_) {
      tokens_.Refuse(line, std::string("{% generation %} stands within ") + inside_ +
                               ": where its text comes to stand is not known");
    }
    program_.has_generation = true;
    StmtPtr stmt = Make<Stmt>(Stmt::Kind::kGeneration, line);
    const Flag in_loop(in_loop_, false);  // It is a function to jinja2.
    return Capture(std::move(stmt), "{% generation %}", "endgeneration");
  }

  // --- Expressions ---

  void Deepen(Expr& expr, const Expr* part) const {
    if (part) expr.depth = std::max(expr.depth, part->depth + 1);
    if (expr.depth <= kMostTreeDepth) return;
    tokens_.Refuse(expr.line, "an expression of more than " + std::to_string(kMostTreeDepth) +
                                  " operators in one another");
  }
  void Add(Expr& to, ExprPtr part) const {
    Deepen(to, part.get());
    to.parts.push_back(std::move(part));
  }
  ExprPtr Over(Kind kind, int line, ExprPtr part) const {
    ExprPtr expr = Make<Expr>(kind, line);
    Add(*expr, std::move(part));
    return expr;
  }
  static ExprPtr Constant(Value value, int line) {
    ExprPtr expr = Make<Expr>(Kind::kConstant, line);
    expr->constant = std::move(value);
    return expr;
  }

  // One expression, or several with commas between.
  ExprPtr Tuple(bool with_condition) {
    const auto one = [&] { return with_condition ? Expression() : Operators(0); };
    ExprPtr first = one();
    if (!current().IsOperator(",")) return first;
    const int line = first->line;
    ExprPtr tuple = Over(Kind::kTuple, line, std::move(first));
    while (tokens_.Skip(",") && current().type != Type::kPrintEnd &&
           current().type != Type::kBlockEnd && !current().IsOperator(")")) {
      Add(*tuple, one());
    }
    return tuple;
  }

  // The target of a set or a loop: a name, or several with commas between.
  ExprPtr Target(bool of_set) {
    ExprPtr tuple = Make<Expr>(Kind::kTuple, current().line);
    do {
      ExprPtr name = Make<Expr>(Kind::kName, current().line);
      name->name = tokens_.TakeName();
      if (ConstantOf(name->name) || (name->name == "loop" && in_loop_)) {
        tokens_.Refuse(name->line, "assigns to `" + name->name + "`");
      }
      named_.insert(name->name);
      if (of_set && tokens_.Skip(".")) {
        name->kind = Kind::kMember;
        name->attribute = tokens_.TakeName();
      }
      if (tuple->parts.empty() && !current().IsOperator(",")) return name;
      Add(*tuple, std::move(name));
    } while (tokens_.Skip(","));
    return tuple;
  }

  // a if b else c
  ExprPtr Expression() {
    const Scoped<int> level(level_, Deeper());
    const size_t unknown = unknown_.size();
    ExprPtr value = Operators(0);
    while (current().IsName("if")) {
      const int line = tokens_.Take().line;
      ExprPtr condition = Over(Kind::kCondition, line, Operators(0));
      Add(*condition, std::move(value));
      Add(*condition, tokens_.SkipName("else") ? Expression() : nullptr);
      unknown_.resize(unknown);
      value = std::move(condition);
    }
    return value;
  }

  // The operator of this level that stands next; null: there is none.
  const Infix* NextInfix(int level) const {
    const Token& token = current();
    if (token.type != Type::kOperator && token.type != Type::kName) return nullptr;
    if (token.IsName("not") && !tokens_.ahead().IsName("in")) return nullptr;
    const bool foreign = token.text == "/" || token.text == "//" || token.text == "**";
    if (foreign) RefuseForeign(token.line, "`" + token.text + "`");
    for (const Infix& infix : kInfix) {
      if (infix.level == level && infix.symbol == token.text) return &infix;
    }
    return nullptr;
  }

  ExprPtr Operators(int level) {
    if (level == kLevels) return Unary(true);
    if (level == kComparison && current().IsName("not")) {
      const Scoped<int> deeper(level_, Deeper());
      const int line = tokens_.Take().line;
      return Over(Kind::kNot, line, Operators(level));
    }
    ExprPtr left = Operators(level + 1);
    while (const Infix* const infix = NextInfix(level)) {
      const Token token = tokens_.Take();
      if (infix->op == Operator::kMod && left->constant.IsText()) {
        RefuseForeign(token.line, "formatting by `%`");
      }
      const bool negated = token.IsName("not");
      if (negated) tokens_.Take();
      ExprPtr both = Over(Kind::kBinary, token.line, std::move(left));
      both->op = infix->op;
      Add(*both, Operators(level + 1));
      left = negated ? Over(Kind::kNot, token.line, std::move(both)) : std::move(both);
      const bool chain = level == kComparison && NextInfix(level);
      if (chain) RefuseForeign(token.line, "a chain of comparisons");
    }
    return left;
  }

  ExprPtr Unary(bool with_filters) {
    const Scoped<int> level(level_, Deeper());
    const int line = current().line;
    ExprPtr value = tokens_.Skip("-") ? Over(Kind::kNegative, line, Unary(false)) : Primary();
    while (true) {
      if (current().IsOperator(".")) {
        value = Member(std::move(value));
      } else if (current().IsOperator("[")) {
        value = Element(std::move(value));
      } else if (current().IsOperator("(")) {
        value = Call(std::move(value));
      } else if (with_filters && current().IsOperator("|")) {
        value = Filters(std::move(value));
      } else if (with_filters && current().IsName("is")) {
        value = TestOf(std::move(value));
      } else {
        return value;
      }
    }
  }

  ExprPtr Primary() {
    const Token token = current();
    const bool list = token.IsOperator("[");
    if (token.type == Type::kConstant) return Constant(tokens_.Take().constant, token.line);
    if (token.type == Type::kName) return Name();
    if (!list && !token.IsOperator("(") && !token.IsOperator("{")) tokens_.Want("an expression");
    tokens_.Take();
    if (token.IsOperator("(")) {
      ExprPtr expr = current().IsOperator(")") ? Make<Expr>(Kind::kTuple, token.line) : Tuple(true);
      tokens_.Expect(")");
      return expr;
    }
    ExprPtr expr = Make<Expr>(list ? Kind::kList : Kind::kDict, token.line);
    const std::string_view end = list ? "]" : "}";
    while (!tokens_.Skip(end)) {
      Add(*expr, Expression());
      if (!list) tokens_.Expect(":");
      if (!list) Add(*expr, Expression());
      if (!current().IsOperator(end)) tokens_.Expect(",");
    }
    return expr;
  }

  ExprPtr Name() {
    const Token token = tokens_.Take();
    if (std::optional<Value> constant = ConstantOf(token.text))
      return Constant(*constant, token.line);
    if (IsForeignGlobal(token.text) && named_.count(token.text) == 0) {
      RefuseForeign(token.line, "`" + token.text + "`");
    }
    if (!in_frame_) seen_.insert(token.text);
    ExprPtr expr = Make<Expr>(Kind::kName, token.line);
    expr->name = token.text;
    return expr;
  }

  ExprPtr Member(ExprPtr whole) {  // whole.name or whole.0
    const bool of_loop = whole->kind == Kind::kName && whole->name == "loop";
    const int line = tokens_.Take().line;
    ExprPtr expr = Over(Kind::kElement, line, std::move(whole));
    if (current().constant.IsInteger()) {
      Add(*expr, Constant(tokens_.Take().constant, line));
      return expr;
    }
    expr->kind = Kind::kAttribute;
    expr->name = tokens_.TakeName();
    if (of_loop && !Loop::Knows(expr->name)) RefuseForeign(line, "`loop." + expr->name + "`");
    return expr;
  }

  ExprPtr Element(ExprPtr whole) {  // whole[key], whole[start:stop] or whole[::-1]
    const int line = tokens_.Take().line;
    ExprPtr expr = Over(Kind::kElement, line, std::move(whole));
    ExprPtr first = current().IsOperator(":") ? nullptr : Expression();
    bool steps = false;
    if (!tokens_.Skip(":")) {
      Add(*expr, std::move(first));
    } else if (!first && tokens_.Skip(":")) {
      expr->kind = Kind::kReversed;
      steps = !tokens_.Skip("-") || tokens_.Take().constant.integer() != 1;
    } else {
      expr->kind = Kind::kSlice;
      steps = current().IsOperator(":");
      Add(*expr, std::move(first));
      Add(*expr, current().IsOperator("]") || steps ? nullptr : Expression());
      steps |= current().IsOperator(":");
    }
    if (steps) RefuseForeign(line, "a slice in steps other than [::-1]");
    tokens_.Expect("]");
    return expr;
  }

  ExprPtr Call(ExprPtr callee) {
    const bool foreign = callee->kind == Kind::kAttribute && IsForeignMethod(callee->name);
    if (foreign) RefuseForeign(callee->line, "the method `" + callee->name + "`");
    ExprPtr call = Over(Kind::kCall, current().line, std::move(callee));
    Arguments(*call);
    return call;
  }

  void Arguments(Expr& to) {
    tokens_.Expect("(");
    while (!tokens_.Skip(")")) {
      if (current().IsOperator("**")) RefuseForeign(to.line, "`**` in a call");
      const bool rest = tokens_.Skip("*"), named = !rest && tokens_.ahead().IsOperator("=");
      std::string name = named ? tokens_.TakeName() : "";
      if (named) tokens_.Take();
      ExprPtr value = Expression();
      Deepen(to, value.get());
      if (rest) {
        to.rest = std::move(value);
      } else if (named) {
        to.named.emplace_back(std::move(name), std::move(value));
      } else {
        to.positional.push_back(std::move(value));
      }
      if (!current().IsOperator(")")) tokens_.Expect(",");
    }
  }

  // Refuses a filter or a test that is not there. Under an if, jinja2 asks for one when it runs.
  const Builtin* Find(bool test, const std::string& name, int line) {
    const std::string what = (test ? "the test `" : "the filter `") + name + "`";
    const Builtin* const found = test ? FindTest(name) : FindFilter(name);
    if (test ? IsForeignTest(name) : IsForeignFilter(name)) RefuseForeign(line, what);
    if (!found && !in_if_) unknown_.emplace_back(line, what + " is not there");
    return found;
  }

  // value|first|second(...); without a value, the first one has no bar.
  ExprPtr Filters(ExprPtr value) {
    if (value) tokens_.Expect("|");
    do {
      ExprPtr expr = Over(Kind::kFilter, current().line, std::move(value));
      expr->name = tokens_.TakeName();
      expr->builtin = Find(false, expr->name, expr->line);
      if (current().IsOperator("(")) Arguments(*expr);
      CheckArguments(*expr);
      value = std::move(expr);
    } while (tokens_.Skip("|"));
    return value;
  }

  // Refuses names that a filter's parameters do not have, the filter that `map` is given, and the
  // test of `select` and others.
  void CheckArguments(const Expr& expr) {
    const Builtin* const of = expr.builtin;
    const bool any = !of || of->LooksItself();
    for (const auto& [name, value] : expr.named) {
      if (any || of->IndexOf(name) < of->Count()) continue;
      RefuseForeign(expr.line, "the argument `" + name + "` of `" + expr.name + "`");
    }
    const size_t at = expr.name.ends_with("attr") ? 1 : 0;
    if (!of || !any || expr.positional.size() <= at) return;
    const Value& name = expr.positional[at]->constant;
    if (name.IsText()) Find(expr.name != "map", name.text(), expr.line);
  }

  ExprPtr TestOf(ExprPtr value) {
    const int line = tokens_.Take().line;
    const bool negated = tokens_.SkipName("not");
    ExprPtr test = Over(Kind::kTest, line, std::move(value));
    test->name = tokens_.TakeName();
    test->builtin = Find(true, test->name, line);
    constexpr std::string_view kBehind[] = {"and", "else", "or"};
    const bool name = current().type == Type::kName && !Has(kBehind, current().text);
    if (name || current().type == Type::kConstant)
      RefuseForeign(line, "a test's argument without (");
    if (current().IsOperator("(")) Arguments(*test);
    return negated ? Over(Kind::kNot, line, std::move(test)) : std::move(test);
  }

  Tokens tokens_;
  Program program_;
  int level_ = 0;                       // How deep the parser is in itself.
  std::set<std::string> named_, seen_;  // Assigned to; read or set outside of loops and blocks.
  bool in_loop_ = false, in_frame_ = false, in_if_ = false;
  const char* inside_ = nullptr;                      // The tag that takes the text away.
  std::vector<std::pair<int, std::string>> unknown_;  // Lines with filters that are not there.
};

}  // namespace

Program Parse(const std::string& name, std::string_view source) {
  return Parser(name, source).Take();
}

}  // namespace fsdp::jinja
