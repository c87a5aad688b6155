// Python's `text % values`.
// Tests: tests/trainer/data/jinja/jinja_template_test.cc
#include <algorithm>
#include <cmath>

#include "trainer/data/jinja/format.h"
#include "trainer/data/jinja/format_spec.h"
#include "trainer/data/jinja/objects.h"
#include "trainer/data/jinja/operators.h"

namespace fsdp::jinja {
namespace {

using Kind = Value::Kind;

std::string Percent(const FormatSpec& given, const Value& value, bool safe, Budget& budget) {
  FormatSpec spec = given;
  switch (spec.type) {
    case 's': {
      const std::string text = safe ? Escape(value, budget).text() : Str(value, budget);
      return FormatText(text, spec, '>', budget);
    }
    case 'r':
      return FormatText(Repr(value, budget), spec, '>', budget);
    case 'd':
    case 'i':
    case 'u':
    case 'x':
    case 'X':
    case 'o': {
      if (spec.type == 'i' || spec.type == 'u') spec.type = 'd';
      if (value.IsUndefined()) RefuseUndefined(value);
      const bool whole = value.IsInteger() || (spec.type == 'd' && value.Is(Kind::kFloat) &&
                                               std::fabs(value.number()) < 9e18);
      if (!whole) throw Fault(std::string("`%d` wants an integer, got ") + TypeName(value));
      return FormatInteger(
          value.IsInteger() ? value.integer() : static_cast<int64_t>(value.number()), spec, budget);
    }
    case 'e':
    case 'E':
    case 'f':
    case 'F':
    case 'g':
    case 'G':
      if (value.IsUndefined()) RefuseUndefined(value);
      if (!value.IsNumber())
        throw Fault(std::string("`%f` wants a number, got ") + TypeName(value));
      return FormatFloat(value.number(), spec, budget);
    default:
      throw Fault(std::string("a format has `%") + spec.type + "`, which is not supported");
  }
}

FormatSpec TakePercentSpec(std::string_view& rest) {
  FormatSpec spec;
  bool zeros = false;
  for (; !rest.empty(); rest.remove_prefix(1)) {
    if (rest[0] == '-') {
      spec.align = '<';
    } else if (rest[0] == '0') {
      zeros = true;
    } else if (rest[0] == '+' || (rest[0] == ' ' && spec.sign != '+')) {
      spec.sign = rest[0];
    } else if (rest[0] == '#') {
      spec.alternate = true;
    } else if (rest[0] != ' ') {
      break;
    }
  }
  spec.width = TakeNumber(rest);
  if (!rest.empty() && rest[0] == '.') {
    rest.remove_prefix(1);
    spec.precision = TakeNumber(rest);
  }
  if (rest.empty()) throw Fault("a format ends in the middle of a `%`");
  spec.type = rest[0];
  rest.remove_prefix(1);
  if (zeros && spec.align == 0 && spec.type != 's' && spec.type != 'r') {
    spec.fill = "0";
    spec.align = '=';
  }
  return spec;
}

}  // namespace

Value PercentFormat(const Value& format, const Value& values, Budget& budget) {
  const bool tuple = values.Is(Kind::kTuple);
  const size_t count = tuple ? values.items().size() : 1;
  size_t next = 0;
  bool by_name = false;
  std::string out;
  std::string_view rest = format.text();
  budget.Text(rest.size());
  while (!rest.empty()) {
    const size_t at = std::min(rest.find('%'), rest.size());
    out += rest.substr(0, at);
    rest.remove_prefix(at);
    if (rest.empty()) break;
    rest.remove_prefix(1);
    if (!rest.empty() && rest[0] == '%') {
      out += '%';
      rest.remove_prefix(1);
      continue;
    }
    const Value* value = nullptr;
    if (!rest.empty() && rest[0] == '(') {
      const size_t end = rest.find(')');
      if (end == std::string_view::npos || !values.IsDict()) {
        throw Fault("a format with `%(` wants a name and a dict");
      }
      value = values.dict().Find(rest.substr(1, end - 1));
      if (!value) throw Fault("a format wants a key that the dict does not have");
      rest.remove_prefix(end + 1);
      by_name = true;
    }
    const FormatSpec spec = TakePercentSpec(rest);
    if (!value) {
      if (next >= count) throw Fault("a format wants more values than there are");
      value = tuple ? &values.items()[next] : &values;
      ++next;
    }
    const std::string text = Percent(spec, *value, format.safe(), budget);
    budget.CheckText(out.size() + text.size());
    out += text;
  }
  // As in Python, a dict or list may be left over where nothing asks for it.
  const bool container =
      values.IsUndefined() || values.IsDict() || values.Is(Kind::kList) ||
      (values.Is(Kind::kObject) && dynamic_cast<const RangeObject*>(&values.object()));
  if (next < count && !by_name && !(container && !tuple)) {
    throw Fault("not all values are used by the format");
  }
  return Value::Text(std::move(out), format.safe());
}

}  // namespace fsdp::jinja
