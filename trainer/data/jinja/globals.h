// Functions and objects that every template can name: range, namespace, raise_exception and others.
// Tests: tests/trainer/data/jinja/jinja_template_test.cc
#ifndef FSDP_TRAIN_TRAINER_DATA_JINJA_GLOBALS_H_
#define FSDP_TRAIN_TRAINER_DATA_JINJA_GLOBALS_H_

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "trainer/data/jinja/machine.h"
#include "trainer/data/jinja/value.h"

namespace fsdp::jinja {

// Missing: none of this name. Without a date there is no `strftime_now`.
Value FindGlobal(const std::string& name, bool has_date);

// namespace(...): attributes that a template may set. None begins with an underscore.
class Namespace : public Object {
 public:
  explicit Namespace(const Dict& attributes);
  const char* type() const override { return "Namespace"; }
  std::string Repr(Budget& budget) const override;
  Value Attribute(const std::string& name) override;
  void Set(const std::string& name, Value value);
  static void CheckName(const std::string& name);  // Throws Fault.

 private:
  // No Dict: what is set anew must not count twice in an extent.
  std::vector<Dict::Entry> attributes_;
  std::unordered_map<std::string, size_t> by_name_;
  mutable bool printing_ = false;
};

// `loop` of a for.
class Loop : public Object, public std::enable_shared_from_this<Loop> {
 public:
  // `cursor` is what the loop runs through, of a value that has a length or not (-1).
  Loop(std::unique_ptr<Cursor> cursor, int64_t length)
      : cursor_(std::move(cursor)), length_(length) {}
  const char* type() const override { return "LoopContext"; }
  std::string Repr(Budget& budget) const override;
  Value Attribute(const std::string& name) override;
  Extent extent() const override { return {}; }

  bool Next(Value& item);
  void End();  // Lets go of what it holds.
  Value Cycle(Arguments& arguments) const;
  Value Changed(Arguments& arguments, Budget& budget);

 private:
  bool Peek();
  int64_t Length();

  std::unique_ptr<Cursor> cursor_;
  std::deque<Value> ahead_;  // Taken from the cursor already.
  int64_t length_;
  int64_t index0_ = -1;
  Value current_, before_;
  std::optional<Values> last_changed_;
};

// A macro, with the frame that it was defined in.
class Macro : public Object {
 public:
  Macro(const Stmt& macro, Scope& scope) : macro_(macro), scope_(scope) {}
  const char* type() const override { return "Macro"; }
  std::string Repr(Budget& budget) const override;
  Value Attribute(const std::string& name) override;
  bool callable() const override { return true; }
  Value Call(Machine& machine, Arguments& arguments) override;

 private:
  const Stmt& macro_;
  Scope& scope_;
};

}  // namespace fsdp::jinja

#endif  // FSDP_TRAIN_TRAINER_DATA_JINJA_GLOBALS_H_
