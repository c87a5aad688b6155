#include "trainer/launch/stray_word.h"

#include <cctype>

namespace fsdp {
namespace {

// As a shell takes it for one word.
std::string Quoted(const std::string& word) {
  for (const char c : word) {
    if (!std::isalnum(static_cast<unsigned char>(c)) &&
        std::string("_-./=,+:@%~").find(c) == std::string::npos) {
      return "'" + word + "'";
    }
  }
  return word;
}

}  // namespace

std::string MeantBy(const std::string& word, const std::string& command) {
  if (word.starts_with("-") || word.find('\'') != std::string::npos) return "";
  if (word.ends_with(".yaml") || word.ends_with(".yml")) {
    return "a recipe is named by --config: " + command + " --config " + Quoted(word);
  }
  const size_t equals = word.find('=');
  if (equals == std::string::npos || equals == 0) return "";
  for (const char c : word.substr(0, equals)) {
    if (!std::islower(static_cast<unsigned char>(c)) &&
        !std::isdigit(static_cast<unsigned char>(c)) && c != '_' && c != '.') {
      return "";
    }
  }
  return "a key is set by --set: " + command + " --set " + Quoted(word);
}

}  // namespace fsdp
