#include "trainer/data/chat/jinja/template.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "trainer/data/chat/jinja/ast.h"
#include "trainer/data/chat/jinja/builtins.h"
#include "trainer/data/chat/jinja/lexer.h"
#include "trainer/data/chat/jinja/objects.h"
#include "trainer/data/chat/jinja/python_text.h"

namespace fsdp {
namespace jinja {
namespace {

using Kind = Expr::Kind;

struct Macro : Object {
  explicit Macro(const Stmt& macro) : stmt(macro) {}
  const char* type() const override { return "Macro"; }
  const Stmt& stmt;
};

// Renders a parsed template: holds its variables, its output and its budget.
class Machine {
 public:
  using Ranges = std::vector<std::pair<size_t, size_t>>;
  // The arguments must outlive the machine.
  Machine(const Program& program, const Dict& variables, const JinjaOptions& options)
      : program_(program),
        given_(variables),
        date_(options.date),
        budget_(options.steps, options.text_bytes) {}
  ~Machine() {  // Namespaces may hold each other.
    for (const Value& made : namespaces_) made.As<Namespace>()->attributes.clear();
  }

  std::pair<std::string, Ranges> Run() {
    std::string text;
    try {
      out_ = &text;
      Execute(program_.body);
    } catch (const Fault& fault) {
      throw TemplateError(program_.name, line_, fault.what());
    }
    return {std::move(text), std::move(ranges_)};
  }

 private:
  enum class Flow : uint8_t { kOn, kBreak, kContinue };
  // Macros that call themselves, loops in loops, operators in operators: as deep as a stack of a
  // MiB holds, without a sanitizer.
  static constexpr int kMostCalls = 600;
  // The variables of the template, a loop's body, a macro, or a block that is captured; an if has
  // none of its own.
  struct Scope {
    std::map<std::string_view, Value> values;
    Scope* outer = nullptr;
  };

  int Deeper() const {
    if (depth_ >= kMostCalls) throw Fault("calls itself, or nests, too deeply");
    return depth_ + 1;
  }

  // --- Statements ---

  Flow Print(const std::string& text) {
    budget_.CheckText(out_->size() + text.size());
    budget_.Charge(std::ssize(text) / 32);
    *out_ += text;
    return Flow::kOn;
  }
  Flow Print(const Value& value) {
    return Print(value.IsText() ? value.text() : Str(value, budget_));
  }

  Flow Execute(const Block& block) {
    const Scoped<int> depth(depth_, Deeper());
    Flow flow = Flow::kOn;
    for (size_t i = 0; i < block.size() && flow == Flow::kOn; ++i) flow = Execute(*block[i]);
    return flow;
  }

  Flow Execute(const Stmt& stmt) {
    using Do = Stmt::Kind;
    budget_.Charge();
    line_ = stmt.line;
    if (stmt.kind == Do::kText) return Print(stmt.text);
    if (stmt.kind == Do::kOutput) return Print(Evaluate(*stmt.exprs[0]));
    if (stmt.kind == Do::kIf) return If(stmt);
    if (stmt.kind == Do::kFor) return For(stmt);
    if (stmt.kind == Do::kSet) return Assign(*stmt.target, Evaluate(*stmt.exprs[0]));
    if (stmt.kind == Do::kCapture) return Capture(stmt);
    if (stmt.kind == Do::kGeneration) return Generation(stmt);
    if (stmt.kind == Do::kBreak) return Flow::kBreak;
    if (stmt.kind == Do::kContinue) return Flow::kContinue;
    scope_->values[stmt.text] = Value::Of(std::shared_ptr<Object>(std::make_shared<Macro>(stmt)));
    return Flow::kOn;
  }

  Flow If(const Stmt& stmt) {
    for (size_t i = 0; i < stmt.exprs.size(); ++i) {
      if (Truth(Evaluate(*stmt.exprs[i]))) return Execute(stmt.bodies[i]);
    }
    return stmt.bodies.size() > stmt.exprs.size() ? Execute(stmt.bodies.back()) : Flow::kOn;
  }

  Flow For(const Stmt& stmt) {
    Values items = ToList(Evaluate(*stmt.exprs[0]), budget_);
    if (stmt.condition) {
      Scope scope{{}, scope_};
      const Scoped<Scope*> now(scope_, &scope);
      const Scoped<bool> in_condition(in_condition_, true);
      std::erase_if(items, [&](const Value& item) {
        Assign(*stmt.target, item);
        return !Truth(Evaluate(*stmt.condition));
      });
    }
    const auto loop = std::make_shared<Loop>(std::move(items));
    bool any = false;  // As jinja2 sees it: a body has come to its end.
    while (const Value* const item = loop->Next()) {
      budget_.Charge();
      line_ = stmt.line;
      Scope scope{{{"loop", Value::Of(std::shared_ptr<Object>(loop))}}, scope_};
      const Scoped<Scope*> now(scope_, &scope);
      Assign(*stmt.target, *item);
      const Flow flow = Execute(stmt.bodies[0]);
      if (flow == Flow::kBreak) break;
      any |= flow == Flow::kOn;
    }
    if (any || stmt.bodies.size() == 1) return Flow::kOn;
    Scope scope{{}, scope_};
    const Scoped<Scope*> now(scope_, &scope);
    return Execute(stmt.bodies[1]);
  }

  Flow Assign(const Expr& target, const Value& value) {
    if (target.kind == Kind::kName) {
      scope_->values[target.name] = value;
    } else if (target.kind == Kind::kMember) {
      Namespace* const whole = Load(target).As<Namespace>();
      if (!whole)
        throw Fault("assigns to a member of `" + target.name + "`, which is no namespace");
      whole->attributes[target.attribute] = value;
    } else {
      const Values items = ToList(value, budget_);
      if (items.size() != target.parts.size()) {
        throw Fault("wants " + std::to_string(target.parts.size()) + " values, got " +
                    std::to_string(items.size()));
      }
      for (size_t i = 0; i < items.size(); ++i) Assign(*target.parts[i], items[i]);
    }
    return Flow::kOn;
  }

  Flow Capture(const Stmt& stmt) {
    Value text;
    {
      Scope scope{{}, scope_};
      std::string out;
      const Scoped<Scope*> now(scope_, &scope);
      const Scoped<std::string*> into(out_, &out);
      const Flow flow = Execute(stmt.bodies[0]);
      if (flow != Flow::kOn) return flow;
      text = block_text_ = Value::Text(std::move(out));
      if (!stmt.exprs.empty()) text = Evaluate(*stmt.exprs[0]);
    }
    line_ = stmt.line;
    return stmt.target ? Assign(*stmt.target, text) : Print(text);
  }

  Flow Generation(const Stmt& stmt) {
    Scope scope{{}, scope_};
    const Scoped<Scope*> now(scope_, &scope);
    const size_t begin = out_->size();
    Execute(stmt.bodies[0]);
    ranges_.emplace_back(begin, out_->size());
    return Flow::kOn;
  }

  // --- Expressions ---

  Value Evaluate(const Expr& expr) {
    budget_.Charge();
    if (expr.kind == Kind::kConstant) return expr.constant;
    if (expr.kind == Kind::kName) {
      Value value = Load(expr);
      if (value.IsUndefined()) line_ = expr.line;
      return value;
    }
    const Scoped<int> depth(depth_, Deeper());
    if (expr.kind == Kind::kCondition) {
      if (Truth(Evaluate(*expr.parts[0]))) return Evaluate(*expr.parts[1]);
      return expr.parts[2] ? Evaluate(*expr.parts[2])
                           : Value::Undefined("an if without an else gives nothing");
    }
    if (expr.kind == Kind::kBinary && expr.op <= Operator::kAnd) {
      const Value left = Evaluate(*expr.parts[0]);
      return Truth(left) == (expr.op == Operator::kOr) ? left : Evaluate(*expr.parts[1]);
    }
    Values parts;
    for (const ExprPtr& part : expr.parts) parts.push_back(part ? Evaluate(*part) : Value::None());
    const Arguments arguments = EvaluateArguments(expr);
    line_ = expr.line;
    return Combine(expr, parts, arguments);
  }

  // The value of an expression of which the parts are known.
  Value Combine(const Expr& expr, const Values& parts, const Arguments& arguments) {
    if (expr.kind == Kind::kList) return Value::List(parts);
    if (expr.kind == Kind::kTuple) return Value::Tuple(parts);
    if (expr.kind == Kind::kAttribute) {
      const bool space = in_condition_ && parts[0].As<Namespace>();
      if (space) throw Fault(NotAmong("a loop's condition that reads a namespace"));
      return Attribute(parts[0], expr.name);
    }
    if (expr.kind == Kind::kElement) return Element(parts[0], parts[1], budget_);
    if (expr.kind == Kind::kSlice) return Slice(parts[0], parts[1], parts[2], budget_);
    if (expr.kind == Kind::kReversed) return Reversed(parts[0], budget_);
    if (expr.kind == Kind::kCall) return Call(parts[0], arguments);
    if (expr.kind == Kind::kNot) return Value::Bool(!Truth(parts[0]));
    if (expr.kind == Kind::kNegative)
      return Apply(Operator::kSub, Value::Int(0), parts[0], budget_);
    if (expr.kind == Kind::kBinary) return Apply(expr.op, parts[0], parts[1], budget_);
    if (expr.kind == Kind::kDict) {
      Dict dict;
      for (size_t i = 0; i < parts.size(); i += 2) dict.Set(parts[i], parts[i + 1]);
      return Value::Of(std::move(dict));
    }
    if (!expr.builtin) throw Fault("`" + expr.name + "` is neither a filter nor a test");
    return expr.builtin->Call(budget_, expr.parts[0] ? parts[0] : block_text_, arguments);
  }

  Value Load(const Expr& expr) const {
    for (const Scope* scope = scope_; scope; scope = scope->outer) {
      const auto found = scope->values.find(expr.name);
      if (found != scope->values.end()) return found->second;
    }
    const bool own = scope_ != &root_ && program_.own.count(expr.name) > 0;
    const Value* const given = own ? nullptr : given_.Find(expr.name);
    if (given) return *given;
    Value global = FindGlobal(expr.name, date_);
    if (!global.Is(Value::Kind::kMissing)) return global;
    const bool asks_date = expr.name == "strftime_now";
    return Value::Undefined(
        "`" + expr.name + "` is undefined" +
        (asks_date ? ": the template asks for the date, which is given by `data.train.date`" : ""));
  }

  Arguments EvaluateArguments(const Expr& expr) {
    Arguments arguments;
    for (const ExprPtr& given : expr.positional) arguments.positional.push_back(Evaluate(*given));
    const Values rest = expr.rest ? ToList(Evaluate(*expr.rest), budget_) : Values();
    arguments.positional.insert(arguments.positional.end(), rest.begin(), rest.end());
    for (const auto& [name, named] : expr.named) {
      arguments.named.emplace_back(name, Evaluate(*named));
    }
    return arguments;
  }

  Value Call(const Value& callee, const Arguments& arguments) {
    const int line = line_;
    if (callee.IsUndefined()) RefuseUndefined(callee);
    const Macro* const macro = callee.As<Macro>();
    const Function* const function = callee.As<Function>();
    if (!macro && !function) {
      throw Fault(std::string("calls a ") + TypeName(callee) + ", which is no function");
    }
    Value result = macro ? CallMacro(macro->stmt, arguments)
                         : function->builtin.Call(budget_, function->self, arguments);
    if (result.As<Namespace>()) namespaces_.push_back(result);
    line_ = line;
    return result;
  }

  Value CallMacro(const Stmt& macro, const Arguments& arguments) {
    const Scoped<int> depth(depth_, Deeper());
    Scope scope{{}, &root_};
    std::string out;
    const Scoped<Scope*> now(scope_, &scope);
    const Scoped<std::string*> into(out_, &out);
    const auto& parameters = macro.parameters;
    if (arguments.positional.size() > parameters.size()) {
      throw Fault("too many arguments for the macro `" + macro.text + "`");
    }
    for (size_t i = 0; i < arguments.positional.size(); ++i) {
      scope_->values[parameters[i].first] = arguments.positional[i];
    }
    for (const auto& given : arguments.named) {
      const auto found = std::find_if(parameters.begin(), parameters.end(),
                                      [&](const auto& one) { return one.first == given.first; });
      if (found == parameters.end() || !scope_->values.emplace(found->first, given.second).second) {
        throw Fault("the macro `" + macro.text + "` takes no argument `" + given.first + "`");
      }
    }
    for (const auto& [parameter, standard] : parameters) {
      if (scope_->values.count(parameter) > 0) continue;
      scope_->values[parameter] =
          standard ? Evaluate(*standard)
                   : Value::Undefined("the parameter `" + parameter + "` was not provided");
    }
    Execute(macro.bodies[0]);
    return Value::Text(std::move(out));
  }

  const Program& program_;
  const Dict& given_;
  const std::optional<JinjaDate>& date_;
  Budget budget_;
  Scope root_;
  Scope* scope_ = &root_;
  std::string* out_ = nullptr;
  Ranges ranges_;
  Values namespaces_;
  Value block_text_;  // The value of the next filter without one.
  int line_ = 1;
  int depth_ = 0;
  bool in_condition_ = false;  // A loop asks for its condition.
};

}  // namespace
}  // namespace jinja

struct JinjaTemplate::Parsed : jinja::Program {};

JinjaTemplate::JinjaTemplate(const std::string& name, std::string_view source)
    : parsed_(std::make_unique<Parsed>(Parsed{jinja::Parse(name, source)})) {}
JinjaTemplate::JinjaTemplate(JinjaTemplate&& other) noexcept = default;
JinjaTemplate& JinjaTemplate::operator=(JinjaTemplate&& other) noexcept = default;
JinjaTemplate::~JinjaTemplate() = default;

const std::string& JinjaTemplate::name() const { return parsed_->name; }
bool JinjaTemplate::has_generation() const { return parsed_->has_generation; }

JinjaText JinjaTemplate::Render(const nlohmann::ordered_json& variables,
                                const JinjaOptions& options) const {
  jinja::Dict given;
  try {
    for (const auto& [key, value] : variables.items()) {
      given.Set(jinja::Value::Text(key), jinja::FromJson(value));
    }
  } catch (const jinja::Fault& fault) {
    throw jinja::TemplateError(name(), 1, std::string("is given ") + fault.what());
  }
  jinja::Machine machine(*parsed_, given, options);
  auto [text, ranges] = machine.Run();
  return {std::move(text), std::move(ranges)};
}

}  // namespace fsdp
