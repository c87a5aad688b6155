#include "tests/testing/hardware_file.h"

#include "tests/testing/json.h"
#include "trainer/recipe/hardware.h"

namespace fsdp::testing {
namespace {

using Json = testing::Json;

void AddNumbers(const Json& schema, const std::string& key, std::vector<HardwareNumber>& numbers) {
  const Json all = schema.contains("anyOf") ? schema["anyOf"] : Json::array({schema});
  for (const Json& one : all) {
    Json type = one.value("type", Json());
    if (type.is_array()) type = type[0];
    if (type == "number" || type == "integer") {
      numbers.push_back({key, one.at("minimum"), one.at("maximum"), type == "integer"});
    }
    const std::string prefix = key.empty() ? "" : key + ".";
    const Json properties = one.value("properties", Json::object());
    for (const auto& [name, inner] : properties.items()) {
      if (name != "sources") AddNumbers(inner, prefix + name, numbers);
    }
    const Json named = one.value("additionalProperties", Json(false));
    for (const char* name : {"adamw", "linear_backward"}) {
      if (named.is_object()) AddNumbers(named, prefix + name, numbers);
    }
  }
}

// The values whose keys begin with `prefix`, as a map without its braces.
std::string Below(const std::map<std::string, std::string>& values, const std::string& prefix) {
  std::string text, last;
  for (const auto& [key, value] : values) {
    if (!key.starts_with(prefix)) continue;
    const size_t dot = key.find('.', prefix.size());
    const std::string name = key.substr(prefix.size(), dot - prefix.size());
    if (name == last) continue;
    last = name;
    text += (text.empty() ? "" : ",") + std::string("\n") + name + ": ";
    text += dot == std::string::npos ? value : "{" + Below(values, prefix + name + ".") + "}";
  }
  return text;
}

}  // namespace

std::vector<HardwareNumber> HardwareNumbers() {
  std::vector<HardwareNumber> numbers;
  AddNumbers(Json::parse(HardwareSchema()), "", numbers);
  return numbers;
}

std::string HardwareYaml(const std::map<std::string, std::string>& values,
                         const std::string& device) {
  std::map<std::string, std::string> sources;
  for (const auto& [key, value] : values) sources[key.substr(0, key.find('.'))] = "'assumed: a'";
  return "{name: a, device: " + device + ", sources: {" + Below(sources, "") + "}," +
         Below(values, "") + "}\n";
}

}  // namespace fsdp::testing
