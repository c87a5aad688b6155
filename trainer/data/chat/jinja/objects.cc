#include "trainer/data/chat/jinja/objects.h"

#include <algorithm>

#include "trainer/data/chat/jinja/builtins.h"
#include "trainer/data/chat/jinja/python_text.h"

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
  if (open_ && (name == "length" || name.starts_with("revindex"))) throw Observed();
  if (name == "length") return Value::Int(length);
  if (name == "revindex") return Value::Int(length - index + 1);
  if (name == "revindex0") return Value::Int(length - index);
  if (name == "previtem" && index > 1) return items_[index_ - 2];
  if (name == "nextitem" && index < length) return items_[index_];
  return {};
}

namespace {

using Kind = Value::Kind;

// Methods that Python has and we do not: saying so beats treating them as undefined.
constexpr std::string_view kForeign[] = {
    "capitalize", "casefold",     "center",       "changed",   "copy",     "count",
    "cycle",      "encode",       "expandtabs",   "find",      "fromkeys", "index",
    "isalnum",    "isalpha",      "isascii",      "isdecimal", "isdigit",  "islower",
    "isnumeric",  "isspace",      "istitle",      "isupper",   "join",     "ljust",
    "partition",  "removeprefix", "removesuffix", "rfind",     "rindex",   "rjust",
    "rpartition", "rsplit",       "splitlines",   "swapcase",  "title",    "translate",
    "zfill"};
// Methods of a dict that the sandbox keeps from templates, or that none uses.
constexpr std::string_view kForeignDict[] = {"clear",   "copy",       "fromkeys", "pop",
                                             "popitem", "setdefault", "update"};

// --- str ---

template <std::string (*change)(std::string_view)>
Value Changed(Budget& budget, const Value& self, const Parameters& /*given*/) {
  budget.Text(self.text().size() * 3);
  return Value::Text(change(self.text()), self.safe());
}

template <bool left, bool right>
Value Stripped(Budget& budget, const Value& self, const Parameters& given) {
  const bool chars = given.Has(0) && !given[0].IsNone();
  budget.Charge(std::ssize(self.text()) * (chars ? std::ssize(given.Text(0)) : 1) / 32);
  const std::string* const set = chars ? &given.Text(0) : nullptr;
  return Value::Text(std::string(Strip(self.text(), set, left, right)), self.safe());
}

Value SplitText(Budget& budget, const Value& self, const Parameters& given) {
  const bool space = !given.Has(0) || given[0].IsNone();
  if (!space && given.Text(0).empty()) throw Fault("`split` wants a separator that is not empty");
  budget.Text(self.text().size());
  Values parts;
  for (const std::string_view part :
       Split(self.text(), space ? nullptr : &given.Text(0), given.Integer(1, -1))) {
    budget.Charge();
    parts.push_back(Value::Text(std::string(part), self.safe()));
  }
  return Value::List(std::move(parts));
}

template <bool at_end>
Value Begins(Budget& budget, const Value& self, const Parameters& given) {
  const std::string &text = self.text(), &part = given.Text(0);
  budget.Text(part.size());
  return Value::Bool(at_end ? text.ends_with(part) : text.starts_with(part));
}

Value Replaced(Budget& budget, const Value& self, const Parameters& given) {
  const std::string &text = self.text(), &from = given.Text(0), &to = given.Text(1);
  if (from.empty()) throw Fault(NotAmong("`replace` of an empty text"));
  if (self.safe()) throw Fault(NotAmong("`replace` of a text from `safe`"));
  size_t count = 0;
  for (size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += from.size()) ++count;
  const auto most = static_cast<size_t>(given.Integer(2, -1));  // -1: as many as there are.
  budget.Text(text.size() + std::min(count, most) * to.size());
  return Value::Text(Replace(text, from, to, most));
}

// "{}-{}".format(a, b)
Value Formatted(Budget& budget, const Value& self, const Parameters& given) {
  const Values& values = given.arguments().positional;
  const std::string& text = self.text();
  std::string out;
  size_t at = 0, next = 0;
  for (size_t brace; (brace = text.find_first_of("{}", at)) != std::string::npos; at = brace + 2) {
    const bool plain = !self.safe() && text.compare(brace, 2, "{}") == 0;
    if (!plain) throw Fault(NotAmong("`str.format` with more than {}"));
    if (next == values.size()) throw Fault("`format` lacks an argument");
    out += text.substr(at, brace - at) + Str(values[next++], budget);
    budget.Text(out.size());
  }
  return Value::Text(out + text.substr(at), self.safe());
}

constexpr Builtin kTextMethods[] = {{"endswith", Begins<true>, 1, {"/"}},
                                    {"format", Formatted, 0, {"*"}},
                                    {"lower", Changed<Lower>},
                                    {"lstrip", Stripped<true, false>, 0, {"/"}},
                                    {"replace", Replaced, 2, {"/", "/", "/"}},
                                    {"rstrip", Stripped<false, true>, 0, {"/"}},
                                    {"split", SplitText, 0, {"sep", "maxsplit"}},
                                    {"startswith", Begins<false>, 1, {"/"}},
                                    {"strip", Stripped<true, true>, 0, {"/"}},
                                    {"upper", Changed<Upper>}};

// --- dict ---

template <bool keys, bool values>
Value View(Budget& budget, const Value& self, const Parameters& /*given*/) {
  Values items;
  for (const auto& [key, value] : self.dict().entries()) {
    budget.Charge();
    items.push_back(keys && values ? Value::Tuple({key, value}) : keys ? key : value);
  }
  const char* const type = !keys ? "dict_values" : values ? "dict_items" : "dict_keys";
  return Items::Make(type, std::move(items));
}

Value DictGet(Budget& /*budget*/, const Value& self, const Parameters& given) {
  const Value* const found = self.dict().Find(given[0]);
  if (found) return *found;
  return given.Has(1) ? given[1] : Value::None();
}

constexpr Builtin kDictMethods[] = {{"get", DictGet, 1, {"/", "/"}},
                                    {"items", View<true, true>},
                                    {"keys", View<true, false>},
                                    {"values", View<false, true>}};

// getattr(value, name). Missing: Python has none of this name. Undefined: no template may use it.
Value FindAttribute(const Value& value, const std::string& name) {
  if (name.starts_with('_')) return {};  // The sandbox hides all of these; none is an element.
  if (value.Is(Kind::kObject)) return value.object().Attribute(name);
  const bool dict = value.IsDict(), text = value.IsText();
  if (const Builtin* const method = dict   ? FindIn(kDictMethods, name)
                                    : text ? FindIn(kTextMethods, name)
                                           : nullptr) {
    return Value::Of(std::shared_ptr<Object>(std::make_shared<Function>(*method, value)));
  }
  const bool foreign =
      dict ? Has(kForeignDict, name) : (text || value.IsSequence()) && Has(kForeign, name);
  return foreign ? Value::Undefined(NotAmong("`" + name + "` of a " + TypeName(value))) : Value();
}

}  // namespace

bool IsForeignMethod(std::string_view name) { return Has(kForeign, name); }
const Builtin* FindTextMethod(std::string_view name) { return FindIn(kTextMethods, name); }

Value Attribute(const Value& whole, const std::string& name) {
  if (whole.IsUndefined()) RefuseUndefined(whole);
  Value found = FindAttribute(whole, name);
  if (!found.Is(Kind::kMissing)) return found;
  const Value* const item = whole.IsDict() ? whole.dict().Find(std::string_view(name)) : nullptr;
  if (item) return *item;
  return Value::Undefined(std::string("a ") + TypeName(whole) + " has no `" + name + "`");
}

Value Element(const Value& whole, const Value& key, Budget& budget) {
  if (std::optional<Value> found = Subscript(whole, key, budget)) return std::move(*found);
  Value attribute = key.IsText() ? FindAttribute(whole, key.text()) : Value();
  if (!attribute.Is(Kind::kMissing)) return attribute;
  return Value::Undefined(
      std::string("a ") + TypeName(whole) + " has no " +
      (key.IsText() && key.text().size() < 100 ? "`" + key.text() + "`" : "such element"));
}

}  // namespace fsdp::jinja
