#include "trainer/data/jinja/globals.h"

#include <algorithm>
#include <ctime>

#include "trainer/data/jinja/objects.h"
#include "trainer/data/jinja/operators.h"

namespace fsdp::jinja {
namespace {

Value MakeFunction(const char* name, Function::Body body) {
  return Value::Of(std::shared_ptr<Object>(std::make_shared<Function>(name, Value(), body)));
}

Value RaiseException(Machine& machine, const Value& /*self*/, Arguments& arguments) {
  const Parameters given("raise_exception", arguments, {"message"}, 1);
  throw Fault("the template refuses this: " + Str(given[0], machine.budget()));
}

Value RangeFunction(Machine& machine, const Value& /*self*/, Arguments& arguments) {
  if (!arguments.named.empty()) throw Fault("`range` takes no named arguments");
  const Parameters given("range", arguments, {"start", "stop", "step"}, 1);
  machine.budget().Charge();
  const int64_t first = given.Integer(0, 0);
  if (!given.Has(1)) return Range(0, first, 1);
  return Range(first, given.Integer(1, 0), given.Integer(2, 1));
}

// dict(mapping or pairs, **named)
Dict DictOf(Machine& machine, Arguments& arguments, const char* name) {
  if (arguments.positional.size() > 1) {
    throw Fault(std::string("`") + name + "` takes at most 1 argument without a name");
  }
  Dict dict;
  if (!arguments.positional.empty()) {
    const Value& source = arguments.positional[0];
    if (source.IsDict()) {
      machine.budget().Charge(static_cast<int64_t>(source.dict().size()));
      dict = source.dict();
    } else {
      for (const Value& item : ToList(source, machine.budget())) {
        const Values pair = ToList(item, machine.budget());
        if (pair.size() != 2) throw Fault(std::string("`") + name + "` wants pairs");
        dict.Set(pair[0], pair[1]);
      }
    }
  }
  for (auto& [key, value] : arguments.named) dict.Set(Value::Text(key), std::move(value));
  return dict;
}

Value NamespaceFunction(Machine& machine, const Value& /*self*/, Arguments& arguments) {
  const Dict attributes = DictOf(machine, arguments, "namespace");
  for (const auto& [name, value] : attributes.entries()) {
    if (name.IsText()) Namespace::CheckName(name.text());
  }
  return machine.Own(std::make_unique<Namespace>(attributes));
}

class DictType : public Object {
 public:
  const char* type() const override { return "TemplateDict"; }
  bool callable() const override { return true; }
  Value Attribute(const std::string& name) override {
    if (name == "fromkeys") throw Fault("`dict.fromkeys` is not among what chat templates use");
    return {};
  }
  Value Call(Machine& machine, Arguments& arguments) override {
    return Value::Of(DictOf(machine, arguments, "dict"));
  }
};

Value NextMethod(Machine& machine, const Value& self, Arguments& arguments);
Value ResetMethod(Machine& machine, const Value& self, Arguments& arguments);

class Lipsum : public Object {
 public:
  const char* type() const override { return "function"; }
  bool callable() const override { return true; }
  Value Call(Machine& /*machine*/, Arguments& /*arguments*/) override {
    throw Fault("`lipsum` is not among what chat templates use");
  }
};

class Cycler : public Object, public std::enable_shared_from_this<Cycler> {
 public:
  explicit Cycler(Values items) : items_(std::move(items)), extent_(Around(items_)) {}
  const char* type() const override { return "Cycler"; }
  Extent extent() const override { return extent_; }
  Value Attribute(const std::string& name) override {
    if (name == "current") return items_[at_];
    if (name == "pos") return Value::Int(static_cast<int64_t>(at_));
    if (name == "items") return Value::Tuple(items_);
    if (name != "next" && name != "reset") return {};
    return Value::Of(std::shared_ptr<Object>(
        std::make_shared<Function>(name, Value::Of(std::shared_ptr<Object>(shared_from_this())),
                                   name == "next" ? NextMethod : ResetMethod)));
  }
  Value Next() {
    Value item = items_[at_];
    at_ = (at_ + 1) % items_.size();
    return item;
  }
  void Reset() { at_ = 0; }

 private:
  const Values items_;
  const Extent extent_;
  size_t at_ = 0;
};

class Joiner : public Object {
 public:
  explicit Joiner(Value between) : between_(std::move(between)) {}
  const char* type() const override { return "Joiner"; }
  bool callable() const override { return true; }
  Extent extent() const override { return between_.extent(); }
  Value Call(Machine& /*machine*/, Arguments& arguments) override {
    const Parameters given("joiner", arguments, {});
    if (used_) return between_;
    used_ = true;
    return Value::Text("");
  }

 private:
  const Value between_;
  bool used_ = false;
};

Value CyclerFunction(Machine& /*machine*/, const Value& /*self*/, Arguments& arguments) {
  if (arguments.positional.empty() || !arguments.named.empty()) {
    throw Fault("`cycler` wants items, without names");
  }
  return Value::Of(std::shared_ptr<Object>(std::make_shared<Cycler>(arguments.positional)));
}

Value JoinerFunction(Machine& /*machine*/, const Value& /*self*/, Arguments& arguments) {
  const Parameters given("joiner", arguments, {"sep"});
  return Value::Of(std::shared_ptr<Object>(
      std::make_shared<Joiner>(given.Has(0) ? given[0] : Value::Text(", "))));
}

Value StrftimeNow(Machine& machine, const Value& /*self*/, Arguments& arguments) {
  const Parameters given("strftime_now", arguments, {"format"}, 1);
  const std::string& format = given.Text(0);
  const Date& date = *machine.date();
  std::tm time = {};
  time.tm_year = date.year - 1900;
  time.tm_mon = date.month - 1;
  time.tm_mday = date.day;
  timegm(&time);  // Fills in the days of week and year.
  std::string out;
  for (size_t i = 0; i < format.size(); ++i) {
    if (format[i] != '%') {
      out += format[i];
      continue;
    }
    std::string directive = "%";
    if (i + 1 < format.size() && format[i + 1] == '-') directive += format[++i];
    const char letter = i + 1 < format.size() ? format[++i] : 0;
    if (letter == 0 ||
        std::string_view("aAbBdejmyYHIMSpuwUW%FDT").find(letter) == std::string_view::npos) {
      throw Fault("`strftime_now` knows no `" + directive + std::string(letter ? 1 : 0, letter) +
                  "`");
    }
    char text[64];
    out.append(text, std::strftime(text, sizeof text, (directive + letter).c_str(), &time));
  }
  return Value::Text(std::move(out));
}

Value NextMethod(Machine& /*machine*/, const Value& self, Arguments& arguments) {
  const Parameters given("cycler.next", arguments, {});
  return static_cast<Cycler&>(self.object()).Next();
}
Value ResetMethod(Machine& /*machine*/, const Value& self, Arguments& arguments) {
  const Parameters given("cycler.reset", arguments, {});
  static_cast<Cycler&>(self.object()).Reset();
  return Value::None();
}

Value CycleMethod(Machine& /*machine*/, const Value& self, Arguments& arguments) {
  return static_cast<Loop&>(self.object()).Cycle(arguments);
}
Value ChangedMethod(Machine& machine, const Value& self, Arguments& arguments) {
  return static_cast<Loop&>(self.object()).Changed(arguments, machine.budget());
}

}  // namespace

Value FindGlobal(const std::string& name, bool has_date) {
  if (name == "raise_exception") return MakeFunction("raise_exception", RaiseException);
  if (name == "range") return MakeFunction("range", RangeFunction);
  if (name == "namespace") return MakeFunction("namespace", NamespaceFunction);
  if (name == "dict") return Value::Of(std::shared_ptr<Object>(std::make_shared<DictType>()));
  if (name == "cycler") return MakeFunction("cycler", CyclerFunction);
  if (name == "joiner") return MakeFunction("joiner", JoinerFunction);
  if (name == "lipsum") return Value::Of(std::shared_ptr<Object>(std::make_shared<Lipsum>()));
  if (name == "strftime_now" && has_date) return MakeFunction("strftime_now", StrftimeNow);
  return {};
}

// --- namespace ---

Namespace::Namespace(const Dict& attributes) : attributes_(attributes.entries()) {
  for (size_t i = 0; i < attributes_.size(); ++i) {
    if (attributes_[i].first.IsText()) by_name_[attributes_[i].first.text()] = i;
  }
}

std::string Namespace::Repr(Budget& budget) const {
  if (printing_) throw Fault("prints a namespace that holds itself");
  struct Printing {
    bool& on;
    explicit Printing(bool& flag) : on(flag) { on = true; }
    ~Printing() { on = false; }
  } const printing(printing_);
  Dict all;
  for (const auto& [name, value] : attributes_) all.Set(name, value);
  return "<Namespace " + jinja::Repr(Value::Of(std::move(all)), budget) + ">";
}

Value Namespace::Attribute(const std::string& name) {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? Value() : attributes_[found->second].second;
}

void Namespace::Set(const std::string& name, Value value) {
  CheckName(name);
  const auto [found, added] = by_name_.emplace(name, attributes_.size());
  if (added) {
    attributes_.emplace_back(Value::Text(name), std::move(value));
  } else {
    attributes_[found->second].second = std::move(value);
  }
}

void Namespace::CheckName(const std::string& name) {
  if (name.starts_with('_')) {
    throw Fault("a namespace has no `" + name + "`: names do not begin with an underscore there");
  }
}

// --- loop ---

std::string Loop::Repr(Budget& /*budget*/) const {
  if (length_ < 0) throw Fault("prints a loop the length of which is not known");
  return "<LoopContext " + std::to_string(index0_ + 1) + "/" + std::to_string(length_) + ">";
}

bool Loop::Peek() {
  if (!ahead_.empty()) return true;
  Value item;
  if (!cursor_ || !cursor_->Next(item)) return false;
  ahead_.push_back(std::move(item));
  return true;
}

int64_t Loop::Length() {
  if (length_ >= 0) return length_;
  for (Value item; cursor_ && cursor_->Next(item);) ahead_.push_back(std::move(item));
  length_ = index0_ + 1 + static_cast<int64_t>(ahead_.size());
  return length_;
}

bool Loop::Next(Value& item) {
  if (!Peek()) return false;
  before_ = std::move(current_);
  current_ = item = ahead_.front();
  ahead_.pop_front();
  ++index0_;
  return true;
}

void Loop::End() {
  cursor_ = nullptr;
  ahead_.clear();
  last_changed_.reset();
  current_ = before_ = Value();
  if (length_ < 0) length_ = index0_ + 1;
}

Value Loop::Attribute(const std::string& name) {
  if (name == "index") return Value::Int(index0_ + 1);
  if (name == "index0") return Value::Int(index0_);
  if (name == "first") return Value::Bool(index0_ == 0);
  if (name == "last") return Value::Bool(!Peek());
  if (name == "length") return Value::Int(Length());
  if (name == "revindex") return Value::Int(Length() - index0_);
  if (name == "revindex0") return Value::Int(Length() - index0_ - 1);
  if (name == "depth") return Value::Int(1);
  if (name == "depth0") return Value::Int(0);
  if (name == "previtem") {
    return index0_ == 0 ? Value::Undefined("there is no previous item") : before_;
  }
  if (name == "nextitem") {
    return Peek() ? ahead_.front() : Value::Undefined("there is no next item");
  }
  const bool cycle = name == "cycle";
  if (!cycle && name != "changed") return {};
  return Value::Of(std::shared_ptr<Object>(
      std::make_shared<Function>(name, Value::Of(std::shared_ptr<Object>(shared_from_this())),
                                 cycle ? CycleMethod : ChangedMethod)));
}

Value Loop::Cycle(Arguments& arguments) const {
  if (arguments.positional.empty() || !arguments.named.empty()) {
    throw Fault("`loop.cycle` wants items, without names");
  }
  return arguments.positional[static_cast<size_t>(index0_) % arguments.positional.size()];
}

Value Loop::Changed(Arguments& arguments, Budget& budget) {
  if (!arguments.named.empty()) throw Fault("`loop.changed` takes no named arguments");
  if (!cursor_) throw Fault("`loop.changed` behind the loop");
  Values& now = arguments.positional;
  bool same = last_changed_ && last_changed_->size() == now.size();
  for (size_t i = 0; same && i < now.size(); ++i) {
    same = Same((*last_changed_)[i], now[i]) ||
           Compare(Comparison::kEq, (*last_changed_)[i], now[i], budget);
  }
  if (!same) last_changed_ = now;
  return Value::Bool(!same);
}

// --- macros ---

std::string Macro::Repr(Budget& /*budget*/) const { return "<Macro '" + macro_.text + "'>"; }

Value Macro::Attribute(const std::string& name) {
  return name == "name" ? Value::Text(macro_.text) : Value();
}

Value Macro::Call(Machine& machine, Arguments& arguments) {
  return machine.CallMacro(macro_, scope_, arguments);
}

}  // namespace fsdp::jinja
