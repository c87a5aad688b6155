// Patterns in Oniguruma's spelling (kkos/oniguruma, doc/RE, its own syntax), in PCRE2's.
// Sets of characters are written out. Options become groups, and brackets that nest or intersect
// become lookaheads.
// Tests: tests/trainer/data/tokenizers/regex_test.cc
#ifndef FSDP_TRAIN_TRAINER_DATA_TOKENIZERS_REGEX_PATTERN_H_
#define FSDP_TRAIN_TRAINER_DATA_TOKENIZERS_REGEX_PATTERN_H_

#include <string>
#include <string_view>

namespace fsdp {

// A Regex is compiled of this.
struct RegexPattern {
  std::string pattern;      // For PCRE2 with UTF, UCP and MULTILINE; a newline is \n.
  bool looks_back = false;  // Regex::looks_back().
};

// `compiles`: whether PCRE2 takes a pattern, asked about names of properties. `pattern` is
// well-formed UTF-8. Throws std::invalid_argument("why"): with the byte of what is not supported.
RegexPattern TranslateRegex(std::string_view pattern, bool (*compiles)(std::string_view));

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_DATA_TOKENIZERS_REGEX_PATTERN_H_
