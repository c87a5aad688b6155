#include "trainer/data/tokenizers/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <new>
#include <stdexcept>

#include "trainer/core/errors.h"
#include "trainer/data/tokenizers/regex_pattern.h"
#include "trainer/data/tokenizers/unicode.h"

namespace fsdp {
namespace {

std::string MessageOf(int code) {
  PCRE2_UCHAR text[256];
  pcre2_get_error_message(code, text, sizeof(text));
  return reinterpret_cast<const char*>(text);
}

struct CompileContext {
  CompileContext() : context(pcre2_compile_context_create(nullptr)) {
    if (context == nullptr) throw std::bad_alloc();
    pcre2_set_newline(context, PCRE2_NEWLINE_LF);
  }
  ~CompileContext() { pcre2_compile_context_free(context); }
  pcre2_compile_context* context;
};

pcre2_code* Compile(std::string_view pattern, int& error) {
  // ^ and $ are Oniguruma's: at the ends of lines.
  constexpr uint32_t kOptions = PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C;
  const CompileContext lines;
  PCRE2_SIZE offset = 0;
  return pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(), kOptions,
                       &error, &offset, lines.context);
}

bool Compiles(std::string_view pattern) {
  int error = 0;
  pcre2_code* const code = Compile(pattern, error);
  pcre2_code_free(code);
  return code != nullptr;
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
  std::string buffer;
  if (WellFormed(pattern, buffer).data() != pattern.data()) {
    throw std::invalid_argument("is no UTF-8");
  }
  const RegexPattern translated = TranslateRegex(pattern, Compiles);
  looks_back_ = translated.looks_back;
  int error = 0;
  code_->code = Compile(translated.pattern, error);
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
