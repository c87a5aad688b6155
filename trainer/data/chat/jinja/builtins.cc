#include "trainer/data/chat/jinja/builtins.h"

#include <ctime>

namespace fsdp::jinja {
namespace {

using Kind = Value::Kind;

constexpr int64_t kMostRange = 100'000;  // MAX_RANGE of jinja2/sandbox.py.

// --- Tests ---

template <bool (*holds)(const Value&)>
Value Alone(Budget& /*budget*/, const Value& value, const Parameters& /*given*/) {
  return Value::Bool(holds(value));
}

template <Operator op>
Value Compared(Budget& budget, const Value& value, const Parameters& given) {
  return Apply(op, value, given[0], budget);
}
template <Operator op>
constexpr Builtin Comparing(std::string_view name) {
  return {name, Compared<op>, 1, {"/"}};
}

template <Kind kind>
bool Is(const Value& value) {
  return value.Is(kind);
}
template <bool wanted>
bool IsBool(const Value& value) {
  return value.Is(Kind::kBool) && (value.integer() != 0) == wanted;
}
bool IsDefined(const Value& value) { return !value.IsUndefined(); }
bool IsUndefined(const Value& value) { return value.IsUndefined(); }
bool IsNumber(const Value& value) { return value.IsNumber(); }
bool IsSequence(const Value& value) {
  const Items* const items = value.As<Items>();
  return items ? items->is_range() : CanIterate(value);
}

constexpr Builtin kTests[] = {
    {"boolean", Alone<Is<Kind::kBool>>}, {"defined", Alone<IsDefined>},
    {"false", Alone<IsBool<false>>},     {"float", Alone<Is<Kind::kFloat>>},
    {"integer", Alone<Is<Kind::kInt>>},  {"iterable", Alone<CanIterate>},
    {"mapping", Alone<Is<Kind::kDict>>}, {"none", Alone<Is<Kind::kNone>>},
    {"number", Alone<IsNumber>},         {"sequence", Alone<IsSequence>},
    {"string", Alone<Is<Kind::kText>>},  {"true", Alone<IsBool<true>>},
    {"undefined", Alone<IsUndefined>},   Comparing<Operator::kEq>("eq"),
    Comparing<Operator::kEq>("equalto"), Comparing<Operator::kNe>("ne"),
    Comparing<Operator::kLt>("lt"),      Comparing<Operator::kLe>("le"),
    Comparing<Operator::kGt>("gt"),      Comparing<Operator::kGe>("ge"),
    Comparing<Operator::kIn>("in")};

// --- Functions ---

Value RaiseException(Budget& budget, const Value& /*self*/, const Parameters& given) {
  throw Fault("the template refuses this: " + Str(given[0], budget));
}

Value Range(Budget& budget, const Value& /*self*/, const Parameters& given) {
  const int64_t start = given.Has(1) ? given.Integer(0, 0) : 0;
  const int64_t stop = given.Integer(given.Has(1) ? 1 : 0, 0), step = given.Integer(2, 1);
  if (step == 0) throw Fault("range() in steps of zero");
  Values numbers;
  for (__int128 i = start; step > 0 ? i < stop : i > stop; i += step) {
    if (std::ssize(numbers) == kMostRange) {
      throw Fault("range() of more than " + std::to_string(kMostRange) + " numbers");
    }
    budget.Charge();
    numbers.push_back(Value::Int(static_cast<int64_t>(i)));
  }
  return Items::Make("range", std::move(numbers));
}

Value MakeNamespace(Budget& budget, const Value& /*self*/, const Parameters& given) {
  if (!given.arguments().positional.empty()) throw Fault(NotAmong("`namespace` of a dict"));
  budget.Charge(50);  // It stays until the end.
  const auto made = std::make_shared<Namespace>();
  for (const auto& [name, value] : given.arguments().named) made->attributes[name] = value;
  return Value::Of(std::shared_ptr<Object>(made));
}

// `self`: (year, month, day).
Value StrftimeNow(Budget& budget, const Value& self, const Parameters& given) {
  const std::string& format = given.Text(0);
  for (size_t at = 0; (at = format.find('%', at)) != std::string::npos; ++at) {
    const size_t begin = at++;
    if (at < format.size() && format[at] == '-') ++at;
    constexpr std::string_view kKnown = "aAbBdejmyYHIMSpuwUW%FDT";
    if (at < format.size() && kKnown.find(format[at]) != std::string_view::npos) continue;
    throw Fault("`strftime_now` knows no `" + format.substr(begin, at + 1 - begin) + "`");
  }
  std::tm time = {};
  time.tm_year = static_cast<int>(self.items()[0].integer()) - 1900;
  time.tm_mon = static_cast<int>(self.items()[1].integer()) - 1;
  time.tm_mday = static_cast<int>(self.items()[2].integer());
  timegm(&time);  // Fills in the days of week and year.
  budget.Text(format.size() * 16 + 1);
  std::string text(format.size() * 16 + 1, ' ');
  text.resize(std::strftime(text.data(), text.size(), format.c_str(), &time));
  return Value::Text(std::move(text));
}

constexpr Builtin kGlobals[] = {{"namespace", MakeNamespace, 0, {"*"}},
                                {"raise_exception", RaiseException, 1, {"message"}},
                                {"range", Range, 1, {"/", "/", "/"}},
                                {"strftime_now", StrftimeNow, 1, {"format"}}};

}  // namespace

const Builtin* FindTest(std::string_view name) { return FindIn(kTests, name); }

bool IsForeignTest(std::string_view name) {
  constexpr std::string_view kNames[] = {"!=",     "==",       "<",           "<=",       ">",
                                         ">=",     "callable", "divisibleby", "escaped",  "even",
                                         "odd",    "filter",   "greaterthan", "lessthan", "lower",
                                         "sameas", "test",     "upper"};
  return Has(kNames, name);
}

bool IsForeignGlobal(std::string_view name) {
  constexpr std::string_view kNames[] = {"caller", "cycler", "dict",    "joiner",
                                         "kwargs", "lipsum", "varargs", "self"};
  return Has(kNames, name);
}

Value FindGlobal(const std::string& name, const std::optional<JinjaDate>& date) {
  const Builtin* const found = FindIn(kGlobals, name);
  const bool strftime = name == "strftime_now";
  if (!found || (strftime && !date)) return {};
  const Value today =
      strftime
          ? Value::Tuple({Value::Int(date->year), Value::Int(date->month), Value::Int(date->day)})
          : Value();
  return Value::Of(std::shared_ptr<Object>(std::make_shared<Function>(*found, today)));
}

}  // namespace fsdp::jinja
