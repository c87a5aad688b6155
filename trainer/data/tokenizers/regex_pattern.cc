#include "trainer/data/tokenizers/regex_pattern.h"

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <cstdio>
#include <map>
#include <optional>
#include <stdexcept>
#include <utility>
#include <vector>

#include "trainer/data/tokenizers/unicode.h"

namespace fsdp {
namespace {

// Characters, as brackets of PCRE2 have them, or all others.
struct Set {
  std::string items = {};
  bool negated = false;

  std::string Brackets() const { return (negated ? "[^" : "[") + items + "]"; }
};

constexpr const char* kSpaces =
    "\\t-\\r "
    "\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}";
constexpr const char* kWord = "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}";
// Outside of brackets \w and \b take the digits of Latin-1 for words, too.
constexpr const char* kWordOutside =
    "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\x{b2}\\x{b3}\\x{b9}\\x{bc}-\\x{be}";
// With the marks that Unicode 16 has made alphabetic.
constexpr const char* kAlphabetic = "\\p{Alphabetic}\\x{363}-\\x{36f}";
constexpr const char* kHex = "0-9a-fA-F";

// Oniguruma's names that PCRE2 lacks or reads otherwise, in lower case, without spaces, _ and -.
const std::map<std::string, std::string, std::less<>>& NamedSets() {
  static const std::map<std::string, std::string, std::less<>> sets = {
      {"any", "\\x{0}-\\x{10ffff}"},
      {"ascii", "\\x{0}-\\x{7f}"},
      {"assigned", "\\P{Cn}"},
      {"alnum", kAlphabetic + std::string("\\p{Nd}")},
      {"alpha", kAlphabetic},
      {"alphabetic", kAlphabetic},
      {"blank", "\\p{Zs}\\t"},
      {"cntrl", "\\p{Cc}"},
      {"digit", "\\p{Nd}"},
      {"lower", "\\p{Lowercase}"},
      {"punct", "\\p{P}"},
      {"punctposix", "\\p{P}\\p{S}"},
      {"space", kSpaces},
      {"upper", "\\p{Uppercase}"},
      {"word", kWord},
      {"xdigit", kHex},
      {"lc", "\\p{Lu}\\p{Ll}\\p{Lt}"},
      {"closepunctuation", "\\p{Pe}"},
      {"connectorpunctuation", "\\p{Pc}"},
      {"control", "\\p{Cc}"},
      {"currencysymbol", "\\p{Sc}"},
      {"dashpunctuation", "\\p{Pd}"},
      {"decimalnumber", "\\p{Nd}"},
      {"enclosingmark", "\\p{Me}"},
      {"finalpunctuation", "\\p{Pf}"},
      {"format", "\\p{Cf}"},
      {"initialpunctuation", "\\p{Pi}"},
      {"letter", "\\p{L}"},
      {"letternumber", "\\p{Nl}"},
      {"lineseparator", "\\p{Zl}"},
      {"lowercaseletter", "\\p{Ll}"},
      {"mark", "\\p{M}"},
      {"mathsymbol", "\\p{Sm}"},
      {"modifierletter", "\\p{Lm}"},
      {"modifiersymbol", "\\p{Sk}"},
      {"nonspacingmark", "\\p{Mn}"},
      {"number", "\\p{N}"},
      {"openpunctuation", "\\p{Ps}"},
      {"other", "\\p{C}"},
      {"otherletter", "\\p{Lo}"},
      {"othernumber", "\\p{No}"},
      {"otherpunctuation", "\\p{Po}"},
      {"othersymbol", "\\p{So}"},
      {"paragraphseparator", "\\p{Zp}"},
      {"privateuse", "\\p{Co}"},
      {"punctuation", "\\p{P}"},
      {"separator", "\\p{Z}"},
      {"spaceseparator", "\\p{Zs}"},
      {"spacingmark", "\\p{Mc}"},
      {"symbol", "\\p{S}"},
      {"titlecaseletter", "\\p{Lt}"},
      {"unassigned", "\\p{Cn}"},
      {"uppercaseletter", "\\p{Lu}"},
  };
  return sets;
}

// From Oniguruma's spelling to PCRE2's.
class Translator {
 public:
  Translator(std::string_view pattern, bool (*compiles)(std::string_view))
      : pattern_(pattern), compiles_(compiles) {}

  RegexPattern Run() {
    std::string out = Alternatives();
    if (at_ < pattern_.size()) throw std::invalid_argument("unmatched closing parenthesis");
    return {std::move(out), looks_back_};
  }

 private:
  std::string_view Rest() const { return pattern_.substr(at_); }
  bool Take(std::string_view text) {
    if (!Rest().starts_with(text)) return false;
    at_ += text.size();
    return true;
  }
  [[noreturn]] void Unsupported(const std::string& what, size_t from) const {
    throw std::invalid_argument(what + " at byte " + std::to_string(from) + " is not supported");
  }

  // Up to the parenthesis that closes them.
  std::string Alternatives() {
    std::string out;
    while (at_ < pattern_.size() && pattern_[at_] != ')') {
      if (Take("|")) {
        out += '|';
        continue;
      }
      out += Repeated(Atom());
    }
    return out;
  }

  std::string Repeated(std::string atom) {
    bool again = false;  // A quantifier behind another: of all before it.
    while (at_ < pattern_.size()) {
      const std::optional<std::string> quantifier = Quantifier();
      if (!quantifier) break;
      if (again) atom = "(?:" + atom + ")";
      atom += *quantifier;
      again = true;
    }
    return atom;
  }

  std::optional<std::string> Quantifier() {
    const char c = pattern_[at_];
    if (c == '?' || c == '*' || c == '+') {
      ++at_;
      std::string out(1, c);
      if (Take("?")) return out + "?";
      if (Take("+")) return out + "+";
      return out;
    }
    std::string out = Interval();
    if (out.empty()) return std::nullopt;
    // {n}? and {n,m}+ are two quantifiers.
    if (out.find(',') != std::string::npos && Take("?")) out += '?';
    return out;
  }

  // Empty where there is none. {,m} is {0,m}.
  std::string Interval() {
    const auto digits = [&](size_t& i) {
      const size_t from = i;
      while (i < pattern_.size() && pattern_[i] >= '0' && pattern_[i] <= '9') ++i;
      return std::string(pattern_.substr(from, i - from));
    };
    size_t i = at_;
    if (i >= pattern_.size() || pattern_[i++] != '{') return "";
    std::string least = digits(i), most;
    const bool range = i < pattern_.size() && pattern_[i] == ',';
    if (range) most = digits(++i);
    if (i >= pattern_.size() || pattern_[i] != '}' || (least.empty() && most.empty())) return "";
    if (range && !least.empty() && !most.empty() && std::stod(least) > std::stod(most)) {
      Unsupported(std::string(pattern_.substr(at_, i + 1 - at_)), at_);
    }
    at_ = i + 1;
    if (least.empty()) least = "0";
    return "{" + least + (range ? "," + most : "") + "}";
  }

  std::string Atom() {
    const size_t from = at_;
    const char c = pattern_[at_];
    switch (c) {
      case '\\':
        return Escape();
      case '[':
        ++at_;
        return Class();
      case '(':
        return Group();
      case '^':
        looks_back_ = true;
        break;
      case '$':
        looks_back_ |= in_look_;
        break;
      case '?':
      case '*':
      case '+':
        throw std::invalid_argument(std::string(1, c) + " at byte " + std::to_string(from) +
                                    " has nothing to repeat");
      case '{':
        if (!Interval().empty()) {
          throw std::invalid_argument("{ at byte " + std::to_string(from) +
                                      " has nothing to repeat");
        }
        ++at_;
        return "\\{";
      default:
        break;
    }
    at_ += FirstCodePoint(Rest()).bytes;
    return std::string(pattern_.substr(from, at_ - from));
  }

  std::string Inner(const char* open, bool looks = false) {
    const bool before = std::exchange(in_look_, in_look_ || looks);
    std::string out = open + Alternatives() + ")";
    in_look_ = before;
    if (!Take(")")) throw std::invalid_argument("missing closing parenthesis");
    return out;
  }

  std::string Group() {
    const size_t from = at_++;
    if (Rest().starts_with('*')) Unsupported("(*", from);
    if (!Take("?")) return Inner("(?:");
    if (Take("#")) {
      at_ = pattern_.find(')', at_);
      if (at_ == std::string_view::npos) {
        throw std::invalid_argument("missing closing parenthesis");
      }
      ++at_;
      return "";
    }
    if (Take(":")) return Inner("(?:");
    if (Take(">")) return Inner("(?>");
    if (Take("=")) return Inner("(?=", true);
    if (Take("!")) return Inner("(?!", true);
    for (const char* behind : {"<=", "<!"}) {
      if (!Take(behind)) continue;
      looks_back_ = true;
      return Inner(*(behind + 1) == '=' ? "(?<=" : "(?<!", true);
    }
    if (Take("<") || Take("'")) {  // A name.
      const char close = pattern_[at_ - 1] == '<' ? '>' : '\'';
      const size_t end = pattern_.find(close, at_);
      if (end == std::string_view::npos || end == at_) Unsupported("(?<", from);
      at_ = end + 1;
      return Inner("(?:");
    }
    std::string options;  // m is PCRE2's s.
    while (at_ < pattern_.size() && std::string_view("im-").find(pattern_[at_]) < 3) {
      options += pattern_[at_] == 'm' ? 's' : pattern_[at_];
      ++at_;
    }
    const std::string open = "(?" + options + ":";
    if (!options.empty() && Take(":")) return Inner(open.c_str());
    // Options without a colon hold up to the end of the group, over its alternatives.
    if (!options.empty() && Take(")")) return open + Alternatives() + ")";
    Unsupported(std::string(pattern_.substr(from, at_ + 1 - from)), from);
  }

  // Behind \p or \P; and the name of [:name:].
  Set Property(std::string name, bool negated, const std::string& spelt, size_t from) {
    if (name.starts_with('^')) {
      negated = !negated;
      name.erase(0, 1);
    }
    std::string key;
    for (const char c : name) {
      if (c == ' ' || c == '_' || c == '-') continue;
      key += c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    }
    const bool plain = !key.empty() && std::all_of(key.begin(), key.end(), [](char c) {
      return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9');
    });
    const auto found = NamedSets().find(key);
    if (found != NamedSets().end()) return {found->second, negated};
    // A script's name alone is its extensions, too, to PCRE2.
    for (const char* const kind : {"sc:", ""}) {
      const std::string property = (negated ? "\\P{" : "\\p{") + (kind + key) + "}";
      if (plain && compiles_(property)) return {property};
    }
    Unsupported(spelt, from);
  }

  // A \ and what follows it stand for this: one character, a set, or neither.
  struct Escaped {
    std::optional<uint32_t> character = {};
    std::optional<Set> set = {};
    std::string pattern = {};
  };

  Escaped ReadEscape(bool in_class) {
    const size_t from = at_++;
    if (at_ == pattern_.size()) throw std::invalid_argument("ends in a backslash");
    const CodePoint c = FirstCodePoint(Rest());
    at_ += c.bytes;
    const std::string spelt(pattern_.substr(from, at_ - from));
    const auto unsupported = [&](const std::string& what) {
      Unsupported(what + (in_class ? " in brackets" : ""), from);
    };
    static const std::map<uint32_t, uint32_t> characters = {
        {'t', '\t'}, {'n', '\n'}, {'r', '\r'}, {'f', '\f'}, {'v', '\v'}, {'a', '\a'}, {'e', 0x1b}};
    static const std::map<uint32_t, Set> sets = {
        {'s', {kSpaces}}, {'S', {kSpaces, true}}, {'w', {kWord}},     {'W', {kWord, true}},
        {'h', {kHex}},    {'H', {kHex, true}},    {'d', {"\\p{Nd}"}}, {'D', {"\\P{Nd}"}}};
    if (const auto found = characters.find(c.value); found != characters.end()) {
      return {.character = found->second};
    }
    if (const auto found = sets.find(c.value); found != sets.end()) return {.set = found->second};
    switch (c.value) {
      case 'p':
      case 'P': {
        const size_t close = pattern_.find('}', at_);
        if (!Rest().starts_with('{') || close == std::string_view::npos) break;
        const std::string name(pattern_.substr(at_ + 1, close - at_ - 1));
        at_ = close + 1;
        return {.set = Property(name, c.value == 'P',
                                std::string(pattern_.substr(from, at_ - from)), from)};
      }
      case 'x':
      case 'u': {
        const bool braces = c.value == 'x' && Take("{");
        std::string digits;
        const size_t most = braces ? 8 : c.value == 'x' ? 2 : 4;
        while (at_ < pattern_.size() && digits.size() < most &&
               std::isxdigit(static_cast<unsigned char>(pattern_[at_])) != 0) {
          digits += pattern_[at_++];
        }
        const uint32_t value =
            digits.empty() ? 0 : static_cast<uint32_t>(std::stoul(digits, nullptr, 16));
        const bool whole = braces ? Take("}") : c.value == 'x' || digits.size() == 4;
        // \xe9 is a byte.
        if (digits.empty() || !whole || value > 0x10ffff || (value >= 0xd800 && value < 0xe000) ||
            (c.value == 'x' && !braces && value > 0x7f)) {
          unsupported(std::string(pattern_.substr(from, at_ - from)));
        }
        return {.character = value};
      }
      case 'b':
        if (in_class) return {.character = '\b'};
        looks_back_ = true;
        return {.pattern = Boundary(true)};
      case 'B':
        if (in_class) break;
        looks_back_ = true;
        return {.pattern = Boundary(false)};
      case 'A':
      case 'G':  // Where the search began: at the end of the match before it.
      case 'z':
      case 'Z':
        if (in_class) break;
        looks_back_ |= c.value == 'A' || c.value == 'G' || in_look_;
        return {.pattern = spelt};
      case 'R':
        if (in_class) break;
        return {.pattern = "(?>\\r\\n|[\\n-\\r\\x{85}\\x{2028}\\x{2029}])"};
      case 'N':
      case 'O':
        if (in_class) break;
        return {.pattern = c.value == 'N' ? "[^\\n]" : "(?s:.)"};
      default:
        if (!std::isalnum(static_cast<int>(c.value < 0x80 ? c.value : ' '))) {
          return {.character = c.value};
        }
    }
    unsupported(spelt);
    return {};
  }

  static std::string Boundary(bool at_one) {
    const std::string word = "[" + std::string(kWordOutside) + "]";
    const std::string before = "(?<=" + word + ")", none_before = "(?<!" + word + ")";
    const std::string behind = "(?=" + word + ")", none_behind = "(?!" + word + ")";
    return "(?:" + before + (at_one ? none_behind : behind) + "|" + none_before +
           (at_one ? behind : none_behind) + ")";
  }

  static std::string Literal(uint32_t c) {
    const bool plain = c < 0x80 && std::isalnum(static_cast<int>(c)) != 0;
    if (plain) return {static_cast<char>(c)};
    char text[16];
    std::snprintf(text, sizeof(text), "\\x{%x}", c);
    return text;
  }

  std::string Escape() {
    const Escaped read = ReadEscape(false);
    if (read.character) return Literal(*read.character);
    if (read.set && read.set->items == kWord)
      return Set{kWordOutside, read.set->negated}.Brackets();
    return read.set ? read.set->Brackets() : read.pattern;
  }

  // Behind a [: a pattern of one character.
  std::string Class() {
    const size_t open = at_ - 1;
    const bool negated = Take("^");
    // A bracket at the start is itself for PCRE2 and an error for Oniguruma.
    if (Rest().starts_with(']')) throw std::invalid_argument("empty brackets are not supported");
    std::vector<std::string> all;  // Sets that && stands between.
    std::string items;
    std::vector<std::string> others;
    const auto close = [&] {
      if (!items.empty()) others.insert(others.begin(), "[" + items + "]");
      if (others.empty()) Unsupported("&& beside nothing", open);
      std::string united = others[0];
      for (size_t i = 1; i < others.size(); ++i) united += "|" + others[i];
      all.push_back(others.size() > 1 ? "(?:" + united + ")" : united);
    };
    bool simple = true;
    while (!Take("]")) {
      if (at_ >= pattern_.size()) {
        throw std::invalid_argument("missing terminating ] for character class");
      }
      if (Take("&&")) {
        close();
        items.clear();
        others.clear();
        simple = false;
        continue;
      }
      const ClassItem item = ReadItem();
      const bool range = item.character && Rest().starts_with('-') && at_ + 1 < pattern_.size() &&
                         pattern_[at_ + 1] != ']' && pattern_[at_ + 1] != '[';
      if (item.character) items += Literal(*item.character);
      items += item.items;
      if (!item.other.empty()) others.push_back(item.other);
      simple = simple && item.other.empty();
      if (!range) continue;
      ++at_;
      const ClassItem last = ReadItem();
      if (last.character) {
        if (*last.character < *item.character) {
          throw std::invalid_argument("range out of order in character class");
        }
        items += "-" + Literal(*last.character);
        continue;
      }
      items += "\\-" + last.items;
      if (!last.other.empty()) others.push_back(last.other);
      simple = simple && last.other.empty();
    }
    if (simple) return (negated ? "[^" : "[") + items + "]";
    close();
    std::string out;
    for (size_t i = 0; i + 1 < all.size(); ++i) out += "(?=" + all[i] + ")";
    out = "(?:" + out + all.back() + ")";
    return negated ? "(?:(?!" + out + ")(?s:.))" : out;
  }

  struct ClassItem {
    std::optional<uint32_t> character = {};
    std::string items = {};
    std::string other = {};  // A pattern of one character.
  };
  static ClassItem ItemOf(const Set& set) {
    if (set.negated) return {.other = set.Brackets()};
    return {.items = set.items};
  }
  ClassItem ReadItem() {
    const size_t from = at_;
    if (Rest().starts_with("[:")) {
      const size_t end = pattern_.find(":]", at_ + 2);
      if (end != std::string_view::npos) {
        std::string name(pattern_.substr(at_ + 2, end - at_ - 2));
        if (name.ends_with("punct")) name += "posix";
        at_ = end + 2;
        return ItemOf(Property(name, false, std::string(pattern_.substr(from, at_ - from)), from));
      }
    }
    if (Take("[")) return {.other = Class()};
    if (Rest().starts_with('\\')) {
      Escaped read = ReadEscape(true);
      if (read.set) return ItemOf(*read.set);
      return {.character = read.character};
    }
    const CodePoint c = FirstCodePoint(Rest());
    at_ += c.bytes;
    return {.character = c.value};
  }

  const std::string_view pattern_;
  bool (*const compiles_)(std::string_view);
  size_t at_ = 0;
  bool looks_back_ = false;
  bool in_look_ = false;  // In a lookahead or lookbehind.
};

}  // namespace

RegexPattern TranslateRegex(std::string_view pattern, bool (*compiles)(std::string_view)) {
  return Translator(pattern, compiles).Run();
}

}  // namespace fsdp
