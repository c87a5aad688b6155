// Regular expressions of tokenizers, by PCRE2's compiler to machine code. They are written for
// Oniguruma, which Hugging Face's library uses, and mean what its manual says (kkos/oniguruma,
// doc/RE): ^ and $ are the ends of lines, \h is a hexadecimal digit, (?m:) lets . be a newline,
// brackets nest and intersect. References to groups, \K, \X, \y, (?x:), absent groups, names of
// blocks and what PCRE2 cannot match (a lookbehind of any length) are refused by name and place.
// Multi-character case folding ((?i:ss) for U+00DF) is left out.
// Tests: tests/trainer/data/tokenizers/regex_test.cc
#ifndef FSDP_TRAIN_TRAINER_DATA_TOKENIZERS_REGEX_H_
#define FSDP_TRAIN_TRAINER_DATA_TOKENIZERS_REGEX_H_

#include <memory>
#include <string>
#include <string_view>

namespace fsdp {

class Regex {
 public:
  // Throws std::invalid_argument("why") for text that is no regular expression, or not supported.
  explicit Regex(std::string_view pattern);
  Regex(Regex&&) noexcept;
  Regex& operator=(Regex&&) noexcept;
  ~Regex();

  // Working memory for one thread at a time; any Regex may use it.
  class Scratch {
   public:
    Scratch();
    ~Scratch();
    Scratch(const Scratch&) = delete;
    Scratch& operator=(const Scratch&) = delete;

   private:
    friend class Regex;
    struct Data;
    std::unique_ptr<Data> data_;
  };

  struct Match {
    size_t begin, end;
  };
  // The first match that begins at or behind `from`, seeing all of `text`, which must be
  // well-formed UTF-8; false where there is none. Throws DataError where PCRE2 gives up.
  bool Find(std::string_view text, size_t from, Scratch& scratch, Match& match) const;

  // Whether matches behind a place depend on the text before it (^, \b, lookbehind), or a part's
  // matches on where the whole ends ($ in a lookahead).
  bool looks_back() const { return looks_back_; }

 private:
  struct Code;
  std::unique_ptr<Code> code_;
  bool looks_back_ = false;
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_DATA_TOKENIZERS_REGEX_H_
