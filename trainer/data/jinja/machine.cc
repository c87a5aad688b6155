#include "trainer/data/jinja/machine.h"

#include "trainer/data/jinja/filters.h"
#include "trainer/data/jinja/globals.h"
#include "trainer/data/jinja/lexer.h"
#include "trainer/data/jinja/methods.h"

namespace fsdp::jinja {

Machine::Depth::Depth(Machine& machine) : depth_(machine.depth_) {
  if (depth_ >= kMostCalls) throw Fault("calls itself, or nests, too deeply");
  ++depth_;
}

class Machine::InScope {
 public:
  // `closes`: what the frame's variables are is gone behind it, for macros defined in it, too.
  InScope(Machine& machine, const FrameLayout& layout, Scope* outer, bool closes)
      : machine_(machine),
        before_(machine.scope_),
        scope_(std::make_unique<Scope>()),
        closes_(closes) {
    scope_->slots.resize(static_cast<size_t>(layout.slots));
    scope_->outer = outer;
    machine.scope_ = scope_.get();
  }
  ~InScope() {
    machine_.scope_ = before_;
    if (!scope_->kept) return;
    if (closes_) {
      scope_->slots.assign(scope_->slots.size(), Value());
      scope_->closed = true;
    }
    machine_.kept_.push_back(std::move(scope_));
  }
  InScope(const InScope&) = delete;
  InScope& operator=(const InScope&) = delete;
  Scope* get() const { return scope_.get(); }

 private:
  Machine& machine_;
  Scope* const before_;
  std::unique_ptr<Scope> scope_;
  const bool closes_;
};

class Machine::InBuffer {
 public:
  explicit InBuffer(Machine& machine)
      : machine_(machine), before_(std::exchange(machine.out_, &text_)) {}
  ~InBuffer() { machine_.out_ = before_; }
  InBuffer(const InBuffer&) = delete;
  InBuffer& operator=(const InBuffer&) = delete;
  std::string Take() { return std::move(text_); }

 private:
  Machine& machine_;
  std::string text_;
  std::string* const before_;
};

// The items of a loop for which its condition holds, each asked for when it is its turn.
class Machine::Conditional : public Cursor {
 public:
  Conditional(Machine& machine, const Stmt& stmt, std::unique_ptr<Cursor> cursor, Scope* outer)
      : machine_(machine), stmt_(stmt), cursor_(std::move(cursor)), outer_(outer) {}
  bool Next(Value& item) override {
    const InScope scope(machine_, stmt_.frames[1], outer_, true);
    machine_.Enter(stmt_.frames[1]);
    while (cursor_->Next(item)) {
      machine_.budget_.Charge();
      machine_.Assign(*stmt_.target, item);
      if (Truth(machine_.Evaluate(*stmt_.condition))) return true;
    }
    return false;
  }

 private:
  Machine& machine_;
  const Stmt& stmt_;
  const std::unique_ptr<Cursor> cursor_;
  Scope* const outer_;
};

std::pair<std::string, Machine::Ranges> Machine::Run() {
  std::string text;
  try {
    out_ = &text;
    const InScope scope(*this, program_.frame, nullptr, false);
    Enter(program_.frame);
    Execute(program_.body);
  } catch (const Fault& fault) {
    throw TemplateError(program_.name, line_, fault.what());
  }
  return {std::move(text), std::move(ranges_)};
}

Value Machine::Own(std::unique_ptr<Object> object) {
  budget_.Charge(50);  // It stays until the end.
  Object* const known = object.get();
  objects_.push_back(std::move(object));
  return Value::Of(std::shared_ptr<Object>(std::shared_ptr<void>(), known));
}

void Machine::Enter(const FrameLayout& layout) {
  for (const FrameLoad& load : layout.loads) {
    Value& slot = scope_->slots[static_cast<size_t>(load.slot)];
    switch (load.from) {
      case FrameLoad::From::kMissing:
        slot = Value();
        break;
      case FrameLoad::From::kOuter:
        slot = Slot(load.outer);
        break;
      case FrameLoad::From::kContext:
        slot = FromContext(load.name);
    }
  }
}

Scope& Machine::ScopeOf(const Variable& variable) {
  Scope* scope = scope_;
  for (int i = 0; i < variable.frames_out; ++i) scope = scope->outer;
  return *scope;
}

Value& Machine::Slot(const Variable& variable) {
  return ScopeOf(variable).slots[static_cast<size_t>(variable.slot)];
}

Value Machine::FromContext(const std::string& name) const {
  if (const Value* given = variables_.Find(std::string_view(name))) return *given;
  return FindGlobal(name, date_.has_value());
}

void Machine::Print(const std::string& text) {
  budget_.CheckText(out_->size() + text.size());
  budget_.Charge(static_cast<int64_t>(text.size() / 32));
  *out_ += text;
}

Machine::Flow Machine::Execute(const Block& block) {
  const Depth depth(*this);
  for (const StmtPtr& stmt : block) {
    const Flow flow = Execute(*stmt);
    if (flow != Flow::kOn) return flow;
  }
  return Flow::kOn;
}

Machine::Flow Machine::Execute(const Stmt& stmt) {
  budget_.Charge();
  line_ = stmt.line;
  switch (stmt.kind) {
    case Stmt::Kind::kText:
      Print(stmt.text);
      return Flow::kOn;
    case Stmt::Kind::kOutput: {
      const Value value = Evaluate(*stmt.exprs[0]);
      line_ = stmt.line;
      if (value.IsText()) {
        Print(value.text());
      } else {
        Print(Str(value, budget_));
      }
      return Flow::kOn;
    }
    case Stmt::Kind::kIf:
      return If(stmt);
    case Stmt::Kind::kFor:
      return For(stmt);
    case Stmt::Kind::kSet:
      Set(stmt);
      return Flow::kOn;
    case Stmt::Kind::kSetBlock:
    case Stmt::Kind::kFilter:
      return Captured(stmt);
    case Stmt::Kind::kMacro:
      DefineMacro(stmt);
      return Flow::kOn;
    case Stmt::Kind::kWith:
      return With(stmt);
    case Stmt::Kind::kGeneration:
      return Generation(stmt);
    case Stmt::Kind::kBreak:
      return Flow::kBreak;
    case Stmt::Kind::kContinue:
      return Flow::kContinue;
  }
  return Flow::kOn;
}

Machine::Flow Machine::If(const Stmt& stmt) {
  for (size_t i = 0; i < stmt.exprs.size(); ++i) {
    if (Truth(Evaluate(*stmt.exprs[i]))) return Execute(stmt.bodies[i]);
  }
  return stmt.bodies.size() > stmt.exprs.size() ? Execute(stmt.bodies.back()) : Flow::kOn;
}

Machine::Flow Machine::For(const Stmt& stmt) {
  const Value whole = Evaluate(*stmt.exprs[0]);
  line_ = stmt.line;
  std::unique_ptr<Cursor> cursor = Iterate(whole, budget_);
  int64_t length = HasLength(whole) ? Length(whole) : -1;
  if (stmt.condition) {
    cursor = std::make_unique<Conditional>(*this, stmt, std::move(cursor), scope_);
    length = -1;
  }
  bool any = false;  // As jinja2 sees it: a body has come to its end.
  {
    const InScope scope(*this, stmt.frames[0], scope_, true);
    const auto loop = std::make_shared<Loop>(std::move(cursor), length);
    struct Ending {
      Loop& loop;
      ~Ending() { loop.End(); }
    } const ending{*loop};
    const Value loop_value = Value::Of(std::shared_ptr<Object>(loop));
    for (Value item; loop->Next(item);) {
      budget_.Charge();
      line_ = stmt.line;
      Enter(stmt.frames[0]);
      scope.get()->slots[static_cast<size_t>(stmt.loop_slot)] = loop_value;
      Assign(*stmt.target, item);
      const Flow flow = Execute(stmt.bodies[0]);
      if (flow == Flow::kBreak) break;
      if (flow == Flow::kOn) any = true;
    }
  }
  if (any || stmt.bodies[1].empty()) return Flow::kOn;
  const InScope scope(*this, stmt.frames[2], scope_, true);
  Enter(stmt.frames[2]);
  return Execute(stmt.bodies[1]);
}

void Machine::CheckMembers(const Expr& target) {
  for (const ExprPtr& part : target.parts) CheckMembers(*part);
  if (target.kind != Expr::Kind::kMember) return;
  const Value& whole = Slot(target.variable);
  if (!whole.Is(Value::Kind::kObject) || !dynamic_cast<Namespace*>(&whole.object())) {
    throw Fault("assigns to `" + target.name + "." + target.attribute + "`, but `" + target.name +
                "` is no namespace");
  }
}

void Machine::Assign(const Expr& target, const Value& value) {
  if (target.kind == Expr::Kind::kName) {
    Slot(target.variable) = value;
    return;
  }
  if (target.kind == Expr::Kind::kMember) {
    static_cast<Namespace&>(Slot(target.variable).object()).Set(target.attribute, value);
    return;
  }
  const std::unique_ptr<Cursor> cursor = Iterate(value, budget_);
  const std::string want = "wants " + std::to_string(target.parts.size()) + " values, got ";
  Values items;
  for (Value item; cursor->Next(item);) {
    if (items.size() == target.parts.size()) throw Fault(want + "more");
    items.push_back(std::move(item));
  }
  if (items.size() < target.parts.size()) throw Fault(want + std::to_string(items.size()));
  for (size_t i = 0; i < items.size(); ++i) Assign(*target.parts[i], items[i]);
}

void Machine::Set(const Stmt& stmt) {
  CheckMembers(*stmt.target);
  const Value value = Evaluate(*stmt.exprs[0]);
  line_ = stmt.line;
  Assign(*stmt.target, value);
}

Machine::Flow Machine::Captured(const Stmt& stmt) {
  Value text;
  {
    const InScope scope(*this, stmt.frames[0], scope_, true);
    Enter(stmt.frames[0]);
    InBuffer buffer(*this);
    const Flow flow = Execute(stmt.bodies[0]);
    if (flow != Flow::kOn) return flow;
    text = Value::Text(buffer.Take());
    if (!stmt.exprs.empty()) {
      block_text_ = text;
      text = Evaluate(*stmt.exprs[0]);
    }
  }
  line_ = stmt.line;
  if (stmt.kind == Stmt::Kind::kFilter) {
    Print(Str(text, budget_));
  } else {
    CheckMembers(*stmt.target);
    Assign(*stmt.target, text);
  }
  return Flow::kOn;
}

void Machine::DefineMacro(const Stmt& stmt) {
  budget_.Charge(20);  // Its scopes stay until the end.
  for (Scope* scope = scope_; scope && !scope->kept; scope = scope->outer) scope->kept = true;
  Slot(stmt.variable) = Value::Of(std::shared_ptr<Object>(std::make_shared<Macro>(stmt, *scope_)));
}

Machine::Flow Machine::With(const Stmt& stmt) {
  Values values;
  for (const ExprPtr& expr : stmt.exprs) values.push_back(Evaluate(*expr));
  const InScope scope(*this, stmt.frames[0], scope_, true);
  Enter(stmt.frames[0]);
  for (size_t i = 0; i < values.size(); ++i) Assign(*stmt.targets[i], values[i]);
  return Execute(stmt.bodies[0]);
}

Machine::Flow Machine::Generation(const Stmt& stmt) {
  const InScope scope(*this, stmt.frames[0], scope_, false);
  Enter(stmt.frames[0]);
  const size_t begin = out_->size();
  Execute(stmt.bodies[0]);
  ranges_.emplace_back(begin, out_->size());
  return Flow::kOn;
}

Value Machine::CallMacro(const Stmt& macro, Scope& outer, Arguments& arguments) {
  const Depth depth(*this);
  const InScope scope(*this, macro.frames[0], &outer, false);
  Enter(macro.frames[0]);
  if (arguments.positional.size() > macro.parameters.size()) {
    throw Fault("the macro `" + macro.text + "` takes at most " +
                std::to_string(macro.parameters.size()) + " arguments");
  }
  std::vector<bool> taken(arguments.named.size());
  for (size_t i = 0; i < macro.parameters.size(); ++i) {
    Value& slot = scope.get()->slots[static_cast<size_t>(macro.parameters[i].slot)];
    slot = i < arguments.positional.size() ? arguments.positional[i] : Value();
    for (size_t j = 0; i >= arguments.positional.size() && j < arguments.named.size(); ++j) {
      if (arguments.named[j].first != macro.parameters[i].name) continue;
      slot = arguments.named[j].second;
      taken[j] = true;
    }
  }
  for (size_t j = 0; j < taken.size(); ++j) {
    if (!taken[j]) {
      throw Fault("the macro `" + macro.text + "` takes no argument `" + arguments.named[j].first +
                  "`");
    }
  }
  for (const Stmt::Parameter& parameter : macro.parameters) {
    Value& slot = scope.get()->slots[static_cast<size_t>(parameter.slot)];
    if (!slot.Is(Value::Kind::kMissing)) continue;
    Value standard =
        parameter.standard
            ? Evaluate(*parameter.standard)
            : Value::Undefined("the parameter `" + parameter.name + "` was not provided");
    slot = std::move(standard);
  }
  InBuffer buffer(*this);
  Execute(macro.bodies[0]);
  return Value::Text(buffer.Take());
}

}  // namespace fsdp::jinja
