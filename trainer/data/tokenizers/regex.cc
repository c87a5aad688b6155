#include "trainer/data/tokenizers/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <stdexcept>

#include "trainer/core/errors.h"

namespace fsdp {
namespace {

constexpr std::string_view kSpaces =
    "\\t-\\r "
    "\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}";
constexpr std::string_view kWord = "\\p{L}\\p{M}\\p{Nd}\\p{Pc}";

// From Oniguruma's spelling to PCRE2's.
struct Translation {
  std::string pattern;
  bool looks_back = false;
};

Translation Translate(std::string_view pattern) {
  Translation out;
  bool in_class = false;
  for (size_t i = 0; i < pattern.size(); ++i) {
    const char c = pattern[i];
    const std::string_view rest = pattern.substr(i);
    if (c == '\\') {
      if (++i == pattern.size()) throw std::invalid_argument("ends in a backslash");
      const char escaped = pattern[i];
      const auto unsupported = [&] {
        return std::invalid_argument(std::string("\\") + escaped +
                                     (in_class ? " in brackets" : "") + " is not supported");
      };
      if (escaped == 's' || escaped == 'w') {
        const std::string_view set = escaped == 's' ? kSpaces : kWord;
        out.pattern += in_class ? std::string(set) : "[" + std::string(set) + "]";
      } else if (escaped == 'S' || escaped == 'W') {
        if (in_class) throw unsupported();
        out.pattern += "[^" + std::string(escaped == 'S' ? kSpaces : kWord) + "]";
      } else {
        const bool letter =
            (escaped >= 'a' && escaped <= 'z') || (escaped >= 'A' && escaped <= 'Z');
        const bool digit = escaped >= '0' && escaped <= '9';
        if (digit || (letter &&
                      std::string_view("pPdDrntfxbBAzZ").find(escaped) == std::string_view::npos)) {
          throw unsupported();
        }
        if (in_class && std::string_view("bBAzZ").find(escaped) != std::string_view::npos) {
          throw unsupported();
        }
        out.looks_back |= escaped == 'b' || escaped == 'B' || escaped == 'A';
        out.pattern += {'\\', escaped};
        // The braces of \p{L} and \x{2581} repeat nothing.
        const size_t close = pattern.find('}', i);
        const bool named = std::string_view("pPx").find(escaped) != std::string_view::npos;
        if (named && i + 1 < pattern.size() && pattern[i + 1] == '{' &&
            close != std::string_view::npos) {
          out.pattern += pattern.substr(i + 1, close - i);
          i = close;
        }
      }
      continue;
    }
    if (in_class) {
      if (rest.starts_with("&&")) throw std::invalid_argument("&& in brackets is not supported");
      if (c == '[') throw std::invalid_argument("brackets in brackets are not supported");
      if (c == ']') in_class = false;
    } else if (c == '[') {
      in_class = true;
      // A bracket at the start is itself for PCRE2 and an error for Oniguruma.
      if (rest.starts_with("[]") || rest.starts_with("[^]")) {
        throw std::invalid_argument("empty brackets are not supported");
      }
    } else if (rest.starts_with("}+")) {
      throw std::invalid_argument("{...}+ is not supported");
    } else if (c == '(' && rest.starts_with("(?")) {
      const std::string_view kind = rest.substr(2, 2);
      out.looks_back |= kind == "<=" || kind == "<!";
      const bool known = kind.starts_with(':') || kind.starts_with('=') || kind.starts_with('!') ||
                         kind.starts_with('>') || kind == "<=" || kind == "<!" || kind == "i:";
      if (!known) throw std::invalid_argument("(?" + std::string(kind) + " is not supported");
    } else if (c == '(' && rest.starts_with("(*")) {
      throw std::invalid_argument("(* is not supported");
    } else if (c == '^' || c == '$') {
      throw std::invalid_argument(std::string(1, c) + " is not supported");
    }
    out.pattern += c;
  }
  return out;
}

std::string MessageOf(int code) {
  PCRE2_UCHAR text[256];
  pcre2_get_error_message(code, text, sizeof(text));
  return reinterpret_cast<const char*>(text);
}

}  // namespace

struct Regex::Code {
  ~Code() { pcre2_code_free(code); }
  pcre2_code* code = nullptr;
};

struct Regex::Scratch::Data {
  Data()
      : match(pcre2_match_data_create(1, nullptr)),
        context(pcre2_match_context_create(nullptr)),
        stack(pcre2_jit_stack_create(1 << 15, 1 << 26, nullptr)) {
    if (match == nullptr || context == nullptr) throw std::bad_alloc();
    pcre2_jit_stack_assign(context, nullptr, stack);
  }
  ~Data() {
    pcre2_jit_stack_free(stack);
    pcre2_match_context_free(context);
    pcre2_match_data_free(match);
  }
  pcre2_match_data* match;
  pcre2_match_context* context;
  pcre2_jit_stack* stack;
};

Regex::Scratch::Scratch() : data_(std::make_unique<Data>()) {}
Regex::Scratch::~Scratch() = default;

Regex::Regex(std::string_view pattern) : code_(std::make_unique<Code>()) {
  const Translation translation = Translate(pattern);
  looks_back_ = translation.looks_back;
  int error = 0;
  PCRE2_SIZE offset = 0;
  code_->code = pcre2_compile(
      reinterpret_cast<PCRE2_SPTR>(translation.pattern.data()), translation.pattern.size(),
      PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &error, &offset, nullptr);
  if (code_->code == nullptr) throw std::invalid_argument(MessageOf(error));
  pcre2_jit_compile(code_->code, PCRE2_JIT_COMPLETE);  // Without it, matching is slow, not wrong.
}

Regex::Regex(Regex&&) noexcept = default;
Regex& Regex::operator=(Regex&&) noexcept = default;
Regex::~Regex() = default;

bool Regex::Find(std::string_view text, size_t from, Scratch& scratch, Match& match) const {
  const Scratch::Data& data = *scratch.data_;
  const auto subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  int found = pcre2_match(code_->code, subject, text.size(), from, PCRE2_NO_UTF_CHECK, data.match,
                          data.context);
  if (found == PCRE2_ERROR_JIT_STACKLIMIT) {
    found = pcre2_match(code_->code, subject, text.size(), from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT,
                        data.match, data.context);
  }
  if (found == PCRE2_ERROR_NOMATCH) return false;
  if (found < 0) throw DataError("tokenizer: its pattern gives up: " + MessageOf(found));
  const PCRE2_SIZE* range = pcre2_get_ovector_pointer(data.match);
  match = {range[0], range[1]};
  return true;
}

}  // namespace fsdp
