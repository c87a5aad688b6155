#include "trainer/recipe/print.h"

#include <charconv>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>

#include "models/shape.h"
#include "trainer/recipe/schema.h"
#include "trainer/recipe/yaml_text.h"

namespace fsdp {
namespace {

using recipe::Json;
using recipe::RecipeSchema;
using recipe::WriteRecipe;
using recipe::YamlValue;

bool IsListOfMaps(const Json& value) {
  return value.is_array() && !value.empty() && value[0].is_object();
}

void AddYaml(const Json& map, int indent, std::string& text) {
  for (const auto& [key, value] : map.items()) {
    text += std::string(indent, ' ') + key + ":";
    if (value.is_object()) {
      text += "\n";
      AddYaml(value, indent + 2, text);
    } else if (IsListOfMaps(value)) {
      text += "\n";
      for (const Json& item : value) {
        const size_t begin = text.size();
        AddYaml(item, indent + 4, text);
        text[begin + static_cast<size_t>(indent) + 2] = '-';
      }
    } else {
      text += " " + YamlValue(value) + "\n";
    }
  }
}

void AddFlat(const Json& map, const std::string& prefix,
             std::vector<std::pair<std::string, std::string>>& flat) {
  for (const auto& [key, value] : map.items()) {
    if (value.is_object()) {
      AddFlat(value, prefix + key + ".", flat);
    } else if (IsListOfMaps(value)) {
      for (size_t i = 0; i < value.size(); ++i) {
        AddFlat(value[i], prefix + key + "[" + std::to_string(i) + "].", flat);
      }
    } else {
      flat.emplace_back(prefix + key, YamlValue(value));
    }
  }
}

std::string Code(const std::string& text) { return "`" + text + "`"; }

std::string ShowBound(const Json& at) {
  if (at == std::numeric_limits<int32_t>::max()) return "2^31 - 1";
  if (at == std::numeric_limits<int64_t>::max()) return "2^63 - 1";
  if (at.is_number_integer()) return at.dump();
  char text[32];
  return {text, std::to_chars(text, text + sizeof(text), at.get<double>()).ptr};
}

// The values that a schema allows, in words for a table.
std::string DescribeSchema(const Json& schema) {
  if (schema.contains("enum")) {
    std::string names;
    for (const Json& name : schema["enum"]) {
      names += (names.empty() ? "" : ", ") + Code(YamlValue(name));
    }
    return names;
  }
  if (schema.contains("anyOf")) {
    std::string forms, last;
    for (const Json& form : schema["anyOf"]) {
      const std::string words = DescribeSchema(form);
      if (words == last) continue;
      forms += (forms.empty() ? "" : " or ") + words;
      last = words;
    }
    return forms;
  }
  const Json& type = schema["type"];
  const bool nullable = type.is_array();
  const std::string name = nullable ? type[0].get<std::string>() : type.get<std::string>();
  std::string words = name == "boolean"  ? "`true`, `false`"
                      : name == "string" ? "text"
                      : name == "null"   ? "`null`"
                      : name == "object" ? "map"
                                         : name;
  if (name == "array") {
    words = "list of ";
    if (schema.contains("maxItems")) words += schema["maxItems"].dump() + " x ";
    words += DescribeSchema(schema["items"]) + (schema["items"].contains("properties") ? "s" : "");
  }
  bool bounded = false;
  const auto bound = [&](const char* keyword, const char* sign) {
    if (!schema.contains(keyword)) return;
    const Json& at = schema[keyword];
    // This bound only says that the number is kept in 32 bits.
    if (at == std::numeric_limits<float>::max()) return;
    words += std::string(bounded ? " and " : " ") + sign + " " + ShowBound(at);
    bounded = true;
  };
  bound("minimum", ">=");
  bound("exclusiveMinimum", ">");
  bound("maximum", "<=");
  bound("exclusiveMaximum", "<");
  return words + (nullable ? ", `null`" : "");
}

// `map` without the keys that `listed` has with the same value, default and words.
Json Without(Json map, const Json& listed) {
  for (const auto& [name, property] : listed.items()) {
    const Json& properties = map["properties"];
    if (properties.contains(name) && properties[name] == property) map["properties"].erase(name);
  }
  return map;
}

// A key of data.valid that says the same as data.train's has no row of its own.
void AddRows(const Json& section, const std::string& prefix, std::string& text) {
  Json listed = Json::object();  // Keys of the maps in rows above.
  for (const auto& [name, property] : section["properties"].items()) {
    bool required = false;
    for (const Json& key : section.value("required", Json::array())) required |= key == name;
    const std::string standard = property.contains("default") ? Code(YamlValue(property["default"]))
                                 : required                   ? "required"
                                                              : "";
    text += "| " + Code(prefix + name) + " | " + DescribeSchema(property) + " | " + standard +
            " | " + property["description"].get<std::string>() + " |\n";
    if (property.contains("properties")) AddRows(property, prefix + name + ".", text);
    if (property.contains("items") && property["items"].contains("properties")) {
      AddRows(property["items"], prefix + name + "[].", text);
    }
    for (const Json& form : property.value("anyOf", Json::array())) {
      if (form.contains("properties")) {
        AddRows(Without(form, listed), prefix + name + ".", text);
        listed.update(form["properties"]);
      }
      if (!form.contains("items") || !form["items"].contains("properties")) continue;
      AddRows(Without(form["items"], listed), prefix + name + "[].", text);
    }
  }
}

constexpr char kPrecisions[] = R"(
### Number formats that go together

Every other combination is an error: bf16 and fp16 do not mix, and gradients of fp32 parameters are
fp32.

| `param_dtype` | `grad_dtype` | `reduce_dtype` | `master_dtype` | loss scale |
|---|---|---|---|---|
| `fp32` | `fp32` | `fp32`, `bf16`, `fp16` | `fp32` | with `reduce_dtype: fp16` |
| `bf16` | `fp32`, `bf16` | `fp32`, `bf16` | `fp32`, `bf16` | none |
| `fp16` | `fp32`, `fp16` | `fp32`, `fp16` | `fp32` | yes |

`optimizer.state_dtype` may be `fp32` or `bf16` with each. `buffer_dtype` is always `fp32`.
)";

}  // namespace

std::string PrintRecipe(const Recipe& recipe) {
  std::string text;
  AddYaml(WriteRecipe(recipe), 0, text);
  return text;
}

std::vector<std::pair<std::string, std::string>> FlattenRecipe(const Recipe& recipe) {
  std::vector<std::pair<std::string, std::string>> flat;
  AddFlat(WriteRecipe(recipe), "", flat);
  return flat;
}

std::string RecipeJsonSchema() { return RecipeSchema().dump(2) + "\n"; }

std::string RecipeDocumentation() {
  std::string text = R"(# The recipe

<!-- Written by `fsdp-train config docs > docs/recipe.md`. A test fails when this file is stale. -->

A run is described by one or more YAML files and by `--set KEY=VALUE` on the command line. Only a
model and data to train on are required. This recipe also evaluates and saves:

    run: {name: mine}
    model: {preset: )" +
                     std::string(ModelPresets()[0].name) +
                     R"(}
    data:
      train: {source: text, paths: ["texts/*.txt"], tokenizer: its/tokenizer.json}
      seq_len: 512
    train: {steps: 2000, micro_batch_size: 4, global_batch_size: 32}
    eval: {every: 200}
    schedule: {warmup_steps: 100}
    checkpoint: {every: 200}

This command runs it, with another learning rate:

    fsdp-train --config mine.yaml --set optimizer.lr=6e-4

[training.md](training.md) says how the keys work together.

- A later file overrides an earlier one; `--set` overrides files, a later one an earlier one. Its
  value is YAML. Maps are merged key by key; a list replaces the list before it. A section cannot be
  null. `--set data.train[0].weight=3` sets a key in an existing list; items count from 0.
- An unknown key, a wrong type, a value out of range, a duplicate key or two settings that contradict
  each other is an error with exit code 2. All mistakes are listed at once, one a line, as
  `file:line:column: key: message` or `--set KEY=VALUE: key: message`. After 1,000 mistakes only
  their number is given.
- Values are those of YAML 1.2: `true` and `false` alone are booleans, `3e-4` and `3.0e-4` are
  numbers, `1e3` is not an integer. Text that looks like another type needs quotes (`name: "5"`).
  Anchors and aliases work; merge keys (`<<`), tags and several documents in a file are refused.
- `fsdp-train config check` checks a recipe and opens the weights, tokenizers and data it names.
  `config print` shows the recipe with all values filled in. `config schema` prints a JSON Schema.
  An editor completes and checks a recipe that begins with
  `# yaml-language-server: $schema=recipe.schema.json`, the schema saved under that name.
)";
  for (const auto& [name, section] : RecipeSchema()["properties"].items()) {
    text += "\n## " + name + "\n\n" + section["description"].get<std::string>() +
            "\n\n| key | value | default | |\n|---|---|---|---|\n";
    AddRows(section, name + ".", text);
    if (name == "fsdp") text += kPrecisions;
  }
  return text;
}

}  // namespace fsdp
