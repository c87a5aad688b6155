#include "trainer/data/chat/jinja/lexer.h"

#include <algorithm>
#include <charconv>

#include "trainer/data/chat/jinja/objects.h"
#include "trainer/data/chat/jinja/python_text.h"
#include "trainer/data/tokenizers/unicode.h"

namespace fsdp::jinja {
namespace {

using Type = Token::Type;

bool IsDigit(char c) { return c >= '0' && c <= '9'; }
bool IsNameCharacter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || IsDigit(c) || c == '_';
}

// Newlines as in Python: one \n each, and none at the end of the template.
std::string NormalizedNewlines(std::string_view source) {
  std::string out;
  for (size_t i = 0; i < source.size(); ++i) {
    const bool alone = source.substr(i, 2) != "\r\n";
    if (source[i] != '\r' || alone) out += source[i] == '\r' ? '\n' : source[i];
  }
  if (out.ends_with('\n')) out.pop_back();
  return out;
}

class Lexer {
 public:
  Lexer(const std::string& name, std::string_view source)
      : name_(name), source_(NormalizedNewlines(source)), rest_(source_) {}

  std::vector<Token> Run() {
    const IllFormed ill = CountIllFormed(source_, 0, source_.size());
    if (ill.count > 0) {
      Skip(ill.first);
      Refuse("is no UTF-8");
    }
    while (!rest_.empty()) Root();
    Emit({.type = Type::kEnd});
    return std::move(tokens_);
  }

 private:
  [[noreturn]] void Refuse(const std::string& what) const {
    throw TemplateError(name_, line_, what);
  }
  void Emit(Token token, size_t bytes = 0) {
    token.line = line_;
    tokens_.push_back(std::move(token));
    Skip(bytes);
  }
  // Goes on behind `bytes`, and counts their lines.
  void Skip(size_t bytes) {
    line_ += static_cast<int>(std::count(rest_.begin(), rest_.begin() + bytes, '\n'));
    if (bytes > 0) line_starts_ = rest_[bytes - 1] == '\n';
    rest_.remove_prefix(bytes);
  }
  size_t SpaceEnd(size_t at) const {
    return rest_.size() - Strip(rest_.substr(at), nullptr, true, false).size();
  }
  bool Holds(size_t at, std::string_view text) const {
    return rest_.substr(std::min(at, rest_.size())).starts_with(text);
  }
  // The end of "%}" or its like at `at`, with the white space that goes with it; 0: there is none.
  size_t CloseEnd(size_t at, std::string_view close) const {
    const bool block = close != "}}";
    if (Holds(at, close))
      return at + close.size() + (block && Holds(at + close.size(), "\n") ? 1 : 0);
    if (!Holds(at + 1, close)) return 0;
    if (block && Holds(at, "+")) return at + 1 + close.size();
    return Holds(at, "-") ? SpaceEnd(at + 1 + close.size()) : 0;
  }

  void Root() {
    size_t at = rest_.find('{');
    while (at < rest_.size() && !Holds(at + 1, "%") && !Holds(at + 1, "{") && !Holds(at + 1, "#")) {
      at = rest_.find('{', at + 1);
    }
    const bool none = at >= rest_.size();
    const char kind = none ? '{' : rest_[at + 1];
    const char sign = none ? 0 : Holds(at + 2, "-") ? '-' : Holds(at + 2, "+") ? '+' : 0;
    Data(rest_.substr(0, at), sign, kind == '{');
    Skip(std::min(at, rest_.size()));
    if (none) return;
    const size_t begin = sign ? 3 : 2;
    if (kind == '#') {
      size_t end = 0;
      for (at = begin; at < rest_.size() && end == 0; ++at) end = CloseEnd(at, "#}");
      if (end == 0) Refuse("the comment that begins here has no end");
      Skip(end);
      return;
    }
    Emit({.type = kind == '%' ? Type::kBlock : Type::kPrint}, begin);
    if (kind == '%' && Holds(SpaceEnd(0), "raw")) Refuse(NotAmong("{% raw %}"));
    Tag(kind == '%');
  }

  // Text in front of a tag, or of the end.
  void Data(std::string_view text, char sign, bool of_variable) {
    if (sign == '-') {
      text = Strip(text, nullptr, false, true);
    } else if (sign != '+' && !of_variable) {
      const size_t line = text.rfind('\n') + 1;  // 0 where there is none.
      const bool blank = Strip(text.substr(line), nullptr, true, true).empty();
      if ((line > 0 || line_starts_) && blank) text = text.substr(0, line);
    }
    if (!text.empty()) Emit({.type = Type::kData, .text = std::string(text)});
  }

  void Tag(bool block) {
    for (int open = 0; !rest_.empty();) {
      const size_t end = open > 0 ? 0 : CloseEnd(0, block ? "%}" : "}}");
      if (end > 0) return Emit({.type = block ? Type::kBlockEnd : Type::kPrintEnd}, end);
      const char c = rest_[0];
      if (const size_t space = SpaceEnd(0)) {
        Skip(space);
      } else if (IsDigit(c)) {
        Number();
      } else if (IsNameCharacter(c)) {
        size_t length = 1;
        while (length < rest_.size() && IsNameCharacter(rest_[length])) ++length;
        Emit({.type = Type::kName, .text = std::string(rest_.substr(0, length))}, length);
      } else if (c == '\'' || c == '"') {
        String(c);
      } else {
        if (c == '(' || c == '[' || c == '{') ++open;
        if (c == ')' || c == ']' || c == '}') open = std::max(open - 1, 0);
        Operator();
      }
    }
  }

  void Number() {
    int64_t number = 0;
    const char* const all = rest_.data();
    const auto [read, error] = std::from_chars(all, all + rest_.size(), number);
    const auto end = static_cast<size_t>(read - all);
    if (error != std::errc()) {
      Refuse("integer overflow: " + std::string(rest_.substr(0, std::min<size_t>(end, 40))) +
             " does not fit 64 bits");
    }
    const bool fraction = Holds(end, ".") && end + 1 < rest_.size() && IsDigit(rest_[end + 1]);
    const bool letter = end < rest_.size() && IsNameCharacter(rest_[end]);
    if (fraction || letter || (end > 1 && rest_[0] == '0')) {
      Refuse(NotAmong("a number other than a decimal integer"));
    }
    Emit({.type = Type::kConstant, .constant = Value::Int(number)}, end);
  }

  void Operator() {
    constexpr std::string_view kLong[] = {"//", "**", "==", "!=", ">=", "<="};
    constexpr std::string_view kShort = "+-/*%~[](){}><=.:|,";
    const size_t length = Has(kLong, rest_.substr(0, 2)) ? 2 : 1;
    if (length == 1 && kShort.find(rest_[0]) == std::string_view::npos) {
      Refuse("unexpected character " + Quoted(rest_.substr(0, FirstCodePoint(rest_).bytes)));
    }
    Emit({.type = Type::kOperator, .text = std::string(rest_.substr(0, length))}, length);
  }

  void String(char quote) {
    constexpr std::string_view kLetters = "\\'\"abfnrtv\n", kMeanings = "\\'\"\a\b\f\n\r\t\v";
    std::string text;
    size_t at = 1;
    for (; at < rest_.size() && rest_[at] != quote; ++at) {
      const bool escape = rest_[at] == '\\' && at + 1 < rest_.size();
      const size_t letter = escape ? kLetters.find(rest_[at + 1]) : std::string_view::npos;
      if (letter != std::string_view::npos) {
        ++at;  // Nothing remains of the end of a line.
        if (letter < kMeanings.size()) text += kMeanings[letter];
      } else if (escape && (IsNameCharacter(rest_[at + 1]) || (rest_[at + 1] & 0x80))) {
        Refuse(NotAmong("an escape in a text other than \\n and its like"));
      } else {
        text += rest_[at];
      }
    }
    if (at >= rest_.size()) Refuse("the text that begins here has no end");
    // A text behind a text goes on with it.
    if (tokens_.back().constant.IsText()) text.insert(0, tokens_.back().constant.text());
    if (tokens_.back().constant.IsText()) tokens_.pop_back();
    Emit({.type = Type::kConstant, .constant = Value::Text(std::move(text))}, at + 1);
  }

  const std::string& name_;
  const std::string source_;
  std::string_view rest_;
  std::vector<Token> tokens_;
  int line_ = 1;
  bool line_starts_ = true;
};

}  // namespace

Tokens::Tokens(const std::string& name, std::string_view source)
    : name_(name), all_(Lexer(name, source).Run()) {}

Token Tokens::Take() { return at_ + 1 < all_.size() ? all_[at_++] : all_[at_]; }

void Tokens::Expect(std::string_view op) {
  if (!Skip(op)) Want("`" + std::string(op) + "`");
}
void Tokens::Expect(Type end) {
  if (current().type != end) Want(end == Type::kBlockEnd ? "`%}`" : "`}}`");
  Take();
}
std::string Tokens::TakeName() {
  if (current().type != Type::kName) Want("a name");
  return Take().text;
}

void Tokens::Want(const std::string& what) const {
  constexpr const char* kNames[] = {
      "text", "`{%`", "`%}`", "`{{`", "`}}`", "", "a constant", "", "the end of the template"};
  const std::string name = kNames[static_cast<size_t>(current().type)];
  Refuse(current().line,
         "want " + what + ", got " + (name.empty() ? "`" + current().text + "`" : name));
}
void Tokens::Refuse(int line, const std::string& what) const {
  throw TemplateError(name_, line, what);
}

}  // namespace fsdp::jinja
