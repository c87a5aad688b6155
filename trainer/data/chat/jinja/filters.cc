// The filters of jinja2 that chat templates use.
// Tests: tests/trainer/data/chat/jinja/jinja_template_test.cc
#include <charconv>

#include "trainer/data/chat/jinja/builtins.h"
#include "trainer/data/chat/jinja/python_text.h"
#include "trainer/data/tokenizers/unicode.h"

namespace fsdp::jinja {
namespace {

using Kind = Value::Kind;

// --- Texts ---

Value String(Budget& budget, const Value& value, const Parameters& /*given*/) {
  return value.IsText() ? value : Value::Text(Str(value, budget));
}

// A method of str, of any value.
template <const char* method>
Value ByMethod(Budget& budget, const Value& value, const Parameters& given) {
  return FindTextMethod(method)->body(budget, String(budget, value, given), given);
}
constexpr char kUpper[] = "upper", kLower[] = "lower", kStrip[] = "strip", kReplace[] = "replace";

Value Safe(Budget& budget, const Value& value, const Parameters& /*given*/) {
  return Value::Text(Str(value, budget), true);
}

// Words begin behind white space, hyphens and opening brackets.
Value Title(Budget& budget, const Value& value, const Parameters& /*given*/) {
  const std::string text = Str(value, budget);
  budget.Text(text.size() * 3);
  std::string out, word;
  bool between = false;
  const auto end_word = [&] {
    const size_t first = word.empty() ? 0 : FirstCodePoint(word).bytes;
    out += Upper(word.substr(0, first)) + Lower(word.substr(first));
    word.clear();
  };
  for (const uint32_t c : Decode(text)) {
    const bool parts = IsSpace(c) || c == '-' || c == '(' || c == '{' || c == '[' || c == '<';
    if (parts != std::exchange(between, parts)) end_word();
    AppendUtf8(c, word);
  }
  end_word();
  return Value::Text(std::move(out));
}

Value Indent(Budget& budget, const Value& value, const Parameters& given) {
  if (value.IsUndefined()) RefuseUndefined(value);
  if (!value.IsText()) throw Fault(std::string("`indent` wants a text, got ") + TypeName(value));
  const auto width = static_cast<size_t>(std::max<int64_t>(given.Integer(0, 4), 0));
  const std::string ended = value.text() + "\n";
  const std::vector<std::string_view> lines = SplitLines(ended);
  budget.CheckText(width);
  budget.Text(ended.size() + lines.size() * width);
  std::string out;
  for (size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) out += '\n';
    if (i == 0 ? given.Flag(1) : !lines[i].empty()) out.append(width, ' ');
    out += lines[i];
  }
  return Value::Text(std::move(out), value.safe());
}

Value Tojson(Budget& budget, const Value& value, const Parameters& given) {
  const bool lines = given.Has(1) && !given[1].IsNone();
  return Value::Text(ToJson(value, given.Flag(0), lines ? given.Integer(1, 0) : -1, budget));
}

// --- Single values ---

Value LengthFilter(Budget& budget, const Value& value, const Parameters& /*given*/) {
  if (value.IsText()) budget.Text(value.text().size());
  return Value::Int(Length(value));
}

Value Default(Budget& /*budget*/, const Value& value, const Parameters& given) {
  const bool takes = value.IsUndefined() || (given.Flag(1) && !Truth(value));
  if (!takes) return value;
  return given.Has(0) ? given[0] : Value::Text("");
}

Value Int(Budget& budget, const Value& value, const Parameters& given) {
  Value standard = given.Has(0) ? given[0] : Value::Int(0);
  if (value.IsUndefined()) RefuseUndefined(value);
  if (value.IsInteger()) return Value::Int(value.integer());
  if (value.Is(Kind::kFloat)) throw Fault(NotAmong("`int` of a float"));
  if (!value.IsText()) return standard;
  budget.Text(value.text().size());
  const std::string_view digits = Strip(value.text(), nullptr, true, true);
  int64_t number = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  if (error == std::errc() && end == digits.data() + digits.size()) return Value::Int(number);
  // Python reads signs, fractions, exponents, other digits and infinities, too.
  const bool word = digits.find_first_not_of("0123456789+-._eE") < digits.size();
  const bool ascii = CodePoints(digits) == digits.size();
  if (digits.empty() || (word && ascii && Lower(digits).find("inf") > 8)) return standard;
  throw Fault(NotAmong("`int` of " + Quoted(digits.substr(0, ByteOffset(digits, 40)))));
}

// --- Sequences ---

Value Get(Budget& budget, const Value& item, const Value& attribute) {
  if (!attribute.IsText() || attribute.text().find('.') != std::string::npos) {
    throw Fault(NotAmong("an attribute other than by a name"));
  }
  return Element(item, attribute, budget);
}

Value Folded(Budget& budget, const Value& value) {  // For an order without regard to case.
  if (!value.IsText()) return value;
  budget.Text(value.text().size() * 2);
  return Value::Text(Lower(value.text()));
}

Value Generator(Values items) { return Items::Make("generator", std::move(items)); }

Value List(Budget& budget, const Value& value, const Parameters& /*given*/) {
  return Value::List(ToList(value, budget));
}

template <bool last>
Value End(Budget& budget, const Value& value, const Parameters& /*given*/) {
  if (last) Length(value);  // Refuses generators, as Python does.
  const Values items = ToList(value, budget);
  if (items.empty()) return Value::Undefined("`first` or `last` of nothing");
  return last ? items.back() : items.front();
}

Values Pairs(Budget& budget, const Value& dict) {
  if (!dict.IsDict()) throw Fault(std::string("wants a dict, got ") + TypeName(dict));
  Values pairs;
  for (const auto& [key, value] : dict.dict().entries()) {
    budget.Charge();
    pairs.push_back(Value::Tuple({key, value}));
  }
  return pairs;
}

Value ItemsFilter(Budget& budget, const Value& value, const Parameters& /*given*/) {
  return Generator(value.IsUndefined() ? Values() : Pairs(budget, value));
}

Value Join(Budget& budget, const Value& value, const Parameters& given) {
  const std::string by = given.Has(0) ? Str(given[0], budget) : "";
  std::string text;
  bool first = true;
  for (const Value& item : ToList(value, budget)) {
    const std::string part = Str(item, budget);
    budget.CheckText(text.size() + by.size() + part.size());
    budget.Charge(1 + static_cast<int64_t>((by.size() + part.size()) / 32));
    if (!std::exchange(first, false)) text += by;
    text += part;
  }
  return Value::Text(std::move(text));
}

// Takes the first of the arguments.
Value TakeFirst(Arguments& arguments) {
  if (arguments.positional.empty()) return {};
  Value first = arguments.positional[0];
  arguments.positional.erase(arguments.positional.begin());
  return first;
}

// map('filter', ...) or map(attribute='name')
Value Map(Budget& budget, const Value& value, const Parameters& given) {
  Arguments rest = given.arguments();
  const Value name = TakeFirst(rest);
  const Builtin* const filter = name.IsText() ? FindFilter(name.text()) : nullptr;
  const bool attribute =
      name.Is(Kind::kMissing) && rest.named.size() == 1 && rest.named[0].first == "attribute";
  if (!filter && !attribute) throw Fault(NotAmong("`map` without a filter or an attribute alone"));
  Values items = Truth(value) ? ToList(value, budget) : Values();
  for (Value& item : items) {
    budget.Charge();
    item = filter ? filter->Call(budget, item, rest) : Get(budget, item, rest.named[0].second);
  }
  return Generator(std::move(items));
}

// The elements for which a test holds, or not, for themselves or for an attribute.
template <bool by_attribute, bool want>
Value Select(Budget& budget, const Value& value, const Parameters& given) {
  Arguments rest = given.arguments();
  const Value attribute = by_attribute ? TakeFirst(rest) : Value(), name = TakeFirst(rest);
  const Builtin* const test = name.IsText() ? FindTest(name.text()) : nullptr;
  if (!test && !name.Is(Kind::kMissing))
    throw Fault("the test " + Repr(name, budget) + " is not there");
  Values chosen;
  for (const Value& item : Truth(value) ? ToList(value, budget) : Values()) {
    const Value looked_at = by_attribute ? Get(budget, item, attribute) : item;
    const bool holds = Truth(test ? test->Call(budget, looked_at, rest) : looked_at);
    if (holds == want) chosen.push_back(item);
  }
  return Generator(std::move(chosen));
}

Value Unique(Budget& budget, const Value& value, const Parameters& /*given*/) {
  Values kept, seen;
  for (const Value& item : ToList(value, budget)) {
    const Value key = Folded(budget, item);
    if (key.Is(Kind::kList) || key.IsDict()) throw Fault("`unique` of lists or dicts");
    const auto same = [&](const Value& known) { return Equal(known, key, budget); };
    if (std::any_of(seen.begin(), seen.end(), same)) continue;
    seen.push_back(key);
    kept.push_back(item);
  }
  return Generator(std::move(kept));
}

// Items in the order of their keys; equal ones stay as they are.
Values Sorted(const Values& items, const Values& keys, Operator before, Budget& budget) {
  std::vector<size_t> order(items.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    budget.Charge();
    return Truth(Apply(before, keys[a], keys[b], budget));
  });
  Values sorted;
  for (const size_t i : order) sorted.push_back(items[i]);
  return sorted;
}

Value Sort(Budget& budget, const Value& value, const Parameters& given) {
  const Values items = ToList(value, budget);
  Values keys;
  for (const Value& item : items)
    keys.push_back(Folded(budget, given.Has(1) ? Get(budget, item, given[1]) : item));
  const Operator before = given.Flag(0) ? Operator::kGt : Operator::kLt;
  return Value::List(Sorted(items, keys, before, budget));
}

Value Dictsort(Budget& budget, const Value& value, const Parameters& /*given*/) {
  const Values items = Pairs(budget, value);
  Values keys;
  for (const Value& pair : items) keys.push_back(Folded(budget, pair.items()[0]));
  return Value::List(Sorted(items, keys, Operator::kLt, budget));
}

template <Operator before>
Value Extreme(Budget& budget, const Value& value, const Parameters& /*given*/) {
  const Values items = ToList(value, budget);
  Values keys;
  for (const Value& item : items) keys.push_back(Folded(budget, item));
  if (items.empty()) return Value::Undefined("`min` or `max` of nothing");
  return Sorted(items, keys, before, budget)[0];
}

constexpr Builtin kFilters[] = {{"count", LengthFilter},
                                {"d", Default, 0, {"default_value", "boolean"}},
                                {"default", Default, 0, {"default_value", "boolean"}},
                                {"dictsort", Dictsort},
                                {"first", End<false>},
                                {"indent", Indent, 0, {"width", "first"}},
                                {"int", Int, 0, {"default"}},
                                {"items", ItemsFilter},
                                {"join", Join, 0, {"d"}},
                                {"last", End<true>},
                                {"length", LengthFilter},
                                {"list", List},
                                {"lower", ByMethod<kLower>},
                                {"map", Map, 0, {"*"}},
                                {"max", Extreme<Operator::kGt>},
                                {"min", Extreme<Operator::kLt>},
                                {"reject", Select<false, false>, 0, {"*"}},
                                {"rejectattr", Select<true, false>, 0, {"*"}},
                                {"replace", ByMethod<kReplace>, 2, {"old", "new"}},
                                {"safe", Safe},
                                {"select", Select<false, true>, 0, {"*"}},
                                {"selectattr", Select<true, true>, 0, {"*"}},
                                {"sort", Sort, 0, {"reverse", "attribute"}},
                                {"string", String},
                                {"title", Title},
                                {"tojson", Tojson, 0, {"ensure_ascii", "indent"}},
                                {"trim", ByMethod<kStrip>, 0, {"chars"}},
                                {"unique", Unique},
                                {"upper", ByMethod<kUpper>}};

}  // namespace

const Builtin* FindFilter(std::string_view name) { return FindIn(kFilters, name); }

bool IsForeignFilter(std::string_view name) {
  constexpr std::string_view kNames[] = {
      "abs",       "attr",    "batch",          "capitalize", "center",
      "e",         "escape",  "filesizeformat", "float",      "forceescape",
      "format",    "groupby", "pprint",         "random",     "reverse",
      "round",     "slice",   "striptags",      "sum",        "truncate",
      "urlencode", "urlize",  "wordcount",      "wordwrap",   "xmlattr"};
  return Has(kNames, name);
}

}  // namespace fsdp::jinja
