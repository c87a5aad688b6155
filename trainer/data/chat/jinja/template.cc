#include "trainer/data/chat/jinja/template.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>

#include "trainer/core/check.h"
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

// Results of the bodies of a loop over an open list. Renderings with some of its items do the
// same until the last item of theirs, because no body has looked at what follows (Observed).
struct LoopMemory {
  struct Point {  // After so many bodies.
    size_t bytes = 0;
    int64_t left = 0;                                // The budget's rest.
    std::vector<std::map<std::string, Value>> made;  // Attributes of the namespaces made before.
  };
  const Stmt* loop = nullptr;
  std::string text;  // From the template's begin.
  std::vector<Point> points;
};

// Thrown where a loop over an open list has ended.
struct Remembered {};

// Values that change: a copy is not the value as it was.
bool Changes(const Value& value) { return value.open() || value.Is(Value::Kind::kObject); }
bool IsGenerator(const Value& value) {
  const Items* const items = value.As<Items>();
  return items != nullptr && items->is_generator();
}

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

  // `from`: the loop begins with its last item.
  std::pair<std::string, Ranges> Run(const LoopMemory* from = nullptr) {
    std::string text;
    try {
      text_ = out_ = &text;
      from_ = from;
      Execute(program_.body);
    } catch (const Fault& fault) {
      throw TemplateError(program_.name, line_, fault.what());
    }
    return {std::move(text), std::move(ranges_)};
  }

  // Runs up to the end of the first loop over an open list. No points: renderings with some of its
  // items have to run all of it. `flag`: a variable that they differ by.
  LoopMemory Remember(std::string_view flag) {
    LoopMemory memory;
    text_ = out_ = &memory.text;
    into_ = &memory;
    flag_ = flag;
    budget_.SetCommon(2);
    try {
      Execute(program_.body);
    } catch (const Remembered&) {
      return memory;
    } catch (const Observed&) {
    } catch (const Fault&) {
    }
    return {};
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

  // Notes the state before the next body of a loop over an open list.
  void Note(const Loop& loop, size_t skipped) {
    LoopMemory::Point point{into_->text.size(), budget_.left(), {}};
    const size_t made = into_->points.empty() ? namespaces_.size() : into_->points[0].made.size();
    for (size_t i = 0; i < made; ++i) {
      point.made.push_back(namespaces_[i].As<Namespace>()->attributes);
      for (const auto& [name, value] : point.made.back()) {
        if (Holds(value, Changes)) throw Observed();
      }
    }
    into_->points.push_back(std::move(point));
    // The next body is that of all renderings with one more item than it takes.
    budget_.SetCommon(skipped + into_->points.size() + 1);
    if (into_->points.size() >= loop.size()) throw Remembered();
  }

  // As if all bodies but the last had run.
  void GoOn(Loop& loop) {
    const LoopMemory& from = *std::exchange(from_, nullptr);
    const size_t bodies = loop.size() - 1;
    const LoopMemory::Point &begin = from.points[0], &end = from.points.at(bodies);
    FSDP_CHECK(out_ == text_ && begin.made.size() == namespaces_.size() &&
               begin.bytes == text_->size());
    *text_ = from.text.substr(0, end.bytes);
    budget_.Charge(begin.left - end.left);
    for (size_t i = 0; i < end.made.size(); ++i) {
      namespaces_[i].As<Namespace>()->attributes = end.made[i];
    }
    loop.Skip(bodies);
  }

  Flow For(const Stmt& stmt) {
    const Value whole = Evaluate(*stmt.exprs[0]);
    const bool notes = whole.open();
    if (notes && (into_->loop || out_ != text_ || stmt.condition || stmt.bodies.size() > 1)) {
      throw Observed();
    }
    for (const Scope* scope = notes ? scope_ : nullptr; scope != nullptr; scope = scope->outer) {
      for (const auto& [name, value] : scope->values) {
        if (Holds(value, IsGenerator)) throw Observed();  // A body could run through it.
      }
    }
    Values items = notes ? Values(whole.known().begin() + static_cast<int64_t>(whole.skipped()),
                                  whole.known().end())
                         : ToList(whole, budget_);
    if (stmt.condition) {
      Scope scope{{}, scope_};
      const Scoped<Scope*> now(scope_, &scope);
      const Scoped<bool> in_condition(in_condition_, true);
      std::erase_if(items, [&](const Value& item) {
        Assign(*stmt.target, item);
        return !Truth(Evaluate(*stmt.condition));
      });
    }
    const auto loop = std::make_shared<Loop>(std::move(items), notes);
    if (notes) {
      into_->loop = &stmt;
      Note(*loop, whole.skipped());
    } else if (from_ && from_->loop == &stmt) {
      GoOn(*loop);
    }
    bool any = false;  // As jinja2 sees it: a body has come to its end.
    while (const Value* const item = loop->Next()) {
      budget_.Charge();
      line_ = stmt.line;
      Scope scope{{{"loop", Value::Of(std::shared_ptr<Object>(loop))}}, scope_};
      const Scoped<Scope*> now(scope_, &scope);
      Assign(*stmt.target, *item);
      const Flow flow = Execute(stmt.bodies[0]);
      if (notes && flow == Flow::kBreak) throw Observed();
      if (flow == Flow::kBreak) break;
      any |= flow == Flow::kOn;
      if (notes) Note(*loop, whole.skipped());
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
    if (given && into_ && expr.name == flag_) throw Observed();
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
  std::string *out_ = nullptr, *text_ = nullptr;  // The latter is the template's own.
  LoopMemory* into_ = nullptr;                    // Remember()'s.
  const LoopMemory* from_ = nullptr;              // Until the loop.
  std::string_view flag_;
  Ranges ranges_;
  Values namespaces_;
  Value block_text_;  // The value of the next filter without one.
  int line_ = 1;
  int depth_ = 0;
  bool in_condition_ = false;  // A loop asks for its condition.
};

Dict Given(const std::string& name, const nlohmann::ordered_json& variables) {
  Dict given;
  try {
    for (const auto& [key, value] : variables.items()) given.Set(Value::Text(key), FromJson(value));
  } catch (const Fault& fault) {
    throw TemplateError(name, 1, std::string("is given ") + fault.what());
  }
  return given;
}

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
  const jinja::Dict given = jinja::Given(name(), variables);
  jinja::Machine machine(*parsed_, given, options);
  auto [text, ranges] = machine.Run();
  return {std::move(text), std::move(ranges)};
}

struct JinjaPrefixes::State {
  const jinja::Program& program;
  const jinja::Value list, flag;
  const JinjaOptions options;
  jinja::Dict given;
  jinja::Values items;
  jinja::LoopMemory memory;

  jinja::Machine With(jinja::Value whole, bool value) {
    given.Set(list, std::move(whole));
    given.Set(flag, jinja::Value::Bool(value));
    return jinja::Machine(program, given, options);
  }
};

JinjaPrefixes::JinjaPrefixes(const JinjaTemplate& of, const nlohmann::ordered_json& variables,
                             const std::string& list, const std::string& flag,
                             const JinjaOptions& options)
    : state_(new State{*of.parsed_,
                       jinja::Value::Text(list),
                       jinja::Value::Text(flag),
                       options,
                       jinja::Given(of.name(), variables),
                       {},
                       {}}) {
  state_->items = state_->given.Find(list)->items();
  state_->memory = state_->With(jinja::Value::Open(state_->items), false).Remember(flag);
}
JinjaPrefixes::~JinjaPrefixes() = default;

bool JinjaPrefixes::remembers() const { return !state_->memory.points.empty(); }

std::string JinjaPrefixes::Render(size_t count, bool flag) {
  const jinja::Values& all = state_->items;
  jinja::Values first(all.begin(), all.begin() + static_cast<int64_t>(count));
  // With fewer items the template may have taken another way to its loop.
  const bool goes_on = remembers() && count >= 2;
  return state_->With(jinja::Value::List(std::move(first)), flag)
      .Run(goes_on ? &state_->memory : nullptr)
      .first;
}

}  // namespace fsdp
