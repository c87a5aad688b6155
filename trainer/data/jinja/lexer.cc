#include "trainer/data/jinja/lexer.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>

#include "trainer/core/utf8.h"
#include "trainer/data/jinja/python_text.h"
#include "trainer/data/unicode.h"

namespace fsdp::jinja {
namespace {

using Type = Token::Type;

bool IsDigitIn(char c, int base) {
  int digit = 99;
  if (c >= '0' && c <= '9') digit = c - '0';
  if (c >= 'a' && c <= 'f') digit = c - 'a' + 10;
  if (c >= 'A' && c <= 'F') digit = c - 'A' + 10;
  return digit < base;
}

bool IsNameCharacter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

// Newlines as in Python: one \n each, and none at the end of the template.
std::string NormalizedNewlines(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r') {
      out += '\n';
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    } else {
      out += source[i];
    }
  }
  if (!out.empty() && out.back() == '\n') out.pop_back();
  return out;
}

class Lexer {
 public:
  Lexer(const std::string& name, std::string_view source)
      : name_(name), source_(NormalizedNewlines(source)), rest_(source_) {}

  std::vector<Token> Run() {
    while (!rest_.empty()) Root();
    Emit({.type = Type::kEnd});
    return std::move(tokens_);
  }

 private:
  [[noreturn]] void Refuse(const std::string& what) const {
    throw TemplateError(name_, line_, what);
  }
  void Emit(Token token) {
    token.line = line_;
    tokens_.push_back(std::move(token));
  }
  // Goes on behind `bytes`, and counts their lines.
  void Skip(size_t bytes) {
    line_ += static_cast<int>(std::count(rest_.begin(), rest_.begin() + bytes, '\n'));
    if (bytes > 0) line_starts_ = rest_[bytes - 1] == '\n';
    rest_.remove_prefix(bytes);
  }
  size_t SpaceEnd(size_t at) const {
    while (at < rest_.size()) {
      const CodePoint c = FirstCodePoint(rest_.substr(at));
      if (!IsSpace(c.value)) break;
      at += c.bytes;
    }
    return at;
  }
  bool Holds(size_t at, std::string_view text) const {
    return rest_.substr(std::min(at, rest_.size())).starts_with(text);
  }
  // The end of "%}" or its like at `at`, with the white space that goes with it; 0: there is none.
  size_t CloseEnd(size_t at, std::string_view close, bool plus, bool trims) const {
    if (Holds(at, close)) {
      at += close.size();
      return trims && Holds(at, "\n") ? at + 1 : at;
    }
    if (plus && Holds(at, "+") && Holds(at + 1, close)) return at + 1 + close.size();
    if (Holds(at, "-") && Holds(at + 1, close)) return SpaceEnd(at + 1 + close.size());
    return 0;
  }

  void Root() {
    size_t at = 0;
    while (true) {
      at = rest_.find('{', at);
      if (at == std::string_view::npos || at + 1 >= rest_.size()) {
        Data(rest_, 0, true);
        Skip(rest_.size());
        return;
      }
      const char next = rest_[at + 1];
      if (next == '%' || next == '{' || next == '#') break;
      ++at;
    }
    const char kind = rest_[at + 1];
    const char sign =
        at + 2 < rest_.size() && (rest_[at + 2] == '-' || rest_[at + 2] == '+') ? rest_[at + 2] : 0;
    Data(rest_.substr(0, at), sign, kind == '{');
    Skip(at);
    const size_t begin = sign ? 3 : 2;
    if (kind == '#') {
      Skip(begin);
      Comment();
    } else if (const size_t raw = kind == '%' ? RawEnd(begin) : 0) {
      Skip(raw);
      Raw();
    } else {
      Emit({.type = kind == '%' ? Type::kBlockBegin : Type::kVariableBegin});
      Skip(begin);
      Tag(kind == '%');
    }
  }

  // Text in front of a tag, or of the end.
  void Data(std::string_view text, char sign, bool of_variable) {
    if (sign == '-') {
      text = Strip(text, nullptr, {.left = false});
    } else if (sign != '+' && !of_variable) {
      const size_t line = text.rfind('\n') + 1;  // 0 where there is none.
      const std::string_view last = text.substr(line);
      if ((line > 0 || line_starts_) && Strip(last, nullptr, {}).empty()) {
        text = text.substr(0, line);
      }
    }
    if (!text.empty()) Emit({.type = Type::kData, .text = std::string(text)});
  }

  void Comment() {
    for (size_t at = 0; at < rest_.size(); ++at) {
      if (const size_t end = CloseEnd(at, "#}", true, true)) {
        Skip(end);
        return;
      }
    }
    Refuse("the comment that begins here has no end");
  }

  // The end of "raw %}" behind "{%".
  size_t RawEnd(size_t at) const {
    at = SpaceEnd(at);
    return Holds(at, "raw") ? CloseEnd(SpaceEnd(at + 3), "%}", false, false) : 0;
  }

  void Raw() {
    for (size_t at = rest_.find("{%"); at != std::string_view::npos;
         at = rest_.find("{%", at + 1)) {
      const char sign = Holds(at + 2, "-") ? '-' : Holds(at + 2, "+") ? '+' : 0;
      const size_t word = SpaceEnd(at + (sign ? 3 : 2));
      if (!Holds(word, "endraw")) continue;
      const size_t end = CloseEnd(SpaceEnd(word + 6), "%}", true, true);
      if (end == 0) continue;
      Data(rest_.substr(0, at), sign, false);
      Skip(end);
      return;
    }
    Refuse("{% raw %} has no {% endraw %}");
  }

  void Tag(bool block) {
    open_.clear();
    while (!rest_.empty()) {
      if (open_.empty()) {
        if (const size_t end =
                block ? CloseEnd(0, "%}", true, true) : CloseEnd(0, "}}", false, false)) {
          Emit({.type = block ? Type::kBlockEnd : Type::kVariableEnd});
          Skip(end);
          return;
        }
      }
      if (const size_t space = SpaceEnd(0)) {
        Skip(space);
      } else {
        One();
      }
    }
  }

  void One() {
    const char c = rest_[0];
    if (c >= '0' && c <= '9') {
      Number();
    } else if (IsNameCharacter(c)) {
      size_t end = 1;
      while (end < rest_.size() && IsNameCharacter(rest_[end])) ++end;
      Emit({.type = Type::kName, .text = std::string(rest_.substr(0, end))});
      Skip(end);
    } else if (c == '\'' || c == '"') {
      String(c);
    } else {
      Operator();
    }
  }

  // Digits that single underscores may part. `at` if there are none.
  size_t Digits(size_t at, int base) const {
    size_t end = at;
    while (end < rest_.size()) {
      if (IsDigitIn(rest_[end], base)) {
        ++end;
      } else if (end > at && rest_[end] == '_' && end + 1 < rest_.size() &&
                 IsDigitIn(rest_[end + 1], base)) {
        ++end;
      } else {
        break;
      }
    }
    return end;
  }
  // The end of a float at the beginning; 0: there is none.
  size_t FloatEnd() const {
    size_t end = Digits(0, 10);
    bool is_float = false;
    if (Holds(end, ".") && Digits(end + 1, 10) > end + 1) {
      end = Digits(end + 1, 10);
      is_float = true;
    }
    if (Holds(end, "e") || Holds(end, "E")) {
      const size_t digits = end + (Holds(end + 1, "+") || Holds(end + 1, "-") ? 2 : 1);
      if (Digits(digits, 10) > digits) {
        end = Digits(digits, 10);
        is_float = true;
      }
    }
    return is_float ? end : 0;
  }

  void Number() {
    // Behind a dot only integers stand: a.0.1.
    const bool member = !tokens_.empty() && tokens_.back().IsOperator(".");
    const size_t end = member ? 0 : FloatEnd();
    if (end > 0) {
      std::string digits(rest_.substr(0, end));
      std::erase(digits, '_');
      Emit({.type = Type::kFloat, .number = std::strtod(digits.c_str(), nullptr)});
      Skip(end);
      return;
    }
    int base = 10;
    if (rest_[0] == '0' && rest_.size() > 1) {
      const char letter = static_cast<char>(rest_[1] | 0x20);
      base = letter == 'x' ? 16 : letter == 'o' ? 8 : letter == 'b' ? 2 : 10;
    }
    std::string digits;
    size_t after = 0;
    if (base != 10) {
      const size_t from = Holds(2, "_") ? 3 : 2;
      after = Digits(from, base);
      if (after > from) digits = rest_.substr(from, after - from);
    }
    if (digits.empty()) {
      base = 10;
      after = Digits(0, 10);
      if (rest_[0] == '0') {  // 007 is 00 and 7.
        after = std::min(after, rest_.find_first_not_of("0_"));
        if (rest_[after - 1] == '_') --after;
      }
      digits = rest_.substr(0, after);
    }
    std::erase(digits, '_');
    Token token{.type = Type::kInteger};
    const auto result =
        std::from_chars(digits.data(), digits.data() + digits.size(), token.integer, base);
    if (result.ec != std::errc()) {
      Refuse("integer overflow: " + std::string(rest_.substr(0, std::min<size_t>(after, 40))) +
             " does not fit 64 bits");
    }
    Emit(std::move(token));
    Skip(after);
  }

  void Operator() {
    constexpr std::string_view kOperators[] = {"//", "**", "==", "!=", ">=", "<=", "+", "-", "/",
                                               "*",  "%",  "~",  "[",  "]",  "(",  ")", "{", "}",
                                               ">",  "<",  "=",  ".",  ":",  "|",  ",", ";"};
    for (const std::string_view op : kOperators) {
      if (!rest_.starts_with(op)) continue;
      if (op == "(" || op == "[" || op == "{") {
        open_ += op == "(" ? ')' : op == "[" ? ']' : '}';
      } else if (op == ")" || op == "]" || op == "}") {
        if (open_.empty()) Refuse("unexpected `" + std::string(op) + "`");
        if (open_.back() != op[0]) {
          Refuse("unexpected `" + std::string(op) + "`, want `" + open_.back() + "`");
        }
        open_.pop_back();
      }
      Emit({.type = Type::kOperator, .text = std::string(op)});
      Skip(op.size());
      return;
    }
    Refuse("unexpected character " + Quoted(rest_.substr(0, FirstCodePoint(rest_).bytes)));
  }

  void String(char quote) {
    size_t end = 1;
    while (end < rest_.size() && rest_[end] != quote) end += rest_[end] == '\\' ? 2 : 1;
    if (end >= rest_.size()) Refuse("the text that begins here has no end");
    Token token{.type = Type::kText, .text = Unescape(rest_.substr(1, end - 1))};
    Emit(std::move(token));
    Skip(end + 1);
  }

  // Python's unicode-escape, of text whose other characters than ASCII are \-escaped before.
  std::string Unescape(std::string_view text) const {
    std::string out;
    while (!text.empty()) {
      if (text[0] != '\\') {
        out += text[0];
        text.remove_prefix(1);
        continue;
      }
      text.remove_prefix(1);
      const CodePoint c = FirstCodePoint(text);
      constexpr std::string_view kLetters = "\\'\"abfnrtv", kMeanings = "\\'\"\a\b\f\n\r\t\v";
      const size_t letter =
          c.value < 0x80 ? kLetters.find(static_cast<char>(c.value)) : std::string_view::npos;
      if (c.value == '\n') {
        text.remove_prefix(1);
      } else if (letter != std::string_view::npos) {
        out += kMeanings[letter];
        text.remove_prefix(1);
      } else if (c.value >= '0' && c.value <= '7') {
        Append(text, 0, 8, 3, out);
      } else if (c.value == 'x') {
        Append(text, 1, 16, 2, out);
      } else if (c.value == 'u') {
        Append(text, 1, 16, 4, out);
      } else if (c.value == 'U') {
        Append(text, 1, 16, 8, out);
      } else if (c.value == 'N') {
        Refuse("\\N{...} in a text is not among what chat templates use");
      } else if (c.value >= 0x80) {
        // Its own escape, of which the backslash has been taken.
        out += CodePointEscape(c.value);
        text.remove_prefix(c.bytes);
      } else {
        out += '\\';
      }
    }
    return out;
  }

  void Append(std::string_view& text, size_t skip, int base, size_t digits,
              std::string& out) const {
    text.remove_prefix(skip);
    uint64_t value = 0;
    size_t n = 0;
    while (n < digits && n < text.size() && IsDigitIn(text[n], base)) ++n;
    std::from_chars(text.data(), text.data() + n, value, base);
    if (base == 16 && n < digits) Refuse("a text has a \\-escape that is too short");
    if (value > 0x10ffff || (value >= 0xd800 && value < 0xe000)) {
      Refuse("a text has a \\-escape that is no character");
    }
    AppendUtf8(static_cast<uint32_t>(value), out);
    text.remove_prefix(n);
  }

  const std::string& name_;
  const std::string source_;
  std::string_view rest_;
  std::vector<Token> tokens_;
  std::string open_;  // The brackets that close what is open.
  int line_ = 1;
  bool line_starts_ = true;
};

}  // namespace

std::vector<Token> Tokenize(const std::string& name, std::string_view source) {
  int line = 1;
  for (std::string_view rest = source; !rest.empty();) {
    const Utf8Part part = FirstUtf8Part(rest);
    if (!part.well_formed) throw TemplateError(name, line, "is no UTF-8");
    if (rest[0] == '\n') ++line;
    rest.remove_prefix(part.bytes);
  }
  return Lexer(name, source).Run();
}

}  // namespace fsdp::jinja
