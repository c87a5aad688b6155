// A parsed template. Variables are resolved before it is rendered (scopes.h): a name is a slot of a
// frame so many frames out.
// Tests: tests/trainer/data/jinja/jinja_template_test.cc
#ifndef FSDP_TRAIN_TRAINER_DATA_JINJA_AST_H_
#define FSDP_TRAIN_TRAINER_DATA_JINJA_AST_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "trainer/data/jinja/operators.h"
#include "trainer/data/jinja/value.h"

namespace fsdp::jinja {

struct Expr;
using ExprPtr = std::unique_ptr<Expr>;
struct Filter;
struct Test;

struct Variable {
  int frames_out = 0;
  int slot = 0;
};

// f(positional, name=named, *rest, **rest_named)
struct CallArguments {
  std::vector<ExprPtr> positional;
  std::vector<std::pair<std::string, ExprPtr>> named;
  ExprPtr rest, rest_named;
};

struct Expr {
  enum class Kind : uint8_t {
    kConstant,
    kName,
    kMember,  // A target alone: name.attribute of a namespace.
    kList,
    kTuple,
    kDict,  // Keys and values by turns.
    kConcat,
    kAttribute,  // parts[0].name
    kElement,    // parts[0][parts[1]]
    kSlice,      // parts[0][parts[1]:parts[2]:parts[3]], of which three may be null
    kCall,       // parts[0](...)
    kFilter,     // parts[0]|name(...); parts[0] is null where it is the text of a block
    kTest,       // parts[0] is name(...)
    kNot,
    kNegative,
    kPositive,
    kBinary,
    kAnd,
    kOr,
    kCompare,    // parts[0] comparisons[0] parts[1] comparisons[1] parts[2] ...
    kCondition,  // parts[1] if parts[0] else parts[2], which may be null
  };
  Kind kind = Kind::kConstant;
  int line = 0;
  int depth = 1;  // Depth of the tree below it.
  std::string name, attribute;
  Value constant;
  Variable variable;
  Operator op = Operator::kAdd;
  std::vector<Comparison> comparisons;
  std::vector<ExprPtr> parts;
  CallArguments call;
  const Filter* filter = nullptr;  // Null: jinja2 has none of this name either, known when it runs.
  const Test* test = nullptr;
};

// The values that a frame's variables get when it is entered.
struct FrameLoad {
  enum class From : uint8_t { kContext, kOuter, kMissing };
  int slot = 0;
  From from = From::kMissing;
  std::string name;  // In the context.
  Variable outer;    // Seen from the frame itself.
};
struct FrameLayout {
  int slots = 0;
  std::vector<FrameLoad> loads;
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
    kSetBlock,    // target = bodies[0], through exprs[0], a filter, where there is one
    kFilter,      // bodies[0] through exprs[0]
    kMacro,       // name(parameters): bodies[0]
    kWith,        // targets = exprs: bodies[0]
    kGeneration,  // bodies[0]
    kBreak,
    kContinue,
  };
  struct Parameter {
    std::string name;
    int slot = 0;
    ExprPtr standard;  // Null: none.
  };
  Kind kind = Kind::kText;
  int line = 0;
  std::string text;  // kText's text; a macro's name.
  ExprPtr target, condition;
  std::vector<ExprPtr> exprs, targets;
  std::vector<Block> bodies;
  std::vector<Parameter> parameters;
  Variable variable;                // A macro's, in the frame that defines it.
  int loop_slot = 0;                // The place of `loop`, in frames[0] of a kFor.
  std::vector<FrameLayout> frames;  // kFor: body, condition, else. Others: the body.
};

struct Program {
  std::string name;
  Block body;
  FrameLayout frame;
  bool has_generation = false;
};

}  // namespace fsdp::jinja

#endif  // FSDP_TRAIN_TRAINER_DATA_JINJA_AST_H_
