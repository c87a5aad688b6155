#include "trainer/data/jinja/scopes.h"

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "trainer/data/jinja/lexer.h"

namespace fsdp::jinja {
namespace {

using From = FrameLoad::From;

// The names of a frame. A copy is of the same frame, as a branch of an if sees it.
class Symbols {
 public:
  explicit Symbols(const Symbols* parent)
      : parent_(parent), slots_(std::make_shared<std::map<std::string, int>>()) {}

  std::optional<Variable> Find(const std::string& name) const {
    if (names_.count(name) > 0) return Variable{0, slots_->at(name)};
    if (!parent_) return std::nullopt;
    std::optional<Variable> outer = parent_->Find(name);
    if (outer) ++outer->frames_out;
    return outer;
  }

  void Load(const std::string& name) {
    if (!Find(name)) Define(name, From::kContext);
  }

  void Store(const std::string& name) {
    stores_.insert(name);
    if (names_.count(name) > 0) return;
    if (const std::optional<Variable> outer = Outer(name)) {
      Define(name, From::kOuter, *outer);
    } else {
      Define(name, From::kMissing);
    }
  }

  int Declare(const std::string& name) {  // A parameter: set by who enters the frame.
    stores_.insert(name);
    names_.insert(name);
    loads_.erase(name);
    return Slot(name);
  }

  // A variable that one branch stores keeps its earlier value where another branch is taken.
  void Join(const std::vector<Symbols>& branches) {
    std::set<std::string> stored;
    for (const Symbols& branch : branches) {
      for (const std::string& name : branch.stores_) {
        if (stores_.count(name) == 0) stored.insert(name);
      }
    }
    for (const Symbols& branch : branches) {
      names_.insert(branch.names_.begin(), branch.names_.end());
      stores_.insert(branch.stores_.begin(), branch.stores_.end());
      for (const auto& [name, load] : branch.loads_) loads_[name] = load;
    }
    for (const std::string& name : stored) {
      if (const std::optional<Variable> outer = Outer(name)) {
        Define(name, From::kOuter, *outer);
      } else {
        Define(name, From::kContext);
      }
    }
  }

  FrameLayout Layout() const {
    FrameLayout layout{.slots = static_cast<int>(slots_->size()), .loads = {}};
    for (const auto& [name, load] : loads_) layout.loads.push_back(load);
    return layout;
  }

 private:
  int Slot(const std::string& name) {
    return slots_->emplace(name, static_cast<int>(slots_->size())).first->second;
  }
  std::optional<Variable> Outer(const std::string& name) const {
    std::optional<Variable> outer = parent_ ? parent_->Find(name) : std::nullopt;
    if (outer) ++outer->frames_out;
    return outer;
  }
  void Define(const std::string& name, From from, Variable outer = {}) {
    names_.insert(name);
    loads_[name] = {.slot = Slot(name), .from = from, .name = name, .outer = outer};
  }

  const Symbols* const parent_;
  std::shared_ptr<std::map<std::string, int>> slots_;
  std::set<std::string> names_, stores_;
  std::map<std::string, FrameLoad> loads_;
};

// The analysis of one frame: it sees the frame's own names, not those of frames in it.
class Analysis {
 public:
  static void Visit(const Expr* expr, Symbols& symbols) {
    if (!expr) return;
    if (expr->kind == Expr::Kind::kName || expr->kind == Expr::Kind::kMember) {
      symbols.Load(expr->name);
    }
    for (const ExprPtr& part : expr->parts) Visit(part.get(), symbols);
    for (const ExprPtr& given : expr->call.positional) Visit(given.get(), symbols);
    for (const auto& [name, given] : expr->call.named) Visit(given.get(), symbols);
    Visit(expr->call.rest.get(), symbols);
    Visit(expr->call.rest_named.get(), symbols);
  }

  static void Target(const Expr& target, Symbols& symbols, bool parameter) {
    if (target.kind == Expr::Kind::kTuple) {
      for (const ExprPtr& part : target.parts) Target(*part, symbols, parameter);
    } else if (target.kind == Expr::Kind::kMember) {
      symbols.Load(target.name);
    } else if (parameter) {
      symbols.Declare(target.name);
    } else {
      symbols.Store(target.name);
    }
  }

  static void Visit(const Block& block, Symbols& symbols) {
    for (const StmtPtr& stmt : block) Visit(*stmt, symbols);
  }

  static void Visit(const Stmt& stmt, Symbols& symbols) {
    switch (stmt.kind) {
      case Stmt::Kind::kOutput:
      case Stmt::Kind::kFor:
      case Stmt::Kind::kFilter:
      case Stmt::Kind::kWith:
        for (const ExprPtr& expr : stmt.exprs) Visit(expr.get(), symbols);
        break;
      case Stmt::Kind::kSet:
        Visit(stmt.exprs[0].get(), symbols);
        Target(*stmt.target, symbols, false);
        break;
      case Stmt::Kind::kSetBlock:
        Target(*stmt.target, symbols, false);
        break;
      case Stmt::Kind::kMacro:
        symbols.Store(stmt.text);
        break;
      case Stmt::Kind::kIf:
        If(stmt, symbols);
        break;
      default:
        break;
    }
  }

 private:
  static void If(const Stmt& stmt, Symbols& symbols) {
    Visit(stmt.exprs[0].get(), symbols);
    std::vector<Symbols> branches(3, symbols);
    Visit(stmt.bodies[0], branches[0]);
    for (size_t i = 1; i < stmt.exprs.size(); ++i) {  // Each elif is an if of one branch.
      Visit(stmt.exprs[i].get(), branches[1]);
      std::vector<Symbols> inner(1, branches[1]);
      Visit(stmt.bodies[i], inner[0]);
      branches[1].Join(inner);
    }
    if (stmt.bodies.size() > stmt.exprs.size()) Visit(stmt.bodies.back(), branches[2]);
    symbols.Join(branches);
  }
};

class Resolver {
 public:
  explicit Resolver(Program& program) : program_(program) {}

  void Run() {
    Symbols symbols(nullptr);
    Analysis::Visit(program_.body, symbols);
    Resolve(program_.body, symbols);
    program_.frame = symbols.Layout();
  }

 private:
  [[noreturn]] void Refuse(int line, const std::string& what) const {
    throw TemplateError(program_.name, line, what);
  }

  Variable Lookup(const std::string& name, Symbols& symbols) {
    symbols.Load(name);
    return *symbols.Find(name);
  }

  void CheckName(const Expr& expr) const {
    const bool special = expr.name == "varargs" || expr.name == "kwargs" || expr.name == "caller";
    if ((special && macro_ && parameters_.count(expr.name) == 0) || expr.name == "self") {
      Refuse(expr.line, "`" + expr.name + "` is not among what chat templates use");
    }
  }

  void Resolve(Expr* expr, Symbols& symbols) {
    if (!expr) return;
    const int soft = soft_;
    if (expr->kind == Expr::Kind::kCondition) ++soft_;
    if (expr->kind == Expr::Kind::kName) {
      CheckName(*expr);
      expr->variable = Lookup(expr->name, symbols);
    }
    if (expr->kind == Expr::Kind::kFilter && !expr->filter && soft_ == 0) {
      Refuse(expr->line, "there is no filter `" + expr->name + "`");
    }
    if (expr->kind == Expr::Kind::kTest && !expr->test && soft_ == 0) {
      Refuse(expr->line, "there is no test `" + expr->name + "`");
    }
    for (const ExprPtr& part : expr->parts) Resolve(part.get(), symbols);
    for (const ExprPtr& given : expr->call.positional) Resolve(given.get(), symbols);
    for (const auto& [name, given] : expr->call.named) Resolve(given.get(), symbols);
    Resolve(expr->call.rest.get(), symbols);
    Resolve(expr->call.rest_named.get(), symbols);
    soft_ = soft;
  }

  void ResolveTarget(Expr& target, Symbols& symbols) {
    if (target.kind == Expr::Kind::kTuple) {
      for (const ExprPtr& part : target.parts) ResolveTarget(*part, symbols);
      return;
    }
    if (target.kind == Expr::Kind::kName && target.name == "loop" && loops_ > 0) {
      Refuse(target.line, "assigns to `loop` within a loop");
    }
    target.variable = Lookup(target.name, symbols);
  }

  void Resolve(Block& block, Symbols& symbols) {
    for (const StmtPtr& stmt : block) Resolve(*stmt, symbols);
  }

  // A body that is a frame of its own, which is not soft, whatever is around it.
  FrameLayout Frame(Block& body, Symbols& symbols) {
    const int soft = std::exchange(soft_, 0);
    Resolve(body, symbols);
    soft_ = soft;
    return symbols.Layout();
  }
  FrameLayout Inner(Block& body, const Symbols& outer) {
    Symbols symbols(&outer);
    Analysis::Visit(body, symbols);
    return Frame(body, symbols);
  }

  void Resolve(Stmt& stmt, Symbols& symbols) {
    switch (stmt.kind) {
      case Stmt::Kind::kIf:
        ++soft_;
        for (const ExprPtr& expr : stmt.exprs) Resolve(expr.get(), symbols);
        for (Block& body : stmt.bodies) Resolve(body, symbols);
        --soft_;
        return;
      case Stmt::Kind::kFor:
        For(stmt, symbols);
        return;
      case Stmt::Kind::kMacro:
        Macro(stmt, symbols);
        return;
      case Stmt::Kind::kSetBlock:
        Captured(stmt, symbols);
        ResolveTarget(*stmt.target, symbols);
        return;
      case Stmt::Kind::kFilter:
        Captured(stmt, symbols);
        return;
      case Stmt::Kind::kWith:
        With(stmt, symbols);
        return;
      case Stmt::Kind::kGeneration:
        stmt.frames.push_back(Inner(stmt.bodies[0], symbols));
        return;
      default:
        for (const ExprPtr& expr : stmt.exprs) Resolve(expr.get(), symbols);
        if (stmt.target) ResolveTarget(*stmt.target, symbols);
    }
  }

  void For(Stmt& stmt, Symbols& symbols) {
    Resolve(stmt.exprs[0].get(), symbols);
    ++loops_;
    Symbols body(&symbols);
    stmt.loop_slot = body.Declare("loop");
    Analysis::Target(*stmt.target, body, true);
    Analysis::Visit(stmt.bodies[0], body);
    ResolveTarget(*stmt.target, body);
    FrameLayout layout = Frame(stmt.bodies[0], body);
    FrameLayout condition;
    if (stmt.condition) {
      Symbols test(&symbols);
      test.Declare("");  // In the place of `loop`: the target has the body's slots.
      Analysis::Target(*stmt.target, test, true);
      Analysis::Visit(stmt.condition.get(), test);
      const int soft = std::exchange(soft_, 0);
      Resolve(stmt.condition.get(), test);
      soft_ = soft;
      condition = test.Layout();
    }
    stmt.frames.push_back(std::move(layout));
    stmt.frames.push_back(std::move(condition));
    stmt.frames.push_back(Inner(stmt.bodies[1], symbols));
    --loops_;
  }

  void Macro(Stmt& stmt, Symbols& symbols) {
    stmt.variable = Lookup(stmt.text, symbols);
    Symbols body(&symbols);
    std::set<std::string> parameters;
    for (Stmt::Parameter& parameter : stmt.parameters) {
      parameter.slot = body.Declare(parameter.name);
      parameters.insert(parameter.name);
    }
    for (const Stmt::Parameter& parameter : stmt.parameters) {
      Analysis::Visit(parameter.standard.get(), body);
    }
    Analysis::Visit(stmt.bodies[0], body);
    std::swap(parameters, parameters_);
    const bool macro = std::exchange(macro_, true);
    const int soft = std::exchange(soft_, 0);
    for (const Stmt::Parameter& parameter : stmt.parameters) {
      Resolve(parameter.standard.get(), body);
    }
    stmt.frames.push_back(Frame(stmt.bodies[0], body));
    soft_ = soft;
    macro_ = macro;
    std::swap(parameters, parameters_);
  }

  // A block that becomes a text, and the filter that takes it.
  void Captured(Stmt& stmt, Symbols& symbols) {
    Symbols body(&symbols);
    Analysis::Visit(stmt.bodies[0], body);
    for (const ExprPtr& filter : stmt.exprs) {
      Analysis::Visit(filter.get(), body);
      const int soft = std::exchange(soft_, 0);
      Resolve(filter.get(), body);
      soft_ = soft;
    }
    stmt.frames.push_back(Frame(stmt.bodies[0], body));
  }

  void With(Stmt& stmt, Symbols& symbols) {
    for (const ExprPtr& expr : stmt.exprs) Resolve(expr.get(), symbols);
    Symbols body(&symbols);
    for (const ExprPtr& target : stmt.targets) Analysis::Target(*target, body, true);
    Analysis::Visit(stmt.bodies[0], body);
    for (const ExprPtr& target : stmt.targets) ResolveTarget(*target, body);
    stmt.frames.push_back(Frame(stmt.bodies[0], body));
  }

  Program& program_;
  std::set<std::string> parameters_;  // The enclosing macro's.
  bool macro_ = false;
  int soft_ = 0, loops_ = 0;
};

}  // namespace

void ResolveNames(Program& program) { Resolver(program).Run(); }

}  // namespace fsdp::jinja
