#include "trainer/data/jinja/text_filters.h"

#include <algorithm>

#include "trainer/data/jinja/format.h"
#include "trainer/data/jinja/json.h"
#include "trainer/data/jinja/machine.h"
#include "trainer/data/jinja/methods.h"
#include "trainer/data/jinja/objects.h"
#include "trainer/data/jinja/operators.h"
#include "trainer/data/jinja/python_text.h"
#include "trainer/data/unicode.h"

namespace fsdp::jinja {
namespace {

// markupsafe.soft_str()
Value Soft(const Value& value, Budget& budget) {
  return value.IsText() ? value : Value::Text(Str(value, budget));
}

Value ByMethod(const char* method, Machine& machine, const Value& value, Arguments& arguments) {
  return FindTextMethod(method)(machine, Soft(value, machine.budget()), arguments);
}

}  // namespace

Value CapitalizeFilter(Machine& machine, const Value& value, Arguments& arguments) {
  return ByMethod("capitalize", machine, value, arguments);
}
Value LowerFilter(Machine& machine, const Value& value, Arguments& arguments) {
  return ByMethod("lower", machine, value, arguments);
}
Value UpperFilter(Machine& machine, const Value& value, Arguments& arguments) {
  return ByMethod("upper", machine, value, arguments);
}

Value CenterFilter(Machine& machine, const Value& value, Arguments& arguments) {
  const Parameters given("center", arguments, {"width"});
  Arguments width{.positional = {Value::Int(given.Integer(0, 80))}, .named = {}};
  return ByMethod("center", machine, value, width);
}

Value TrimFilter(Machine& machine, const Value& value, Arguments& arguments) {
  const Parameters given("trim", arguments, {"chars"});
  Arguments chars;
  if (given.Has(0)) chars.positional.push_back(given[0]);
  return ByMethod("strip", machine, value, chars);
}

Value StringFilter(Machine& machine, const Value& value, Arguments& arguments) {
  const Parameters given("string", arguments, {});
  return Soft(value, machine.budget());
}

Value SafeFilter(Machine& machine, const Value& value, Arguments& arguments) {
  const Parameters given("safe", arguments, {});
  return Value::Text(Str(value, machine.budget()), true);
}

Value EscapeFilter(Machine& machine, const Value& value, Arguments& arguments) {
  const Parameters given("escape", arguments, {});
  return Escape(value, machine.budget());
}

Value FormatFilter(Machine& machine, const Value& value, Arguments& arguments) {
  Budget& budget = machine.budget();
  if (!arguments.positional.empty() && !arguments.named.empty()) {
    throw Fault("`format` takes values either with or without names");
  }
  if (arguments.named.empty()) {
    return PercentFormat(Soft(value, budget), Value::Tuple(arguments.positional), budget);
  }
  Dict dict;
  for (const auto& [name, item] : arguments.named) dict.Set(Value::Text(name), item);
  return PercentFormat(Soft(value, budget), Value::Of(std::move(dict)), budget);
}

Value ReplaceFilter(Machine& machine, const Value& value, Arguments& arguments) {
  const Parameters given("replace", arguments, {"old", "new", "count"}, 2);
  Budget& budget = machine.budget();
  Arguments plain;
  plain.positional = {Value::Text(Str(given[0], budget)), Value::Text(Str(given[1], budget))};
  if (given.Has(2) && !given[2].IsNone()) plain.positional.push_back(given[2]);
  return FindTextMethod("replace")(machine, Value::Text(Str(value, budget)), plain);
}

// Words begin behind white space, hyphens and opening brackets.
Value TitleFilter(Machine& machine, const Value& value, Arguments& arguments) {
  const Parameters given("title", arguments, {});
  const Value text = Soft(value, machine.budget());
  machine.budget().Text(text.text().size() * 3);
  std::string out, word;
  const auto end_word = [&] {
    if (word.empty()) return;
    const size_t first = FirstCodePoint(word).bytes;
    out += Upper(std::string_view(word).substr(0, first));
    out += Lower(std::string_view(word).substr(first));
    word.clear();
  };
  bool between = false;
  for (const uint32_t c : Decode(text.text())) {
    const bool parts = IsSpace(c) || (c < 0x80 && c != 0 &&
                                      std::string_view("-({[<").find(static_cast<char>(c)) !=
                                          std::string_view::npos);
    if (parts != between) end_word();
    between = parts;
    AppendUtf8(c, word);
  }
  end_word();
  return Value::Text(std::move(out));
}

Value IndentFilter(Machine& machine, const Value& value, Arguments& arguments) {
  const Parameters given("indent", arguments, {"width", "first", "blank"});
  Budget& budget = machine.budget();
  if (value.IsUndefined()) RefuseUndefined(value);
  if (!value.IsText()) throw Fault(std::string("`indent` wants a text, got ") + TypeName(value));
  std::string by;
  if (given.Has(0) && given[0].IsText()) {
    by = given[0].text();
    if (value.safe()) by = Escape(given[0], budget).text();
  } else {
    const int64_t width = std::max<int64_t>(given.Integer(0, 4), 0);
    budget.Text(static_cast<size_t>(width));
    by.assign(static_cast<size_t>(width), ' ');
  }
  const bool first = given.Flag(1, false), blank = given.Flag(2, false);
  const std::string ended = value.text() + "\n";
  const std::vector<std::string_view> lines = SplitLines(ended, false);
  budget.Text(ended.size());
  budget.CheckText(ended.size() + lines.size() * by.size());
  budget.Charge(static_cast<int64_t>(lines.size() * (1 + by.size() / 32)));
  std::string out = first ? by : "";
  for (size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) out += '\n';
    if (i > 0 && (blank || !lines[i].empty())) out += by;
    out += lines[i];
  }
  return Value::Text(std::move(out), value.safe());
}

Value TruncateFilter(Machine& machine, const Value& value, Arguments& arguments) {
  const Parameters given("truncate", arguments, {"length", "killwords", "end", "leeway"});
  const std::string end = given.Has(2) ? given.Text(2) : "...";
  const int64_t length = given.Integer(0, 255);
  const int64_t leeway = given.Has(3) && !given[3].IsNone() ? given.Integer(3, 5) : 5;
  const auto ends = static_cast<int64_t>(CodePoints(end));
  if (length < ends || leeway < 0) throw Fault("`truncate` wants more room than for its end");
  machine.budget().Charge(value.extent().weight);
  const int64_t size = Length(value);
  if (size <= leeway || size - leeway <= length) return value;
  if (!value.IsText()) throw Fault(std::string("`truncate` wants a text, got ") + TypeName(value));
  std::string_view kept =
      std::string_view(value.text())
          .substr(0, ByteOffset(value.text(), static_cast<size_t>(length - ends)));
  if (!given.Flag(1, false)) kept = kept.substr(0, kept.rfind(' '));
  const Value tail = value.safe() ? Escape(Value::Text(end), machine.budget()) : Value::Text(end);
  return Value::Text(std::string(kept) + tail.text(), value.safe());
}

Value TojsonFilter(Machine& machine, const Value& value, Arguments& arguments) {
  const Parameters given("tojson", arguments,
                         {"ensure_ascii", "indent", "separators", "sort_keys"});
  JsonFormat format;
  format.ensure_ascii = given.Flag(0, false);
  format.sort_keys = given.Flag(3, false);
  if (given.Has(1) && !given[1].IsNone()) {
    format.lines = true;
    format.between = ",";
    if (given[1].IsText()) {
      format.indent = given[1].text();
    } else {
      const int64_t width = std::max<int64_t>(given.Integer(1, 0), 0);
      machine.budget().Text(static_cast<size_t>(width));
      format.indent.assign(static_cast<size_t>(width), ' ');
    }
  }
  if (given.Has(2) && !given[2].IsNone()) {
    const Values both = ToList(given[2], machine.budget());
    if (both.size() != 2 || !both[0].IsText() || !both[1].IsText()) {
      throw Fault("`tojson` wants two texts as `separators`");
    }
    format.between = both[0].text();
    format.colon = both[1].text();
  }
  return Value::Text(ToJson(value, format, machine.budget()));
}

}  // namespace fsdp::jinja
