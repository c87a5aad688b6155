// A parsed template, in the language of jinja2/parser.py as far as chat templates use it.
// Tests: tests/trainer/data/chat/jinja/jinja_template_test.cc
#ifndef FSDP_TRAIN_TRAINER_DATA_CHAT_JINJA_AST_H_
#define FSDP_TRAIN_TRAINER_DATA_CHAT_JINJA_AST_H_

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "trainer/data/chat/jinja/value.h"

namespace fsdp::jinja {

struct Builtin;
struct Expr;
using ExprPtr = std::unique_ptr<Expr>;

struct Expr {
  enum class Kind : uint8_t {
    kConstant,
    kName,
    kMember,  // A target alone: name.attribute of a namespace.
    kList,
    kTuple,
    kDict,       // Keys and values by turns.
    kAttribute,  // parts[0].name
    kElement,    // parts[0][parts[1]]
    kSlice,      // parts[0][parts[1]:parts[2]], of which two may be null
    kReversed,   // parts[0][::-1]
    kCall,       // parts[0](...)
    kFilter,     // parts[0]|name(...); parts[0] is null where it is the text of a block
    kTest,       // parts[0] is name(...)
    kNot,
    kNegative,
    kBinary,
    kCondition,  // parts[1] if parts[0] else parts[2], which may be null
  };
  Kind kind = Kind::kConstant;
  int line = 0;
  int depth = 1;  // Depth of the tree below it.
  std::string name, attribute;
  Value constant;
  Operator op = Operator::kAdd;
  std::vector<ExprPtr> parts;
  // Arguments of a call, a filter or a test: f(positional, *rest, name=named).
  std::vector<ExprPtr> positional;
  std::vector<std::pair<std::string, ExprPtr>> named;
  ExprPtr rest;
  const Builtin* builtin = nullptr;  // A filter or test. Null: jinja2 has none of this name either.
};

struct Stmt;
using StmtPtr = std::unique_ptr<Stmt>;
using Block = std::vector<StmtPtr>;

struct Stmt {
  enum class Kind : uint8_t {
    kText,
    kOutput,
    kIf,          // exprs are the conditions, bodies what each leads to, and one more for else
    kFor,         // target in exprs[0] if condition: bodies[0], else bodies[1]
    kSet,         // target = exprs[0]
    kCapture,     // target = bodies[0] through exprs[0], a filter, if any; no target: is printed
    kMacro,       // text(parameters): bodies[0]
    kGeneration,  // bodies[0]
    kBreak,
    kContinue,
  };
  Kind kind = Kind::kText;
  int line = 0;
  std::string text;  // kText's text; a macro's name.
  ExprPtr target, condition;
  std::vector<ExprPtr> exprs;
  std::vector<Block> bodies;
  std::vector<std::pair<std::string, ExprPtr>> parameters;  // With their defaults; null: none.
};

template <typename Node>
std::unique_ptr<Node> Make(typename Node::Kind kind, int line) {
  auto node = std::make_unique<Node>();
  node->kind = kind;
  node->line = line;
  return node;
}

struct Program {
  std::string name;
  Block body;
  // Names that the template sets before it reads them outside of loops and blocks: there, too, they
  // are its own, and not what is given by that name.
  std::set<std::string> own;
  bool has_generation = false;
};

// The value of a variable until the end of a scope, for what walks a template.
template <typename T>
class Scoped {
 public:
  Scoped(T& variable, T value) : variable_(variable), before_(std::exchange(variable, value)) {}
  ~Scoped() { variable_ = before_; }
  Scoped(const Scoped&) = delete;
  Scoped& operator=(const Scoped&) = delete;

 private:
  T& variable_;
  const T before_;
};

// Refuses all else by name and line: throws TemplateError.
Program Parse(const std::string& name, std::string_view source);

}  // namespace fsdp::jinja

#endif  // FSDP_TRAIN_TRAINER_DATA_CHAT_JINJA_AST_H_
