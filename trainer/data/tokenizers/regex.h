// Regular expressions of tokenizers, by PCRE2's compiler to machine code. They are written for
// Oniguruma, which Hugging Face's library uses: what both read alike is compiled, with Oniguruma's
// meaning of \s (the property White_Space) and \w; what they read differently is refused.
// Tests: tests/trainer/data/tokenizers/tokenizer_test.cc
#ifndef FSDP_TRAIN_TRAINER_DATA_TOKENIZERS_REGEX_H_
#define FSDP_TRAIN_TRAINER_DATA_TOKENIZERS_REGEX_H_

#include <memory>
#include <string>
#include <string_view>

namespace fsdp {

class Regex {
 public:
  // Throws std::invalid_argument("why") for text that is no regular expression, or not for both.
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

  // Whether matches behind a place depend on the text before it: anchors, \b, lookbehind.
  bool looks_back() const { return looks_back_; }

 private:
  struct Code;
  std::unique_ptr<Code> code_;
  bool looks_back_ = false;
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_DATA_TOKENIZERS_REGEX_H_
