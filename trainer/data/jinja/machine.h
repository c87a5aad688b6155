// Renders a parsed template: holds its variables, its output and its budget.
// Tests: tests/trainer/data/jinja/jinja_template_test.cc
#ifndef FSDP_TRAIN_TRAINER_DATA_JINJA_MACHINE_H_
#define FSDP_TRAIN_TRAINER_DATA_JINJA_MACHINE_H_

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "trainer/data/jinja/ast.h"
#include "trainer/data/jinja/value.h"

namespace fsdp::jinja {

struct Date {
  int year = 0, month = 1, day = 1;
};

// The variables of a frame that runs.
struct Scope {
  Values slots;
  Scope* outer = nullptr;
  bool kept = false;  // A macro has been defined in it.
  bool closed = false;
};

class Machine {
 public:
  using Ranges = std::vector<std::pair<size_t, size_t>>;  // [begin, end) in bytes of the text.
  // The arguments must outlive the machine.
  Machine(const Program& program, const Dict& variables, const std::optional<Date>& date,
          int64_t steps, size_t text_bytes)
      : program_(program), variables_(variables), date_(date), budget_(steps, text_bytes) {}
  Machine(const Machine&) = delete;
  Machine& operator=(const Machine&) = delete;

  // Call it once. Throws TemplateError.
  std::pair<std::string, Ranges> Run();

  Budget& budget() { return budget_; }
  const std::optional<Date>& date() const { return date_; }

  // As the sandbox of jinja2 finds them: whole.name and whole[key].
  Value Attribute(const Value& whole, const std::string& name);
  Value Element(const Value& whole, const Value& key);
  Value Call(const Value& callee, Arguments& arguments);
  Value CallMacro(const Stmt& macro, Scope& outer, Arguments& arguments);
  // Throw Fault where there is none of this name.
  Value ApplyFilter(const Value& name, const Value& value, Arguments& arguments);
  bool ApplyTest(const Value& name, const Value& value, Arguments& arguments);

  // Owns the objects that can hold themselves.
  Value Own(std::unique_ptr<Object> object);

 private:
  enum class Flow : uint8_t { kOn, kBreak, kContinue };
  // Macros that call themselves, loops in loops, operators in operators: as deep as a stack of a
  // MiB holds, without a sanitizer.
  static constexpr int kMostCalls = 600;
  class Depth {
   public:
    explicit Depth(Machine& machine);
    ~Depth() { --depth_; }
    Depth(const Depth&) = delete;
    Depth& operator=(const Depth&) = delete;

   private:
    int& depth_;
  };
  class InScope;
  class InBuffer;
  class Conditional;

  Flow Execute(const Block& block);
  Flow Execute(const Stmt& stmt);
  Flow If(const Stmt& stmt);
  Flow For(const Stmt& stmt);
  Flow Captured(const Stmt& stmt);
  Flow With(const Stmt& stmt);
  Flow Generation(const Stmt& stmt);
  void Set(const Stmt& stmt);
  void DefineMacro(const Stmt& stmt);
  void Print(const std::string& text);

  void Enter(const FrameLayout& layout);
  Scope& ScopeOf(const Variable& variable);
  Value& Slot(const Variable& variable);
  Value FromContext(const std::string& name) const;
  void Assign(const Expr& target, const Value& value);
  void CheckMembers(const Expr& target);

  Value Evaluate(const Expr& expr);
  Value EvaluateParts(const Expr& expr);
  Value Load(const Expr& expr);
  Value Concatenate(const Expr& expr);
  Value CompareAll(const Expr& expr);
  Value EvaluateCall(const Expr& expr);
  Value Filtered(const Expr& expr);
  Value Tested(const Expr& expr);
  Arguments EvaluateArguments(const CallArguments& call);
  Value SliceOf(const Expr& expr);

  const Program& program_;
  const Dict& variables_;
  const std::optional<Date>& date_;
  Budget budget_;
  std::vector<std::unique_ptr<Object>> objects_;
  std::vector<std::unique_ptr<Scope>> kept_;
  Scope* scope_ = nullptr;
  std::string* out_ = nullptr;
  Ranges ranges_;
  Value block_text_;  // The value of the next filter without one.
  int line_ = 1;
  int depth_ = 0;
};

}  // namespace fsdp::jinja

#endif  // FSDP_TRAIN_TRAINER_DATA_JINJA_MACHINE_H_
