#include "trainer/data/chat/jinja/objects.h"

#include <algorithm>

namespace fsdp::jinja {

size_t Builtin::Count() const {
  return static_cast<size_t>(std::find(parameters.begin(), parameters.end(), nullptr) -
                             parameters.begin());
}
size_t Builtin::IndexOf(std::string_view name) const {
  const auto* const begin = parameters.begin();
  return static_cast<size_t>(std::find(begin, begin + Count(), name) - begin);
}
Value Builtin::Call(Budget& budget, const Value& self, const Arguments& arguments) const {
  return body(budget, self, Parameters(*this, arguments));
}

Parameters::Parameters(const Builtin& of, const Arguments& arguments)
    : of_(of), arguments_(arguments) {
  if (of.LooksItself()) return;
  const std::string call = "`" + std::string(of.name) + "`";
  if (arguments.positional.size() > of.Count()) {
    throw Fault(call + " takes at most " + std::to_string(of.Count()) + " arguments");
  }
  std::copy(arguments.positional.begin(), arguments.positional.end(), values_.begin());
  for (const auto& [name, value] : arguments.named) {
    const size_t found = of.IndexOf(name);
    if (found == of.Count()) throw Fault(call + " has no argument `" + name + "`");
    if (Has(found)) throw Fault(call + " is given `" + name + "` twice");
    values_[found] = value;
  }
  for (size_t i = 0; i < of.required; ++i) {
    if (!Has(i)) throw Fault(call + " lacks an argument");
  }
}

int64_t Parameters::Integer(size_t i, int64_t standard) const {
  if (!Has(i)) return standard;
  if (values_[i].IsInteger()) return values_[i].integer();
  throw Fault("`" + std::string(of_.name) + "` wants an integer, got " + TypeName(values_[i]));
}

const std::string& Parameters::Text(size_t i) const {
  if (values_[i].IsText()) return values_[i].text();
  throw Fault("`" + std::string(of_.name) + "` wants a text, got " + TypeName(values_[i]));
}

Value Namespace::Attribute(const std::string& name) const {
  const auto found = attributes.find(name);
  return found == attributes.end() ? Value() : found->second;
}

bool Loop::Knows(std::string_view attribute) {
  constexpr std::string_view kNames[] = {"index",    "index0",    "first",    "last",    "length",
                                         "revindex", "revindex0", "previtem", "nextitem"};
  return Has(kNames, attribute);
}

const Value* Loop::Next() { return index_ < items_.size() ? &items_[index_++] : nullptr; }

Value Loop::Attribute(const std::string& name) const {
  const auto index = static_cast<int64_t>(index_), length = std::ssize(items_);
  if (name == "index") return Value::Int(index);
  if (name == "index0") return Value::Int(index - 1);
  if (name == "first") return Value::Bool(index == 1);
  if (name == "last") return Value::Bool(index == length);
  if (name == "length") return Value::Int(length);
  if (name == "revindex") return Value::Int(length - index + 1);
  if (name == "revindex0") return Value::Int(length - index);
  if (name == "previtem" && index > 1) return items_[index_ - 2];
  if (name == "nextitem" && index < length) return items_[index_];
  return {};
}

}  // namespace fsdp::jinja
