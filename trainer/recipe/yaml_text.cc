#include "trainer/recipe/yaml_text.h"

#include <algorithm>
#include <cctype>
#include <charconv>

#include "trainer/recipe/yaml_tree.h"

namespace fsdp::recipe {
namespace {

// Shortest digits that read back to the same bits, in a form that YAML 1.1 readers take for a
// number too: with a point, and a sign before an exponent. 3.0e-4, where to_chars says 3e-04.
std::string YamlNumber(double value) {
  char buffer[32];
  std::string text(buffer, std::to_chars(buffer, buffer + sizeof(buffer), value).ptr);
  const size_t e = std::min(text.find('e'), text.size());
  std::string digits = text.substr(0, e), exponent = text.substr(e);
  if (digits.find('.') == std::string::npos) digits += ".0";
  if (exponent.size() == 4 && exponent[2] == '0') exponent.erase(2, 1);
  return digits + exponent;
}

std::string YamlText(const std::string& text) {
  bool plain = std::isalpha(static_cast<unsigned char>(text[0])) || text[0] == '/';
  for (const char c : text) {
    plain &=
        std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '/' || c == '.' || c == '-';
  }
  // The words that YAML 1.1 takes for booleans too.
  for (const char* word : {"y", "Y", "yes", "Yes", "YES", "n", "N", "no", "No", "NO", "on", "On",
                           "ON", "off", "Off", "OFF"}) {
    plain &= text != word;
  }
  plain &= ResolvePlain(text) == PlainType::kText;
  // In double quotes YAML reads what JSON reads.
  return plain ? text : Json(text).Dump();
}

}  // namespace

std::string YamlValue(const Json& value) {
  if (value.IsReal()) return YamlNumber(value.Number());
  if (value.IsText()) return YamlText(value.Text());
  if (value.IsList()) {
    std::string list;
    for (const Json& item : value.Elements()) list += (list.empty() ? "" : ", ") + YamlValue(item);
    return "[" + list + "]";
  }
  if (value.IsObject()) {
    std::string map;
    for (const auto& [key, item] : value.Members()) {
      map += (map.empty() ? "" : ", ") + key + ": " + YamlValue(item);
    }
    return "{" + map + "}";
  }
  return value.DumpScalar();  // null, true, false, integers.
}

}  // namespace fsdp::recipe
