// Python's objects that are no plain values: functions, namespaces, loops.
// Tests: tests/trainer/data/chat/jinja/jinja_template_test.cc
#ifndef FSDP_TRAIN_TRAINER_DATA_CHAT_JINJA_OBJECTS_H_
#define FSDP_TRAIN_TRAINER_DATA_CHAT_JINJA_OBJECTS_H_

#include <algorithm>
#include <array>
#include <iterator>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "trainer/data/chat/jinja/value.h"

namespace fsdp::jinja {

template <typename Names>
bool Has(const Names& names, std::string_view name) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

// Arguments of a call, in the order given.
struct Arguments {
  Values positional;
  std::vector<std::pair<std::string, Value>> named;
};

// A filter, a test, a method or a function. `self`: the value in front of it.
class Parameters;
struct Builtin {
  using Body = Value (*)(Budget& budget, const Value& self, const Parameters& given);
  std::string_view name;
  Body body;
  size_t required = 0;
  // Those of its parameters that it may be given, of which a template cannot name "/". "*": it
  // looks at the arguments itself.
  std::array<const char*, 3> parameters = {};

  bool LooksItself() const { return parameters[0] && *parameters[0] == '*'; }
  size_t Count() const;                         // Its parameters.
  size_t IndexOf(std::string_view name) const;  // Count(): none is named so.
  Value Call(Budget& budget, const Value& self, const Arguments& arguments) const;
};

// The arguments of a call by parameter, as Python sorts them. Throws Fault for too many, unknown
// ones, those given twice, and for one that is missing but required.
class Parameters {
 public:
  Parameters(const Builtin& of, const Arguments& arguments);
  bool Has(size_t i) const { return !values_[i].Is(Value::Kind::kMissing); }
  const Value& operator[](size_t i) const { return values_[i]; }
  int64_t Integer(size_t i, int64_t standard) const;  // Throws Fault: no integer.
  const std::string& Text(size_t i) const;            // Throws Fault: no text.
  bool Flag(size_t i) const { return Has(i) && Truth(values_[i]); }
  const Arguments& arguments() const { return arguments_; }

 private:
  const Builtin& of_;
  const Arguments& arguments_;
  std::array<Value, 3> values_;
};

// A function of the program's, or a method with the value that it belongs to.
struct Function : Object {
  Function(const Builtin& function, Value of) : builtin(function), self(std::move(of)) {}
  const char* type() const override { return "function"; }
  int depth() const override { return self.depth(); }
  const Builtin& builtin;
  const Value self;
};

// namespace(...): attributes that a template may set. It may hold itself: the renderer clears it.
struct Namespace : Object {
  const char* type() const override { return "Namespace"; }
  Value Attribute(const std::string& name) const override;
  std::map<std::string, Value> attributes;
};

// `loop` of a for.
class Loop : public Object {
 public:
  // `open`: items may follow.
  explicit Loop(Values items, bool open = false) : items_(std::move(items)), open_(open) {}
  static bool Knows(std::string_view attribute);
  const char* type() const override { return "LoopContext"; }
  Value Attribute(const std::string& name) const override;
  const Value* Next();  // Null at the end.
  void Skip(size_t items) { index_ += items; }
  size_t size() const { return items_.size(); }

 private:
  const Values items_;
  const bool open_;
  size_t index_ = 0;  // From 1, once it has begun.
};

}  // namespace fsdp::jinja

#endif  // FSDP_TRAIN_TRAINER_DATA_CHAT_JINJA_OBJECTS_H_
