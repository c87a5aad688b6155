// Tokens of a template, as jinja2/lexer.py makes them with trim_blocks and lstrip_blocks: text
// between tags is one token with its white space already stripped.
// Tests: tests/trainer/data/chat/jinja/jinja_template_test.cc
#ifndef FSDP_TRAIN_TRAINER_DATA_CHAT_JINJA_LEXER_H_
#define FSDP_TRAIN_TRAINER_DATA_CHAT_JINJA_LEXER_H_

#include <string>
#include <string_view>
#include <vector>

#include "trainer/core/errors.h"
#include "trainer/data/chat/jinja/value.h"

namespace fsdp::jinja {

// A template that is refused: "<name>:<line>: <what>".
struct TemplateError : DataError {
  TemplateError(const std::string& name, int line, const std::string& what)
      : DataError(name + ":" + std::to_string(line) + ": " + what) {}
};

struct Token {
  enum class Type {
    kData,
    kBlock,
    kBlockEnd,
    kPrint,
    kPrintEnd,
    kName,
    kConstant,
    kOperator,
    kEnd
  };
  Type type = Type::kEnd;
  int line = 1;
  std::string text = {};  // Data, name, operator.
  Value constant = {};    // A text or a number.

  bool IsName(std::string_view name) const { return type == Type::kName && text == name; }
  bool IsOperator(std::string_view op) const { return type == Type::kOperator && text == op; }
};

// The tokens of a template, one after the other. Each of these throws TemplateError.
class Tokens {
 public:
  Tokens(const std::string& name, std::string_view source);
  const Token& current() const { return all_[at_]; }
  const Token& ahead() const { return all_[at_ + 1 < all_.size() ? at_ + 1 : at_]; }
  Token Take();  // The end stays where it is.
  bool Skip(std::string_view op) { return current().IsOperator(op) && (Take(), true); }
  bool SkipName(std::string_view name) { return current().IsName(name) && (Take(), true); }
  void Expect(std::string_view op);
  void Expect(Token::Type end);
  std::string TakeName();
  [[noreturn]] void Want(const std::string& what) const;
  [[noreturn]] void Refuse(int line, const std::string& what) const;

 private:
  const std::string name_;
  std::vector<Token> all_;
  size_t at_ = 0;
};

}  // namespace fsdp::jinja

#endif  // FSDP_TRAIN_TRAINER_DATA_CHAT_JINJA_LEXER_H_
