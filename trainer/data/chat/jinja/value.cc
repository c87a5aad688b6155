#include "trainer/data/chat/jinja/value.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "trainer/data/chat/jinja/python_text.h"
#include "trainer/data/tokenizers/unicode.h"

namespace fsdp::jinja {
namespace {

using Kind = Value::Kind;

// The depth of a value that holds one of depth `within`.
int16_t Around(int within) {
  if (within >= kMostDepth) {
    throw Fault("makes a value that nests more than " + std::to_string(kMostDepth) + " deep");
  }
  return static_cast<int16_t>(within + 1);
}

constexpr const char* kSymbols[] = {"or", "and", "==", "!=", "<", "<=", ">",
                                    ">=", "in",  "+",  "-",  "~", "*",  "%"};
const char* Symbol(Operator op) { return kSymbols[static_cast<size_t>(op)]; }

[[noreturn]] void RefuseTypes(Operator op, const Value& a, const Value& b) {
  for (const Value* value : {&a, &b}) {
    if (value->IsUndefined()) RefuseUndefined(*value);
  }
  const bool lists = (a.IsSequence() && a.kind() == b.kind()) || op == Operator::kMul;
  if (lists) throw Fault(NotAmong(std::string("`") + Symbol(op) + "` of a " + TypeName(a)));
  throw Fault(std::string("has no `") + Symbol(op) + "` for " + TypeName(a) + " and " +
              TypeName(b));
}

// The elements of a list, a tuple or a range; null: it is none.
const Values* Sequence(const Value& value) {
  if (value.IsSequence()) return &value.items();
  const Items* const items = value.As<Items>();
  return items && items->is_range() ? &items->items() : nullptr;
}

Value Like(const Value& sequence, Values items) {
  return sequence.Is(Kind::kTuple) ? Value::Tuple(std::move(items)) : Value::List(std::move(items));
}

// --- Operators ---

Value Numbers(Operator op, const Value& left, const Value& right) {
  if (!left.IsInteger() || !right.IsInteger()) {
    const double a = left.number(), b = right.number();
    if (op == Operator::kAdd) return Value::Float(a + b);
    if (op == Operator::kSub) return Value::Float(a - b);
    if (op == Operator::kMul) return Value::Float(a * b);
    throw Fault(NotAmong("`%` of a float"));
  }
  const int64_t a = left.integer(), b = right.integer();
  int64_t result = 0;
  bool overflow = false;
  if (op == Operator::kMod) {
    if (b == 0) throw Fault("divides by zero");
    result = b == -1 ? 0 : a % b;
    if (result != 0 && (result < 0) != (b < 0)) result += b;
  } else {
    overflow = op == Operator::kAdd   ? __builtin_add_overflow(a, b, &result)
               : op == Operator::kSub ? __builtin_sub_overflow(a, b, &result)
                                      : __builtin_mul_overflow(a, b, &result);
  }
  if (!overflow) return Value::Int(result);
  throw Fault("integer overflow: " + std::to_string(a) + " " + Symbol(op) + " " +
              std::to_string(b) + " does not fit 64 bits");
}

Value Repeat(const Value& what, int64_t times, Budget& budget) {
  std::string text;
  for (int64_t i = 0; i < times; ++i) {
    budget.Text(what.text().size());
    budget.CheckText(text.size() + what.text().size());
    text += what.text();
  }
  return Value::Text(std::move(text), what.safe());
}

Value Join(const Value& a, const Value& b, Budget& budget) {
  if (a.IsText()) {
    const bool safe = a.safe() || b.safe();
    const Value left = safe ? Escape(a, budget) : a, right = safe ? Escape(b, budget) : b;
    budget.Text(left.text().size() + right.text().size());
    return Value::Text(left.text() + right.text(), safe);
  }
  budget.Charge(std::ssize(a.items()) + std::ssize(b.items()));
  Values items = a.items();
  items.insert(items.end(), b.items().begin(), b.items().end());
  return Like(a, std::move(items));
}

// 64 bits of mantissa: every int64_t is exact.
long double Wide(const Value& value) {
  return value.IsInteger() ? static_cast<long double>(value.integer()) : value.number();
}

bool Ordered(Operator op, const Value& a, const Value& b, Budget& budget) {
  const auto holds = [op](const auto& x, const auto& y) {
    if (op == Operator::kLt || op == Operator::kGe) return (x < y) == (op == Operator::kLt);
    return (x > y) == (op == Operator::kGt);
  };
  if (a.IsNumber() && b.IsNumber()) {
    if (std::isnan(a.number()) || std::isnan(b.number())) return false;
    return holds(Wide(a), Wide(b));
  }
  if (!a.IsText() || !b.IsText()) RefuseTypes(op, a, b);
  budget.Charge(std::ssize(a.text()) / 32);
  return holds(a.text(), b.text());  // The order of UTF-8's bytes is that of code points.
}

bool Contains(const Value& whole, const Value& part, Budget& budget) {
  if (whole.IsText()) {
    if (!part.IsText()) {
      throw Fault(std::string("looks for a ") + TypeName(part) + " in a str, want a str");
    }
    budget.Text(whole.text().size());
    return whole.text().find(part.text()) != std::string::npos;
  }
  if (whole.IsDict()) return whole.dict().Find(part) != nullptr;
  const Values items = ToList(whole, budget);
  return std::any_of(items.begin(), items.end(),
                     [&](const Value& item) { return Equal(item, part, budget); });
}

// "[1, 2]"
template <typename Elements, typename Append>
void AppendAll(char open, char close, const Elements& elements, std::string& out, Append append) {
  out += open;
  for (const auto& element : elements) {
    if (&element != &elements.front()) out += ", ";
    append(element);
  }
  out += close;
}

void AppendRepr(const Value& value, std::string& out, Budget& budget) {
  budget.Charge();
  budget.CheckText(out.size());
  const auto item = [&](const Value& one) { AppendRepr(one, out, budget); };
  if (value.Is(Kind::kList)) return AppendAll('[', ']', value.items(), out, item);
  if (value.Is(Kind::kTuple)) {
    AppendAll('(', ')', value.items(), out, item);
    if (value.items().size() == 1) out.insert(out.size() - 1, ",");
  } else if (value.IsDict()) {
    AppendAll('{', '}', value.dict().entries(), out, [&](const Dict::Entry& entry) {
      item(entry.first);
      out += ": ";
      item(entry.second);
    });
  } else if (value.Is(Kind::kObject)) {
    throw Fault(NotAmong(std::string("printing a ") + TypeName(value)));
  } else if (value.IsText()) {
    budget.Text(value.text().size());
    out += value.safe() ? "Markup(" + Quoted(value.text()) + ")" : Quoted(value.text());
  } else {
    out += value.IsUndefined()      ? "Undefined"
           : value.IsNone()         ? "None"
           : value.Is(Kind::kFloat) ? FloatRepr(value.number())
           : value.Is(Kind::kInt)   ? std::to_string(value.integer())
           : value.integer() != 0   ? "True"
                                    : "False";
  }
}

}  // namespace

std::string NotAmong(const std::string& what) {
  return what + " is not among what chat templates use";
}

void Budget::CheckText(size_t bytes) const {
  if (bytes > text_) {
    throw Fault("makes a text of " + std::to_string(bytes) + " bytes, the most is " +
                std::to_string(text_));
  }
}

void Budget::Text(size_t bytes) {
  CheckText(bytes);
  Charge(1 + static_cast<int64_t>(bytes / 32));
}

void Budget::Exhausted() {
  left_ = -1;
  throw Fault("takes more than " + std::to_string(steps_) + " steps");
}

Value Value::Float(double value) {
  Value v(Kind::kFloat, 0);
  v.number_ = value;
  return v;
}
Value Value::Text(std::string text, bool safe) {
  Value v(Kind::kText, std::move(text));
  v.safe_ = safe;
  return v;
}
Value Value::List(Values items) {
  Value v;
  v.kind_ = Kind::kList;
  for (const Value& item : items) v.depth_ = std::max(v.depth_, item.depth_);
  v.depth_ = Around(v.depth_);
  v.shared_ = std::make_shared<Values>(std::move(items));
  return v;
}
Value Value::Open(Values items) {
  Value v = List(std::move(items));
  v.open_ = true;
  return v;
}
Value Value::Skip(size_t more) const {
  Value v = *this;
  v.integer_ += static_cast<int64_t>(more);
  return v;
}
Value Value::Tuple(Values items) {
  Value v = List(std::move(items));
  v.kind_ = Kind::kTuple;
  return v;
}
Value Value::Of(Dict dict) {
  Value v;
  v.kind_ = Kind::kDict;
  v.depth_ = Around(dict.depth());
  v.shared_ = std::make_shared<Dict>(std::move(dict));
  return v;
}
Value Value::Of(std::shared_ptr<Object> object) {
  Value v;
  v.kind_ = Kind::kObject;
  v.depth_ = Around(object->depth());
  v.shared_ = std::move(object);
  return v;
}

const Value* Dict::Find(std::string_view key) const {
  const auto found = by_key_.find(key);
  return found == by_key_.end() ? nullptr : &entries_[found->second].second;
}

const Value* Dict::Find(const Value& key) const {
  if (key.IsText()) return Find(std::string_view(key.text()));
  if (key.Is(Kind::kList) || key.IsDict()) {
    throw Fault(std::string("looks for a ") + TypeName(key) + " among keys");
  }
  for (const auto& [known, value] : entries_) {
    if (known.IsInteger() && key.IsNumber() && known.number() == key.number()) return &value;
  }
  return nullptr;
}

void Dict::Set(const Value& key, Value value) {
  if (!key.IsText() && !key.Is(Kind::kInt)) {
    throw Fault(std::string("a dict has texts and integers as keys, got ") + TypeName(key));
  }
  depth_ = std::max(depth_, value.depth());
  if (const Value* const old = Find(key)) {
    *const_cast<Value*>(old) = std::move(value);
    return;
  }
  if (key.IsText()) by_key_.emplace(key.text(), entries_.size());
  entries_.emplace_back(key, std::move(value));
}

Value Object::Attribute(const std::string& /*name*/) const { return {}; }

const char* TypeName(const Value& value) {
  constexpr const char* kNames[] = {"Undefined", "Undefined", "None", "bool",  "int",
                                    "float",     "str",       "list", "tuple", "dict"};
  if (value.Is(Value::Kind::kObject)) return value.object().type();
  return value.safe() ? "Markup" : kNames[static_cast<size_t>(value.kind())];
}

void RefuseUndefined(const Value& value) {
  throw Fault(value.Is(Value::Kind::kMissing) ? "an undefined variable" : value.why());
}

Value Items::Make(const char* type, Values items) {
  return Value::Of(std::shared_ptr<Object>(std::make_shared<Items>(type, std::move(items))));
}

const Values& Items::Take() {
  if (taken_) throw Fault("runs through a generator again: `| list` keeps what it makes");
  taken_ = is_generator();
  return items();
}

// --- Operators ---

Value Apply(Operator op, const Value& a, const Value& b, Budget& budget) {
  if (op == Operator::kEq) return Value::Bool(Equal(a, b, budget));
  if (op == Operator::kNe) return Value::Bool(!Equal(a, b, budget));
  if (op == Operator::kIn) return Value::Bool(Contains(b, a, budget));
  if (op < Operator::kIn) return Value::Bool(Ordered(op, a, b, budget));
  if (op == Operator::kCat) {
    const std::string left = Str(a, budget), right = Str(b, budget);
    budget.Text(left.size() + right.size());
    return Value::Text(left + right);
  }
  if (a.IsNumber() && b.IsNumber()) return Numbers(op, a, b);
  const bool joins = a.IsText() || a.IsSequence();
  if (op == Operator::kAdd && a.kind() == b.kind() && joins) return Join(a, b, budget);
  if (op == Operator::kMul && a.IsText() && b.IsInteger()) return Repeat(a, b.integer(), budget);
  if (op == Operator::kMul && a.IsInteger() && b.IsText()) return Repeat(b, a.integer(), budget);
  if (op == Operator::kMod && a.IsText()) throw Fault(NotAmong("formatting by `%`"));
  RefuseTypes(op, a, b);
}

bool Equal(const Value& a, const Value& b, Budget& budget) {
  budget.Charge();
  if (a.IsNumber() && b.IsNumber()) return Wide(a) == Wide(b);
  if (a.IsUndefined() && b.IsUndefined()) return true;
  if (a.kind() != b.kind()) return false;
  const auto same = [&](const Value& x, const Value& y) { return Equal(x, y, budget); };
  if (a.IsText()) {
    budget.Charge(std::ssize(a.text()) / 32);
    return a.text() == b.text();
  }
  if (a.IsNone() || a.address() == b.address()) return true;
  if (a.IsSequence()) {
    return std::equal(a.items().begin(), a.items().end(), b.items().begin(), b.items().end(), same);
  }
  if (a.IsDict()) {
    const auto& entries = a.dict().entries();
    return entries.size() == b.dict().size() &&
           std::all_of(entries.begin(), entries.end(), [&](const Dict::Entry& entry) {
             const Value* const other = b.dict().Find(entry.first);
             return other && same(entry.second, *other);
           });
  }
  if (!a.As<Items>() || !b.As<Items>()) return false;
  throw Fault(std::string("compares a ") + TypeName(a) + " with a " + TypeName(b));
}

bool Truth(const Value& value) {
  if (value.IsNumber()) return value.number() != 0;
  if (value.IsText()) return !value.text().empty();
  if (value.open()) return true;  // Skip() leaves at least one item that is common.
  if (value.IsSequence()) return !value.items().empty();
  if (value.IsDict()) return value.dict().size() > 0;
  const Items* const items = value.As<Items>();
  return items ? items->is_generator() || !items->items().empty() : value.Is(Kind::kObject);
}

bool Holds(const Value& value, bool (*such)(const Value&)) {
  const auto holds = [such](const Value& one) { return Holds(one, such); };
  if (such(value)) return true;
  if (value.open()) return false;
  if (value.IsSequence()) return std::ranges::any_of(value.items(), holds);
  return value.IsDict() && std::ranges::any_of(value.dict().entries(), [&](const auto& entry) {
           return holds(entry.second);
         });
}

std::string FloatRepr(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  char digits[40];  // The shortest that read back.
  const double size = std::fabs(value);
  const bool fixed = size == 0 || (size >= 1e-4 && size < 1e16);
  const auto form = fixed ? std::chars_format::fixed : std::chars_format::scientific;
  std::string text(digits, std::to_chars(digits, digits + sizeof digits, value, form).ptr);
  return fixed && text.find('.') == std::string::npos ? text + ".0" : text;
}

std::string Repr(const Value& value, Budget& budget) {
  std::string out;
  AppendRepr(value, out, budget);
  budget.Text(out.size());
  return out;
}

std::string Str(const Value& value, Budget& budget) {
  if (value.IsUndefined()) return "";
  return value.IsText() ? value.text() : Repr(value, budget);
}

Value Escape(const Value& value, Budget& budget) {
  if (value.safe()) return value;
  budget.Text(value.text().size() * 5);
  std::string out;
  for (const char c : value.text()) {
    constexpr std::string_view kCharacters = "&<>'\"";
    constexpr const char* kEscapes[] = {"&amp;", "&lt;", "&gt;", "&#39;", "&#34;"};
    const size_t found = kCharacters.find(c);
    out += found == std::string_view::npos ? std::string(1, c) : kEscapes[found];
  }
  return Value::Text(std::move(out), true);
}

int64_t Length(const Value& value) {
  if (value.IsUndefined()) return 0;
  if (value.IsText()) return static_cast<int64_t>(CodePoints(value.text()));
  if (value.IsSequence()) return std::ssize(value.items());
  if (value.IsDict()) return static_cast<int64_t>(value.dict().size());
  const Items* const items = value.As<Items>();
  if (items && !items->is_generator()) return std::ssize(items->items());
  throw Fault(std::string("a ") + TypeName(value) + " has no length");
}

bool CanIterate(const Value& value) {
  return value.IsUndefined() || value.IsText() || value.IsSequence() || value.IsDict() ||
         value.As<Items>();
}

Values ToList(const Value& value, Budget& budget) {
  Values items;
  if (value.IsSequence()) {
    items = value.items();
  } else if (Items* const given = value.As<Items>()) {
    items = given->Take();
  } else if (value.IsDict()) {
    for (const auto& [key, element] : value.dict().entries()) items.push_back(key);
  } else if (value.IsText()) {
    budget.Charge(std::ssize(value.text()));
    for (std::string_view rest = value.text(); !rest.empty();) {
      const size_t bytes = FirstCodePoint(rest).bytes;
      items.push_back(Value::Text(rest.substr(0, bytes)));
      rest.remove_prefix(bytes);
    }
  } else if (!value.IsUndefined()) {
    throw Fault(std::string("a ") + TypeName(value) + " cannot be iterated over");
  }
  budget.Charge(std::ssize(items));
  return items;
}

std::optional<Value> Subscript(const Value& whole, const Value& key, Budget& budget) {
  if (whole.IsUndefined()) RefuseUndefined(whole);
  if (whole.IsDict()) {
    if (key.Is(Kind::kList) || key.IsDict()) return std::nullopt;
    const Value* const found = whole.dict().Find(key);
    return found ? std::optional(*found) : std::nullopt;
  }
  if (whole.open()) {
    if (!key.IsInteger()) return std::nullopt;
    const size_t at = whole.skipped() + static_cast<size_t>(key.integer());
    if (key.integer() < 0 || at >= budget.common()) throw Observed();
    return whole.known()[at];
  }
  const Values* const items = Sequence(whole);
  if (!key.IsInteger() || (!items && !whole.IsText())) return std::nullopt;
  const int64_t length = Length(whole);
  const int64_t at = key.integer() < 0 ? key.integer() + length : key.integer();
  if (at < 0 || at >= length) return std::nullopt;
  if (items) return (*items)[static_cast<size_t>(at)];
  return Slice(whole, Value::Int(at), Value::Int(at + 1), budget);
}

Value Slice(const Value& whole, const Value& start, const Value& stop, Budget& budget) {
  if (whole.IsUndefined()) RefuseUndefined(whole);
  if (whole.open() && stop.IsNone() && start.IsInteger() && start.integer() >= 0 &&
      whole.skipped() + static_cast<size_t>(start.integer()) < budget.common()) {
    return whole.Skip(static_cast<size_t>(start.integer()));
  }
  const Values* const items = Sequence(whole);
  if (!whole.IsText() && !items) {
    throw Fault(std::string("a ") + TypeName(whole) + " has no slices");
  }
  const int64_t length = Length(whole);
  const auto place = [length](const Value& value, int64_t standard) {
    if (value.IsNone()) return standard;
    if (!value.IsInteger()) throw Fault(std::string("slices by a ") + TypeName(value));
    const int64_t at = value.integer();
    return at < -length ? 0 : std::min(at < 0 ? at + length : at, length);
  };
  const int64_t begin = place(start, 0), end = std::max(place(stop, length), begin);
  if (items) {
    budget.Charge(end - begin);
    return Like(whole, Values(items->begin() + begin, items->begin() + end));
  }
  budget.Text(whole.text().size());
  const size_t from = ByteOffset(whole.text(), static_cast<size_t>(begin));
  const size_t to = ByteOffset(whole.text(), static_cast<size_t>(end));
  return Value::Text(whole.text().substr(from, to - from), whole.safe());
}

Value Reversed(const Value& whole, Budget& budget) {
  if (whole.IsText()) throw Fault(NotAmong("[::-1] of a text"));
  const Value copy = Slice(whole, Value::None(), Value::None(), budget);
  return Like(whole, Values(copy.items().rbegin(), copy.items().rend()));
}

}  // namespace fsdp::jinja
