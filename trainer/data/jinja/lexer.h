// Tokens of a template, as jinja2/lexer.py makes them with trim_blocks and lstrip_blocks: text
// between tags is one token with its white space already stripped.
// Tests: tests/trainer/data/jinja/jinja_template_test.cc
#ifndef FSDP_TRAIN_TRAINER_DATA_JINJA_LEXER_H_
#define FSDP_TRAIN_TRAINER_DATA_JINJA_LEXER_H_

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "trainer/core/errors.h"

namespace fsdp::jinja {

// A template that is refused: "<name>:<line>: <what>".
struct TemplateError : DataError {
  TemplateError(const std::string& name, int line, const std::string& what)
      : DataError(name + ":" + std::to_string(line) + ": " + what) {}
};

struct Token {
  enum class Type : uint8_t {
    kData,
    kBlockBegin,
    kBlockEnd,
    kVariableBegin,
    kVariableEnd,
    kName,
    kText,
    kInteger,
    kFloat,
    kOperator,
    kEnd
  };
  Type type = Type::kEnd;
  int line = 1;
  std::string text = {};  // Data, name, unescaped text, operator.
  int64_t integer = 0;
  double number = 0;

  bool IsName(std::string_view name) const { return type == Type::kName && text == name; }
  bool IsOperator(std::string_view op) const { return type == Type::kOperator && text == op; }
};

// Ends with one kEnd. Throws TemplateError.
std::vector<Token> Tokenize(const std::string& name, std::string_view source);

}  // namespace fsdp::jinja

#endif  // FSDP_TRAIN_TRAINER_DATA_JINJA_LEXER_H_
