#include "trainer/recipe/print.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdint>
#include <limits>

#include "models/shape.h"
#include "trainer/recipe/schema.h"

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

namespace fsdp {
namespace {

using recipe::Json;
using recipe::RecipeSchema;
using recipe::WriteRecipe;
using recipe::YamlValue;

bool IsListOfMaps(const Json& value) {
  return value.IsList() && !value.empty() && value[0].IsObject();
}

void AddYaml(const Json& map, int indent, std::string& text) {
  for (const auto& [key, value] : map.Members()) {
    text += std::string(indent, ' ') + key + ":";
    if (value.IsObject()) {
      text += "\n";
      AddYaml(value, indent + 2, text);
    } else if (IsListOfMaps(value)) {
      text += "\n";
      for (const Json& item : value.Elements()) {
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
  for (const auto& [key, value] : map.Members()) {
    if (value.IsObject()) {
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
  if (at.IsInteger()) return at.Dump();
  char text[32];
  return {text, std::to_chars(text, text + sizeof(text), at.Number()).ptr};
}

// The values that a schema allows, in words for a table.
std::string DescribeSchema(const Json& schema) {
  if (const Json* values = schema.Find("enum")) {
    std::string names;
    for (const Json& name : values->Elements()) {
      names += (names.empty() ? "" : ", ") + Code(YamlValue(name));
    }
    return names;
  }
  if (const Json* any_of = schema.Find("anyOf")) {
    std::string forms, last;
    for (const Json& form : any_of->Elements()) {
      const std::string words = DescribeSchema(form);
      if (words == last) continue;
      forms += (forms.empty() ? "" : " or ") + words;
      last = words;
    }
    return forms;
  }
  const Json& type = schema["type"];
  const bool nullable = type.IsList();
  const std::string& name = nullable ? type[0].Text() : type.Text();
  std::string words = name == "boolean"  ? "`true`, `false`"
                      : name == "string" ? "text"
                      : name == "null"   ? "`null`"
                      : name == "object" ? "map"
                                         : name;
  if (name == "array") {
    words = "list of ";
    if (const Json* most = schema.Find("maxItems")) words += most->Dump() + " x ";
    words += DescribeSchema(schema["items"]) + (schema["items"].Contains("properties") ? "s" : "");
  }
  bool bounded = false;
  const auto bound = [&](const char* keyword, const char* sign) {
    const Json* const at = schema.Find(keyword);
    // This bound only says that the number is kept in 32 bits.
    if (at == nullptr || *at == std::numeric_limits<float>::max()) return;
    words += std::string(bounded ? " and " : " ") + sign + " " + ShowBound(*at);
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
  for (const auto& [name, property] : listed.Members()) {
    const Json* const same = map["properties"].Find(name);
    if (same != nullptr && *same == property) map["properties"].Erase(name);
  }
  return map;
}

// A key of data.valid that says the same as data.train's has no row of its own.
void AddRows(const Json& section, const std::string& prefix, std::string& text) {
  Json listed = Json::Object();  // Keys of the maps in rows above.
  for (const auto& [name, property] : section["properties"].Members()) {
    bool required = false;
    for (const Json& key : section.ElementsOf("required")) required |= key == name;
    const std::string standard = property.Contains("default") ? Code(YamlValue(property["default"]))
                                 : required                   ? "required"
                                                              : "";
    text += "| " + Code(prefix + name) + " | " + DescribeSchema(property) + " | " + standard +
            " | " + property["description"].Text() + " |\n";
    if (property.Contains("properties")) AddRows(property, prefix + name + ".", text);
    if (property.Contains("items") && property["items"].Contains("properties")) {
      AddRows(property["items"], prefix + name + "[].", text);
    }
    for (const Json& form : property.ElementsOf("anyOf")) {
      if (form.Contains("properties")) {
        AddRows(Without(form, listed), prefix + name + ".", text);
        listed.Update(form["properties"]);
      }
      if (!form.Contains("items") || !form["items"].Contains("properties")) continue;
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

`optimizer.state_dtype` may be `fp32`, `bf16` or `8bit` with each. `buffer_dtype` is always `fp32`.
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

std::string RecipeJsonSchema() { return RecipeSchema().Dump(2) + "\n"; }

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
  their number is given. The key of another trainer (transformers, axolotl, torchtitan, LitGPT,
  DeepSpeed) is answered by ours, or by what serves in its place.
- Values are those of YAML 1.2: `true` and `false` alone are booleans, `3e-4` and `3.0e-4` are
  numbers, `1e3` is not an integer. Text that looks like another type needs quotes (`name: "5"`).
  Anchors and aliases work; merge keys (`<<`), tags and several documents in a file are refused.
- In every path a leading `~` is the home directory, `$HOME` or that of the password file, and
  `~name` another user's. A relative path starts at the working directory.
- `fsdp-train config check` checks a recipe and opens the weights, tokenizers and data it names.
  `config print` shows the recipe with all values filled in. `config schema` prints a JSON Schema.
  An editor completes and checks a recipe that begins with
  `# yaml-language-server: $schema=recipe.schema.json`, the schema saved under that name.
)";
  for (const auto& [name, section] : RecipeSchema()["properties"].Members()) {
    text += "\n## " + name + "\n\n" + section["description"].Text() +
            "\n\n| key | value | default | |\n|---|---|---|---|\n";
    AddRows(section, name + ".", text);
    if (name == "fsdp") text += kPrecisions;
  }
  return text;
}

}  // namespace fsdp
