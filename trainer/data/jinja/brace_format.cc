// Python's `text.format(...)`.
// Tests: tests/trainer/data/jinja/jinja_template_test.cc
#include <algorithm>

#include "trainer/data/jinja/format.h"
#include "trainer/data/jinja/format_spec.h"
#include "trainer/data/jinja/machine.h"
#include "trainer/data/jinja/operators.h"
#include "trainer/data/unicode.h"

namespace fsdp::jinja {
namespace {

using Kind = Value::Kind;

FormatSpec ParseBraceSpec(std::string_view text) {
  FormatSpec spec;
  if (!text.empty()) {
    const size_t first = FirstCodePoint(text).bytes;
    const std::string_view aligns = "<>=^";
    if (text.size() > first && aligns.find(text[first]) != std::string_view::npos) {
      spec.fill = text.substr(0, first);
      spec.align = text[first];
      text.remove_prefix(first + 1);
    } else if (aligns.find(text[0]) != std::string_view::npos) {
      spec.align = text[0];
      text.remove_prefix(1);
    }
  }
  const auto take = [&](std::string_view any) -> char {
    if (text.empty() || any.find(text[0]) == std::string_view::npos) return 0;
    const char c = text[0];
    text.remove_prefix(1);
    return c;
  };
  if (const char sign = take("+- ")) spec.sign = sign;
  spec.alternate = take("#") != 0;
  if (!text.empty() && text[0] == '0' && spec.align == 0) {
    spec.fill = "0";
    spec.align = '=';
  }
  spec.width = TakeNumber(text);
  spec.group = take(",_");
  if (take(".")) {
    if (text.empty() || text[0] < '0' || text[0] > '9') throw Fault("a format lacks its precision");
    spec.precision = TakeNumber(text);
  }
  spec.type = text.empty() ? 0 : text[0];
  if (text.size() > 1) throw Fault("a format specification that is not supported");
  return spec;
}

std::string FormatValue(const Value& value, const std::string& text, Budget& budget) {
  if (text.empty()) return Str(value, budget);
  FormatSpec spec = ParseBraceSpec(text);
  if (value.IsUndefined()) {
    throw Fault("formats an undefined value by a specification");
  }
  if (value.IsText() && (spec.type == 0 || spec.type == 's')) {
    if (spec.align == '=' && spec.fill == "0") spec.align = '<';
    if (spec.align == '=' || spec.sign != '-' || spec.alternate || spec.group != 0) {
      throw Fault("formats a text as if it were a number");
    }
    return FormatText(value.text(), spec, '<', budget);
  }
  if (value.IsInteger() &&
      (spec.type == 0 || std::string_view("dxXob").find(spec.type) != std::string_view::npos)) {
    if (value.Is(Kind::kBool) && spec.type == 0) throw Fault("formats a bool by a specification");
    if (spec.precision >= 0) throw Fault("formats an integer with a precision");
    if (spec.group != 0 && spec.fill == "0")
      throw Fault("a format specification that is not supported");
    if (spec.type == 0) spec.type = 'd';
    return FormatInteger(value.integer(), spec, budget);
  }
  if (value.IsNumber() && spec.type != 0 &&
      std::string_view("eEfFgG%").find(spec.type) != std::string_view::npos) {
    if (spec.group != 0 && spec.fill == "0")
      throw Fault("a format specification that is not supported");
    return FormatFloat(value.number(), spec, budget);
  }
  throw Fault(std::string("formats a ") + TypeName(value) + " by `" + text +
              "`, which is not supported");
}

class BraceFormatter {
 public:
  BraceFormatter(Machine& machine, const Arguments& arguments, bool safe)
      : machine_(machine), arguments_(arguments), safe_(safe) {}

  std::string Run(std::string_view rest) {
    std::string out;
    while (!rest.empty()) {
      const size_t at = std::min(rest.find_first_of("{}"), rest.size());
      out += rest.substr(0, at);
      rest.remove_prefix(at);
      if (rest.empty()) break;
      if (rest.size() > 1 && rest[1] == rest[0]) {
        out += rest[0];
        rest.remove_prefix(2);
        continue;
      }
      const size_t end = rest.find_first_of("{}", 1);
      if (rest[0] == '}' || end == std::string_view::npos) {
        throw Fault("a format has a single brace");
      }
      if (rest[end] == '{') throw Fault("a format with a field in a field is not supported");
      const std::string text = Field(rest.substr(1, end - 1));
      machine_.budget().CheckText(out.size() + text.size());
      out += text;
      rest.remove_prefix(end + 1);
    }
    return out;
  }

 private:
  std::string Field(std::string_view field) {
    machine_.budget().Charge();
    const size_t colon = std::min(field.find(':'), field.size());
    std::string_view name = field.substr(0, colon);
    const std::string spec(colon < field.size() ? field.substr(colon + 1) : "");
    char conversion = 0;
    if (const size_t bang = name.find('!'); bang != std::string_view::npos) {
      if (bang + 2 != name.size()) throw Fault("a format has an unknown conversion");
      conversion = name[bang + 1];
      name = name.substr(0, bang);
    }
    Value value = Named(name);
    Budget& budget = machine_.budget();
    if (conversion == 'r') {
      value = Value::Text(Repr(value, budget));
    } else if (conversion == 's') {
      value = Value::Text(Str(value, budget));
    } else if (conversion != 0) {
      throw Fault("a format has an unknown conversion");
    }
    std::string text = FormatValue(value, spec, budget);
    return safe_
               ? Escape(Value::Text(std::move(text), value.IsText() && value.safe()), budget).text()
               : text;
  }

  Value Named(std::string_view name) {
    const size_t end = std::min(name.find_first_of(".["), name.size());
    Value value = First(name.substr(0, end));
    name.remove_prefix(end);
    while (!name.empty()) {
      if (name[0] == '.') {
        const size_t stop = std::min(name.find_first_of(".[", 1), name.size());
        value = machine_.Attribute(value, std::string(name.substr(1, stop - 1)));
        name.remove_prefix(stop);
        continue;
      }
      const size_t stop = name.find(']');
      if (name[0] != '[' || stop == std::string_view::npos) {
        throw Fault("a format has a field that is not closed");
      }
      const std::string_view key = name.substr(1, stop - 1);
      value = machine_.Element(value, IsNumber(key) ? Value::Int(Number(key)) : Value::Text(key));
      name.remove_prefix(stop + 1);
    }
    return value;
  }

  static bool IsNumber(std::string_view text) {
    return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
  }
  static int64_t Number(std::string_view text) {
    if (text.size() > 9) throw Fault("a format with too large a number");
    return std::stoll(std::string(text));
  }

  Value First(std::string_view name) {
    if (name.empty() || IsNumber(name)) {
      const bool automatic = name.empty();
      if ((automatic ? numbered_ : next_ > 0)) {
        throw Fault("a format mixes numbered fields with others");
      }
      numbered_ |= !automatic;
      const size_t i = automatic ? next_++ : static_cast<size_t>(Number(name));
      if (i >= arguments_.positional.size())
        throw Fault("a format wants more values than there are");
      return arguments_.positional[i];
    }
    for (const auto& [known, value] : arguments_.named) {
      if (known == name) return value;
    }
    throw Fault("a format wants `" + std::string(name) + "`, which is not given");
  }

  Machine& machine_;
  const Arguments& arguments_;
  const bool safe_;
  size_t next_ = 0;
  bool numbered_ = false;
};

}  // namespace

Value BraceFormat(Machine& machine, const Value& format, const Arguments& arguments) {
  machine.budget().Text(format.text().size());
  return Value::Text(BraceFormatter(machine, arguments, format.safe()).Run(format.text()),
                     format.safe());
}

}  // namespace fsdp::jinja
