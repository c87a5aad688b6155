#include "trainer/core/json_text.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdlib>
#include <utility>

#include "trainer/core/json_reader.h"
#include "trainer/core/read_file.h"
#include "trainer/core/utf8.h"

namespace fsdp {
namespace {

constexpr int kMostDepth = 1000;
constexpr std::string_view kSpaces = " \t\r\n", kEscapes = "\"\\/bfnrt";
constexpr std::string_view kReplacement = "\\ufffd";

bool IsDigit(char c) { return c >= '0' && c <= '9'; }

// A key as a parser reads it.
std::string Unescaped(std::string_view key) {
  if (key.find('\\') == std::string_view::npos) return std::string(key);
  const auto parsed = TryParseJson('"' + std::string(key) + '"');
  return parsed ? parsed->Text() : std::string(key);
}

class Scanner {
 public:
  // `python`: takes what Python's json takes; null: JSON alone.
  // `quotes`: its numbers become texts.
  Scanner(std::string_view text, PythonJson* python, bool quotes = false)
      : text_(text), python_(python), quotes_(quotes) {}

  // Throws JsonFault.
  void Run() {
    if (text_.starts_with("\xef\xbb\xbf")) at_ = 3;  // A byte order mark.
    Space();
    if (at_ == text_.size()) Fail("is empty");
    if (IsLfsPointer(text_)) Fail(kLfsPointer);
    Value(0);
    Space();
    if (at_ < text_.size()) Fail("nothing may follow the value, got " + Here());
    if (python_ != nullptr) python_->text.append(text_.substr(copied_));
  }
  struct TooDeep {};

 private:
  [[noreturn]] void Fail(const std::string& reason) const { throw FaultAt(text_, at_, reason); }
  // For a message.
  std::string Here() const {
    if (at_ == text_.size()) return "the end of the text";
    const size_t bytes = std::max<size_t>(Utf8Length(text_.substr(at_)), 1);
    return "'" + PrintableName(text_.substr(at_, bytes)) + "'";
  }
  bool Next(char c) const { return at_ < text_.size() && text_[at_] == c; }
  bool Take(std::string_view word) {
    if (!text_.substr(at_).starts_with(word)) return false;
    at_ += word.size();
    return true;
  }
  void Space() {
    while (at_ < text_.size() && kSpaces.find(text_[at_]) != std::string_view::npos) ++at_;
  }
  // A part of the text, from `begin` to here, that only Python takes.
  void Odd(size_t begin, const std::string& reason, std::string_view json) {
    if (python_ == nullptr) throw FaultAt(text_, begin, reason);
    python_->text.append(text_.substr(copied_, begin - copied_)).append(json);
    copied_ = at_;
    python_->odd.try_emplace(member_, PythonJson::Odd{begin, reason});
  }

  void OddNumber(size_t begin, const std::string& reason) {
    const std::string quoted = '"' + std::string(text_.substr(begin, at_ - begin)) + '"';
    Odd(begin, reason, quotes_ ? quoted : "null");
  }

  void Value(int depth) {
    if (depth > kMostDepth) throw TooDeep();
    const size_t begin = at_;
    if (Next('{')) return Object(depth);
    if (Next('[')) return List(depth);
    if (Next('"')) return void(Text());
    if (Take("true") || Take("false") || Take("null")) return EndWord();
    for (const char* word : {"NaN", "Infinity", "-Infinity"}) {
      if (Take(word)) return OddNumber(begin, std::string(word) + " is no number of JSON");
    }
    if (Next('-') || (at_ < text_.size() && IsDigit(text_[at_]))) return Number();
    Fail("want a value, got " + Here());
  }
  void EndWord() const {
    if (at_ < text_.size() && (std::isalnum(static_cast<unsigned char>(text_[at_])) != 0)) {
      Fail("nothing may follow the value, got " + Here());
    }
  }

  void Digits(const char* where) {
    if (at_ == text_.size() || !IsDigit(text_[at_])) {
      Fail(std::string("want a digit ") + where + ", got " + Here());
    }
    while (at_ < text_.size() && IsDigit(text_[at_])) ++at_;
  }
  void Number() {
    const size_t begin = at_;
    Take("-");
    if (Take("0")) {
      if (at_ < text_.size() && IsDigit(text_[at_])) Fail("a number begins with 0");
    } else {
      Digits("behind `-`");
    }
    if (Take(".")) Digits("behind the point");
    if (Take("e") || Take("E")) {
      if (!Take("+")) Take("-");
      Digits("in the exponent");
    }
    const std::string number(text_.substr(begin, at_ - begin));
    if (std::isinf(std::strtod(number.c_str(), nullptr))) {
      OddNumber(begin, "the number is too large");
    }
  }

  // The number of a \u escape; at_ is behind \u.
  unsigned Hex() {
    unsigned value = 0;
    for (int i = 0; i < 4; ++i, ++at_) {
      if (at_ == text_.size() || std::isxdigit(static_cast<unsigned char>(text_[at_])) == 0) {
        Fail("want four hexadecimal digits behind \\u, got " + Here());
      }
      const char c = text_[at_];
      value = value * 16 + static_cast<unsigned>(IsDigit(c) ? c - '0' : (c | 0x20) - 'a' + 10);
    }
    return value;
  }
  void Unicode(size_t begin) {
    const unsigned value = Hex();
    if (value < 0xd800 || value > 0xdfff) return;
    if (value < 0xdc00 && text_.substr(at_).starts_with("\\u")) {
      const size_t end = at_;
      at_ += 2;
      const unsigned low = Hex();
      if (low >= 0xdc00 && low <= 0xdfff) return;
      at_ = end;
    }
    const std::string escape(text_.substr(begin, at_ - begin));
    Odd(begin, escape + " is half of a character", kReplacement);
  }
  // Returns the string without its quotes, as it is written.
  std::string_view Text() {
    const size_t begin = ++at_;
    while (!Next('"')) {
      if (at_ == text_.size()) Fail("the text ends inside a string");
      const size_t escape = at_;
      const auto c = static_cast<unsigned char>(text_[at_]);
      if (c == '\\') {
        ++at_;
        if (Take("u")) {
          Unicode(escape);
        } else if (at_ < text_.size() && kEscapes.find(text_[at_]) != std::string_view::npos) {
          ++at_;
        } else {
          Fail("want an escape such as \\n or \\\\, got " + Here());
        }
      } else if (c < 0x20) {
        Fail("a string has the control character " + Here() + ": write it as an escape");
      } else if (const size_t bytes = Utf8Length(text_.substr(at_)); bytes > 0) {
        at_ += bytes;
      } else {
        Fail("a string has bytes that are no UTF-8: " + Here());
      }
    }
    ++at_;
    return text_.substr(begin, at_ - 1 - begin);
  }

  void List(int depth) {
    ++at_;
    Space();
    if (Take("]")) return;
    do {
      Space();
      Value(depth + 1);
      Space();
    } while (Take(","));
    if (!Take("]")) Fail("want `,` or `]` in a list, got " + Here());
  }
  void Object(int depth) {
    ++at_;
    Space();
    if (Take("}")) return;
    do {
      Space();
      if (!Next('"')) Fail("want a key in double quotes, got " + Here());
      if (depth == 0) member_.clear();  // A key is no member's value.
      const std::string_view key = Text();
      if (depth == 0) member_ = Unescaped(key);
      if (depth == 0 && python_ != nullptr) python_->odd.erase(member_);
      Space();
      if (!Take(":")) Fail("want `:` behind a key, got " + Here());
      Space();
      Value(depth + 1);
      Space();
    } while (Take(","));
    if (!Take("}")) Fail("want `,` or `}` in an object, got " + Here());
  }

  const std::string_view text_;
  PythonJson* const python_;
  const bool quotes_;
  size_t at_ = 0, copied_ = 0;
  std::string member_;  // As it is written.
};

}  // namespace

JsonFault FaultAt(std::string_view text, size_t at, std::string reason) {
  const std::string_view before = text.substr(0, at);
  JsonFault fault{.reason = std::move(reason)};
  fault.line += std::count(before.begin(), before.end(), '\n');
  for (size_t i = before.rfind('\n') + 1; i < before.size(); ++fault.column) {  // From 0 if none.
    i += FirstUtf8Part(before.substr(i)).bytes;
  }
  return fault;
}

std::optional<JsonFault> FindJsonFault(std::string_view text) {
  try {
    Scanner(text, nullptr).Run();
  } catch (JsonFault& fault) {
    return std::move(fault);
  } catch (const Scanner::TooDeep&) {
  }
  return std::nullopt;
}

JsonFault FaultOfRefused(std::string_view text) {
  return FindJsonFault(text).value_or(JsonFault{.reason = "is no JSON"});
}

namespace {

std::optional<PythonJson> Read(std::string_view text, bool quotes) {
  PythonJson python;
  try {
    Scanner(text, &python, quotes).Run();
  } catch (const JsonFault&) {
    return std::nullopt;
  } catch (const Scanner::TooDeep&) {
    return std::nullopt;
  }
  return python;
}

}  // namespace

std::optional<PythonJson> ReadPythonJson(std::string_view text) { return Read(text, false); }

std::string JsonOfPython(std::string text) {
  std::optional<PythonJson> python = Read(text, true);
  return python ? std::move(python->text) : std::move(text);
}

}  // namespace fsdp
