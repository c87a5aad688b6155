// Templates in the language of jinja2/parser.py, as far as chat templates use it.
// Tests: tests/trainer/data/jinja/jinja_template_test.cc
#ifndef FSDP_TRAIN_TRAINER_DATA_JINJA_PARSER_H_
#define FSDP_TRAIN_TRAINER_DATA_JINJA_PARSER_H_

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "trainer/data/jinja/ast.h"
#include "trainer/data/jinja/lexer.h"

namespace fsdp::jinja {

// How deep brackets, operators and tags may nest: neither the parser nor what walks the tree can
// exhaust a stack.
inline constexpr int kMostNesting = 120, kMostTreeDepth = 250;

// Variables are not resolved yet. Throws TemplateError.
Program Parse(const std::string& name, std::string_view source);

// Expressions; statements are on top of it.
class ExpressionParser {
 public:
  ExpressionParser(const std::string& name, std::vector<Token> tokens)
      : name_(name), tokens_(std::move(tokens)) {}

 protected:
  // Counts how deep the parser is in itself.
  class Level {
   public:
    explicit Level(ExpressionParser& parser);
    ~Level() { --parser_.level_; }
    Level(const Level&) = delete;
    Level& operator=(const Level&) = delete;

   private:
    ExpressionParser& parser_;
  };
  enum class Ends { kNowhere, kAtIn };

  [[noreturn]] void Refuse(int line, const std::string& what) const;
  const Token& current() const { return tokens_[at_]; }
  const Token& ahead() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  Token Take();
  bool SkipName(std::string_view name);
  bool SkipOperator(std::string_view op);
  void ExpectOperator(std::string_view op);
  void ExpectName(std::string_view name);
  std::string TakeName();
  static std::string Describe(const Token& token);

  ExprPtr Expression(bool with_condition = true);
  // One expression, or several with commas between.
  ExprPtr Tuple(bool with_condition = true, bool in_brackets = false);
  ExprPtr Target(Ends ends, bool with_members);
  ExprPtr Filters(ExprPtr value, bool begins_here);

 private:
  ExprPtr Make(Expr::Kind kind, int line) const;
  void Add(Expr& to, ExprPtr part) const;
  void AddArguments(Expr& to);
  void Deepen(Expr& expr, const Expr* part) const;
  void CheckTarget(const Expr& target) const;
  bool TupleEnds(Ends ends) const;

  ExprPtr Condition();
  ExprPtr Or();
  ExprPtr And();
  ExprPtr Not();
  ExprPtr Comparisons();
  ExprPtr Sum();
  ExprPtr Concat();
  ExprPtr Product();
  ExprPtr Power();
  ExprPtr Unary(bool with_filters = true);
  ExprPtr Primary(bool with_members = false);
  ExprPtr Postfix(ExprPtr value);
  ExprPtr FiltersAndTests(ExprPtr value);
  ExprPtr AttributeOrElement(ExprPtr value);
  ExprPtr ElementOrSlice(ExprPtr whole, int line);
  ExprPtr Call(ExprPtr callee);
  ExprPtr TestOf(ExprPtr value);
  ExprPtr ListLiteral();
  ExprPtr DictLiteral();

  const std::string& name_;
  const std::vector<Token> tokens_;
  size_t at_ = 0;
  int level_ = 0;
};

}  // namespace fsdp::jinja

#endif  // FSDP_TRAIN_TRAINER_DATA_JINJA_PARSER_H_
