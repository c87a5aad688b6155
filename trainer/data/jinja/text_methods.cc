// Methods of str.
// Tests: tests/trainer/data/jinja/jinja_template_test.cc
#include <algorithm>

#include "trainer/data/jinja/format.h"
#include "trainer/data/jinja/machine.h"
#include "trainer/data/jinja/methods.h"
#include "trainer/data/jinja/operators.h"
#include "trainer/data/jinja/python_text.h"
#include "trainer/data/unicode.h"

namespace fsdp::jinja {
namespace {

using Views = std::vector<std::string_view>;

// A method's text is safe where its own is.
Value Like(const Value& self, std::string text) {
  return Value::Text(std::move(text), self.safe());
}
Value Like(const Value& self, std::string_view text) {
  return Value::Text(std::string(text), self.safe());
}
Value ListOf(const Value& self, const Views& parts, bool tuple = false) {
  Values items;
  for (const std::string_view part : parts) items.push_back(Like(self, part));
  return tuple ? Value::Tuple(std::move(items)) : Value::List(std::move(items));
}

void NoNames(const char* name, const Arguments& arguments) {
  if (!arguments.named.empty()) {
    throw Fault(std::string("`str.") + name + "` takes no named arguments");
  }
}

void Charge(Machine& machine, const Value& self) { machine.budget().Charge(self.extent().weight); }

template <std::string (*change)(std::string_view)>
Value Changed(Machine& machine, const Value& self, Arguments& arguments) {
  const Parameters given("str", arguments, {});
  machine.budget().Text(self.text().size() * 3);
  return Like(self, change(self.text()));
}

template <bool (*is)(std::string_view)>
Value Whole(Machine& machine, const Value& self, Arguments& arguments) {
  const Parameters given("str", arguments, {});
  Charge(machine, self);
  return Value::Bool(is(self.text()));
}

// Whether all characters are so, and there is one.
template <bool (*is)(uint32_t)>
bool All(std::string_view text) {
  const std::vector<uint32_t> all = Decode(text);
  return !all.empty() && std::all_of(all.begin(), all.end(), is);
}

template <bool left, bool right>
Value Stripped(Machine& machine, const Value& self, Arguments& arguments) {
  NoNames("strip", arguments);
  const Parameters given("strip", arguments, {"chars"});
  const bool chars = given.Has(0) && !given[0].IsNone();
  Charge(machine, self);
  if (chars) {
    machine.budget().Charge(static_cast<int64_t>(self.text().size() * given.Text(0).size()) / 32);
  }
  return Like(self, Strip(self.text(), chars ? &given.Text(0) : nullptr, {left, right}));
}

template <bool from_right>
Value Split(Machine& machine, const Value& self, Arguments& arguments) {
  const Parameters given("split", arguments, {"sep", "maxsplit"});
  const int64_t most = given.Integer(1, -1);
  machine.budget().Text(self.text().size());
  Views parts;
  if (!given.Has(0) || given[0].IsNone()) {
    parts = from_right ? RSplitSpace(self.text(), most) : SplitSpace(self.text(), most);
  } else if (given.Text(0).empty()) {
    throw Fault("`split` wants a separator that is not empty");
  } else {
    parts = from_right ? RSplitAt(self.text(), given.Text(0), most)
                       : SplitAt(self.text(), given.Text(0), most);
  }
  machine.budget().Charge(std::ssize(parts));
  return ListOf(self, parts);
}

Value Lines(Machine& machine, const Value& self, Arguments& arguments) {
  const Parameters given("splitlines", arguments, {"keepends"});
  machine.budget().Text(self.text().size());
  const Views lines = SplitLines(self.text(), given.Flag(0, false));
  machine.budget().Charge(std::ssize(lines));
  return ListOf(self, lines);
}

template <bool from_right>
Value Partition(Machine& machine, const Value& self, Arguments& arguments) {
  NoNames("partition", arguments);
  const Parameters given("partition", arguments, {"sep"}, 1);
  const std::string &text = self.text(), &by = given.Text(0);
  if (by.empty()) throw Fault("`partition` wants a separator that is not empty");
  machine.budget().Text(text.size());
  const size_t at = from_right ? text.rfind(by) : text.find(by);
  if (at == std::string::npos) {
    return ListOf(self, from_right ? Views{"", "", text} : Views{text, "", ""}, true);
  }
  const std::string_view whole = text;
  return ListOf(self, {whole.substr(0, at), by, whole.substr(at + by.size())}, true);
}

// The part of a text that start and stop leave, and the code points before it.
struct Window {
  std::string_view text;
  int64_t before;
  bool valid;  // False: it begins behind the end.
};
Window WindowOf(const Value& self, const Parameters& given) {
  const auto length = static_cast<int64_t>(CodePoints(self.text()));
  const auto place = [&](size_t i, int64_t standard) {
    if (!given.Has(i) || given[i].IsNone()) return standard;
    const int64_t at = given.Integer(i, 0);
    return at < 0 ? std::max<int64_t>(at < -length ? 0 : at + length, 0) : at;
  };
  const int64_t start = place(1, 0), stop = std::min(place(2, length), length);
  if (start > length || start > stop) return {"", 0, false};
  const size_t begin = ByteOffset(self.text(), static_cast<size_t>(start));
  const std::string_view rest = std::string_view(self.text()).substr(begin);
  return {rest.substr(0, ByteOffset(rest, static_cast<size_t>(stop - start))), start, true};
}

template <bool from_right, bool must>
Value Find(Machine& machine, const Value& self, Arguments& arguments) {
  NoNames("find", arguments);
  const Parameters given("find", arguments, {"sub", "start", "end"}, 1);
  Charge(machine, self);
  const std::string& what = given.Text(0);
  const Window window = WindowOf(self, given);
  const size_t at = !window.valid ? std::string_view::npos
                    : from_right  ? window.text.rfind(what)
                                  : window.text.find(what);
  if (at != std::string_view::npos) {
    return Value::Int(window.before + static_cast<int64_t>(CodePoints(window.text.substr(0, at))));
  }
  if (must) throw Fault("`str.index` finds no such text");
  return Value::Int(-1);
}

int64_t CountOf(std::string_view text, std::string_view what) {
  if (what.empty()) return static_cast<int64_t>(CodePoints(text)) + 1;
  int64_t count = 0;
  for (size_t at = 0; (at = text.find(what, at)) != std::string_view::npos; at += what.size()) {
    ++count;
  }
  return count;
}

Value Count(Machine& machine, const Value& self, Arguments& arguments) {
  NoNames("count", arguments);
  const Parameters given("count", arguments, {"sub", "start", "end"}, 1);
  Charge(machine, self);
  const Window window = WindowOf(self, given);
  return Value::Int(window.valid ? CountOf(window.text, given.Text(0)) : 0);
}

template <bool at_end>
Value Has(Machine& machine, const Value& self, Arguments& arguments) {
  NoNames(at_end ? "endswith" : "startswith", arguments);
  const Parameters given(at_end ? "endswith" : "startswith", arguments, {"prefix", "start", "end"},
                         1);
  machine.budget().Charge();
  const bool whole = !given.Has(1) && !given.Has(2);
  if (!whole) Charge(machine, self);
  const Window window = whole ? Window{self.text(), 0, true} : WindowOf(self, given);
  const auto has = [&](const Value& part) {
    if (!part.IsText()) {
      throw Fault(std::string("`startswith` wants a text, got ") + TypeName(part));
    }
    return window.valid &&
           (at_end ? window.text.ends_with(part.text()) : window.text.starts_with(part.text()));
  };
  if (!given[0].Is(Value::Kind::kTuple)) return Value::Bool(has(given[0]));
  machine.budget().Charge(std::ssize(given[0].items()));
  return Value::Bool(std::any_of(given[0].items().begin(), given[0].items().end(), has));
}

Value Replaced(Machine& machine, const Value& self, Arguments& arguments) {
  NoNames("replace", arguments);
  const Parameters given("replace", arguments, {"old", "new", "count"}, 2);
  const std::string& from = given.Text(0);
  given.Text(1);  // Must be one.
  const Value to = self.safe() ? Escape(given[1], machine.budget()) : given[1];
  const int64_t most = given.Integer(2, -1);
  int64_t count = CountOf(self.text(), from);
  if (most >= 0) count = std::min(count, most);
  machine.budget().Text(self.text().size() + static_cast<size_t>(count) * to.text().size());
  return Like(self, Replace(self.text(), from, to.text(), most));
}

Value Joined(Machine& machine, const Value& self, Arguments& arguments) {
  NoNames("join", arguments);
  const Parameters given("join", arguments, {"iterable"}, 1);
  std::string text;
  bool first = true;
  for (const Value& item : ToList(given[0], machine.budget())) {
    const Value part = self.safe() ? Escape(item, machine.budget()) : item;
    if (!part.IsText()) {
      throw Fault(std::string("`str.join` wants texts, got ") + TypeName(part));
    }
    machine.budget().CheckText(text.size() + self.text().size() + part.text().size());
    machine.budget().Charge(self.extent().weight + part.extent().weight);
    if (!first) text += self.text();
    first = false;
    text += part.text();
  }
  return Like(self, std::move(text));
}

template <bool at_end>
Value Removed(Machine& machine, const Value& self, Arguments& arguments) {
  NoNames("removeprefix", arguments);
  const Parameters given("removeprefix", arguments, {"prefix"}, 1);
  std::string_view text = self.text();
  const std::string& part = given.Text(0);
  machine.budget().Text(text.size());
  if (at_end ? text.ends_with(part) : text.starts_with(part)) {
    text = at_end ? text.substr(0, text.size() - part.size()) : text.substr(part.size());
  }
  return Like(self, text);
}

enum class Side { kLeft, kRight, kBoth };
template <Side side>
Value Justified(Machine& machine, const Value& self, Arguments& arguments) {
  NoNames("ljust", arguments);
  const Parameters given("ljust", arguments, {"width", "fillchar"}, 1);
  const std::string fill = given.Has(1) ? given.Text(1) : " ";
  if (CodePoints(fill) != 1) throw Fault("`ljust` wants one character to fill with");
  const int64_t width = given.Integer(0, 0);
  const auto length = static_cast<int64_t>(CodePoints(self.text()));
  const int64_t missing = std::max<int64_t>(width < 0 ? 0 : width - length, 0);
  machine.budget().CheckText(static_cast<size_t>(missing));
  machine.budget().Text(self.text().size() + static_cast<size_t>(missing) * fill.size());
  int64_t left = side == Side::kRight ? missing : 0;
  if (side == Side::kBoth) left = missing / 2 + (missing & width & 1);  // CPython's str.center.
  std::string text;
  for (int64_t i = 0; i < left; ++i) text += fill;
  text += self.text();
  for (int64_t i = left; i < missing; ++i) text += fill;
  return Like(self, std::move(text));
}

Value ZeroFilled(Machine& machine, const Value& self, Arguments& arguments) {
  NoNames("zfill", arguments);
  const Parameters given("zfill", arguments, {"width"}, 1);
  const int64_t width = given.Integer(0, 0);
  const auto length = static_cast<int64_t>(CodePoints(self.text()));
  const int64_t missing = std::max<int64_t>(width < 0 ? 0 : width - length, 0);
  machine.budget().Text(self.text().size() + static_cast<size_t>(missing));
  const bool sign = !self.text().empty() && (self.text()[0] == '-' || self.text()[0] == '+');
  std::string text = self.text().substr(0, sign ? 1 : 0);
  text.append(static_cast<size_t>(missing), '0');
  return Like(self, text + self.text().substr(sign ? 1 : 0));
}

Value Formatted(Machine& machine, const Value& self, Arguments& arguments) {
  return BraceFormat(machine, self, arguments);
}

struct Method {
  std::string_view name;
  Function::Body body;
};
constexpr Method kMethods[] = {
    {"capitalize", Changed<Capitalize>},
    {"center", Justified<Side::kBoth>},
    {"count", Count},
    {"endswith", Has<true>},
    {"find", Find<false, false>},
    {"format", Formatted},
    {"index", Find<false, true>},
    {"isalnum", Whole<All<IsAlnum>>},
    {"isalpha", Whole<All<IsAlpha>>},
    {"isascii", Whole<IsAscii>},
    {"isdecimal", Whole<All<IsDecimal>>},
    {"isdigit", Whole<All<IsDigit>>},
    {"islower", Whole<IsLower>},
    {"isspace", Whole<All<IsSpace>>},
    {"istitle", Whole<IsTitle>},
    {"isupper", Whole<IsUpper>},
    {"join", Joined},
    {"ljust", Justified<Side::kLeft>},
    {"lower", Changed<Lower>},
    {"lstrip", Stripped<true, false>},
    {"partition", Partition<false>},
    {"removeprefix", Removed<false>},
    {"removesuffix", Removed<true>},
    {"replace", Replaced},
    {"rfind", Find<true, false>},
    {"rindex", Find<true, true>},
    {"rjust", Justified<Side::kRight>},
    {"rpartition", Partition<true>},
    {"rsplit", Split<true>},
    {"rstrip", Stripped<false, true>},
    {"split", Split<false>},
    {"splitlines", Lines},
    {"startswith", Has<false>},
    {"strip", Stripped<true, true>},
    {"swapcase", Changed<SwapCase>},
    {"title", Changed<Title>},
    {"upper", Changed<Upper>},
    {"zfill", ZeroFilled},
};

}  // namespace

Function::Body FindTextMethod(std::string_view name) {
  const auto* const found = std::find_if(std::begin(kMethods), std::end(kMethods),
                                         [&](const Method& method) { return method.name == name; });
  return found == std::end(kMethods) ? nullptr : found->body;
}

}  // namespace fsdp::jinja
