// The schema against the loader: both come from one table, so they must accept the same values.
// Printing is held to reading by random recipes drawn from the schema.
#include "trainer/recipe/schema.h"

#include <gtest/gtest.h>

#include <bit>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>

#include "models/shape.h"
#include "tests/testing/error_of.h"
#include "tests/testing/everything.h"
#include "trainer/core/errors.h"
#include "trainer/core/philox.h"
#include "trainer/recipe/load.h"
#include "trainer/recipe/model_fields.h"
#include "trainer/recipe/print.h"
#include "trainer/recipe/recipe.h"

namespace fsdp {
namespace {

using Json = nlohmann::ordered_json;

// The part of JSON Schema (draft 2020-12) that the schema uses; any other keyword fails the test.
bool Allows(const Json& schema, const Json& value) {
  static const std::set<std::string> kWords = {"$schema", "title",    "description",
                                               "default", "examples", "format"};
  const auto is = [&](const std::string& type) {
    return (type == "null" && value.is_null()) || (type == "boolean" && value.is_boolean()) ||
           (type == "integer" && value.is_number_integer()) ||
           (type == "number" && value.is_number()) || (type == "string" && value.is_string()) ||
           (type == "array" && value.is_array()) || (type == "object" && value.is_object());
  };
  for (const auto& [keyword, want] : schema.items()) {
    bool holds = true;
    if (kWords.count(keyword) > 0) {
    } else if (keyword == "type") {
      holds = want.is_string() ? is(want) : false;
      if (want.is_array()) {
        for (const Json& type : want) holds |= is(type);
      }
    } else if (keyword == "enum") {
      holds = std::find(want.begin(), want.end(), value) != want.end();
    } else if (keyword == "anyOf") {
      holds = false;
      for (const Json& form : want) holds |= Allows(form, value);
    } else if (keyword == "minimum") {
      holds = !value.is_number() || value >= want;
    } else if (keyword == "maximum") {
      holds = !value.is_number() || value <= want;
    } else if (keyword == "exclusiveMinimum") {
      holds = !value.is_number() || value > want;
    } else if (keyword == "exclusiveMaximum") {
      holds = !value.is_number() || value < want;
    } else if (keyword == "minLength") {
      holds = !value.is_string() || value.get_ref<const std::string&>().size() >= want;
    } else if (keyword == "pattern") {
      holds = !value.is_string() ||
              std::regex_search(value.get<std::string>(), std::regex(want.get<std::string>()));
    } else if (keyword == "minItems") {
      holds = !value.is_array() || value.size() >= want;
    } else if (keyword == "maxItems") {
      holds = !value.is_array() || value.size() <= want;
    } else if (keyword == "items") {
      if (value.is_array()) {
        for (const Json& item : value) holds &= Allows(want, item);
      }
    } else if (keyword == "properties") {
      if (value.is_object()) {
        for (const auto& [key, property] : want.items()) {
          if (value.contains(key)) holds &= Allows(property, value[key]);
        }
      }
    } else if (keyword == "required") {
      if (value.is_object()) {
        for (const Json& key : want) holds &= value.contains(key.get<std::string>());
      }
    } else if (keyword == "additionalProperties") {
      EXPECT_EQ(want, false);
      if (value.is_object()) {
        for (const auto& item : value.items()) holds &= schema["properties"].contains(item.key());
      }
    } else {
      ADD_FAILURE() << "no such keyword: " << keyword;
    }
    if (!holds) return false;
  }
  return true;
}

Json Schema() { return Json::parse(RecipeJsonSchema()); }

std::string MistakesOf(const Json& recipe) {
  // JSON is YAML.
  return testing::ErrorOf<ConfigError>([&] { ParseRecipe({{"r", recipe.dump()}}); });
}

Json GoodRecipe() {
  return Json::parse(R"({"model": {"family": "gpt2"}, "data": {"train": {"paths": ["x"]}}})");
}

TEST(Schema, IsWhatEditorsExpect) {
  const Json schema = Schema();
  EXPECT_EQ(schema["$schema"], "https://json-schema.org/draft/2020-12/schema");
  EXPECT_EQ(schema["required"], Json({"model", "data"}));
  EXPECT_EQ(schema["properties"].size(), 10u);
  const Json& optimizer = schema["properties"]["optimizer"];
  EXPECT_EQ(optimizer["additionalProperties"], false);
  EXPECT_EQ(optimizer["properties"]["name"]["enum"], Json({"adamw", "sgd", "muon", "adafactor"}));
  EXPECT_EQ(optimizer["properties"]["name"]["default"], "adamw");
  EXPECT_EQ(optimizer["properties"]["lr"]["default"], 3e-4);
  EXPECT_EQ(schema["properties"]["model"]["anyOf"],
            Json::parse(R"([{"required": ["family"]}, {"required": ["preset"]},
                            {"required": ["init_from"]}])"));
  EXPECT_TRUE(optimizer["properties"]["groups"]["items"]["properties"].contains("lr_scale"));
  // Nothing that this version refuses is listed.
  const std::string text = RecipeJsonSchema();
  const Json& train = schema["properties"]["train"]["properties"];
  EXPECT_EQ(train["activation_offload"]["enum"], Json({"none", "host", "spill"}));
  EXPECT_EQ(text.find("longrope"), std::string::npos);
}

// Calls `visit(path, schema)` for every key, in every form of a map that has several.
template <typename Visit>
void ForEachKey(const Json& schema, const std::vector<std::string>& path, const Visit& visit) {
  for (const Json& form : schema.value("anyOf", Json::array())) ForEachKey(form, path, visit);
  if (!schema.contains("properties")) return;
  for (const auto& [name, property] : schema["properties"].items()) {
    std::vector<std::string> below = path;
    below.push_back(name);
    visit(below, property);
    ForEachKey(property, below, visit);
  }
}

TEST(Schema, EveryKeyIsDescribedAndDefaultsAreAllowed) {
  int keys = 0;
  ForEachKey(Schema(), {}, [&](const auto& path, const Json& property) {
    EXPECT_GT(property.value("description", "").size(), 5u) << path.back();
    if (property.contains("default")) {
      EXPECT_TRUE(Allows(property, property["default"])) << path.back();
    }
    ++keys;
  });
  EXPECT_GT(keys, 80);
  EXPECT_TRUE(Allows(Schema(), GoodRecipe()));
  EXPECT_FALSE(Allows(Schema(), Json::object()));
}

TEST(Schema, AgreesWithTheLoaderOnEveryKey) {
  const Json schema = Schema();
  const std::vector<Json> values = {nullptr,
                                    true,
                                    false,
                                    0,
                                    1,
                                    2,
                                    -1,
                                    70000,
                                    0.5,
                                    -0.5,
                                    1.5,
                                    1e300,
                                    "text",
                                    "",
                                    "auto",
                                    "none",
                                    "sgd",
                                    "fp32",
                                    "gpt2",
                                    "bf16",
                                    Json::array(),
                                    Json({1}),
                                    Json({0.5, 0.5}),
                                    Json({"word"}),
                                    Json::object()};
  int allowed = 0, refused = 0;
  size_t i = 0;
  ForEachKey(schema, {}, [&](const std::vector<std::string>& path, const Json&) {
    for (const Json& value : values) {
      if (testing::OfAnotherPart(i++, 3)) continue;
      Json recipe = GoodRecipe();
      Json* at = &recipe;
      std::string key;
      for (const std::string& name : path) {
        at = &(*at)[name];
        key += (key.empty() ? "" : ".");
        key += name;
      }
      *at = value;
      if (path.back() != "prompt" && key.starts_with("eval.sample.")) {
        recipe["eval"]["sample"]["prompt"] = "x";
      }
      const std::string mistakes = MistakesOf(recipe);
      if (Allows(schema, recipe)) {
        // The rest are rules that join several settings.
        for (const char* words : {"want ", "unknown key", "not in this version", "required"}) {
          EXPECT_EQ(mistakes.find(words), std::string::npos)
              << key << ": " << value << ": " << mistakes;
        }
        ++allowed;
      } else {
        EXPECT_NE(mistakes.find(key), std::string::npos) << key << ": " << value;
        ++refused;
      }
    }
  });
  EXPECT_GT(allowed, 100);
  EXPECT_GT(refused, 400);
}

// A random value that `schema` allows.
Json Draw(const Json& schema, const RandomStream& random, uint64_t& n) {
  if (schema.contains("enum")) {
    return schema["enum"][random.Below(n++, schema["enum"].size())];
  }
  if (schema.contains("anyOf") && !schema.contains("properties")) {
    return Draw(schema["anyOf"][random.Below(n++, schema["anyOf"].size())], random, n);
  }
  std::string type;
  if (schema["type"].is_array()) {
    if (random.Below(n++, 3) == 0) return nullptr;
    type = schema["type"][0];
  } else {
    type = schema["type"];
  }
  if (type == "null") return nullptr;
  if (type == "boolean") return random.Below(n++, 2) == 1;
  if (type == "integer") {
    const int64_t low = schema["minimum"], high = schema["maximum"];
    const uint64_t span = static_cast<uint64_t>(high) - static_cast<uint64_t>(low) + 1;
    const uint64_t below = random.Below(n++, 2) ? span : std::min<uint64_t>(span, 20);
    return low + static_cast<int64_t>(random.Below(n++, below));
  }
  if (type == "number") {
    const double low = schema.value("minimum", schema.value("exclusiveMinimum", 0.0));
    const double high = schema.value("maximum", schema.value("exclusiveMaximum", 1e300));
    while (true) {
      // Every exponent and every last digit.
      const uint64_t bits = random.Below(n++, uint64_t{0x7ff} << 52);
      const double value = random.Below(n++, 2) ? std::bit_cast<double>(bits)
                                                : low + (high - low) * random.Uniform(n++);
      if (value >= low && value <= high && Allows(schema, value)) return value;
    }
  }
  if (schema.contains("examples")) {
    return schema["examples"][random.Below(n++, schema["examples"].size())];
  }
  if (type == "string") {
    static const std::vector<std::string> kPieces = {"a",
                                                     "Z",
                                                     "0",
                                                     "7",
                                                     ".",
                                                     "-",
                                                     "_",
                                                     "/",
                                                     ":",
                                                     " ",
                                                     ": ",
                                                     "# ",
                                                     "'",
                                                     "\"",
                                                     "\\",
                                                     "\n",
                                                     "\t",
                                                     "{",
                                                     "]",
                                                     ",",
                                                     "null",
                                                     "no",
                                                     "~",
                                                     "true",
                                                     "1e3",
                                                     "\xc3\xa9",
                                                     "\x01",
                                                     "\x7f",
                                                     "\xe2\x80\xa8",
                                                     "*",
                                                     "&",
                                                     "!",
                                                     "%",
                                                     "@",
                                                     "`",
                                                     "|",
                                                     ">",
                                                     "?",
                                                     "- ",
                                                     "=",
                                                     "\r",
                                                     "<<",
                                                     "..",
                                                     "---",
                                                     "\xef\xbb\xbf"};
    std::string text;
    do {
      text += kPieces[random.Below(n++, kPieces.size())];
    } while (random.Below(n++, 4) > 0);
    // `~` stands for another path.
    if (schema.contains("format") && text.starts_with("~")) text.insert(0, "./");
    // The one pattern that there is.
    return schema.contains("pattern") ? text + (random.Below(n++, 2) ? ".json" : ".model") : text;
  }
  if (type == "array") {
    Json list = Json::array();
    const uint64_t least = schema.value("minItems", 0);
    const uint64_t size = schema.contains("maxItems") ? least : least + random.Below(n++, 4);
    for (uint64_t i = 0; i < size; ++i) list.push_back(Draw(schema["items"], random, n));
    return list;
  }
  Json map = Json::object();
  for (const auto& [key, property] : schema["properties"].items()) {
    map[key] = Draw(property, random, n);
  }
  return map;
}

// Makes a random recipe one without contradictions.
void Reconcile(Json& recipe) {
  auto& model = recipe["model"];
  if (model["family"].is_null() && model["init_from"].is_null()) model["family"] = "gpt2";
  // Any field of any family or scaling may be wrong: most are drawn with a GPT-2.
  const bool llama = model["family"] == "llama";
  if (!llama && !model["family"].is_null()) model["family"] = "gpt2";
  const ModelFamily& family = *FindFamily(llama ? "llama" : "gpt2");
  for (const recipe::ModelField& of : recipe::ModelFields()) {
    const std::string& name = of.field.name;
    const bool has = family.Find(name) != nullptr;
    if (!of.field.is_dropout) {
      if (!has) model[name] = nullptr;
    } else if (!has || (model[name].is_null() && model["init_from"].is_null())) {
      model[name] = 0.0;  // Only files can leave it open.
    }
  }
  if (llama) {
    model["num_key_value_heads"] = 1;
    model["head_dim"] = 64;
    Json& scaling = model["rope_scaling"];
    if (scaling.is_object()) {
      for (auto& item : scaling.items()) item.value() = nullptr;
      scaling.update(Json{{"type", "yarn"},
                          {"factor", 1.5},
                          {"original_max_position_embeddings", 7},
                          {"truncate", false}});
    }
  }
  // Heads of 1, 64 or those of the preset.
  model["num_attention_heads"] = llama                            ? Json(1)
                                 : model["hidden_size"].is_null() ? Json(12)
                                                                  : model["hidden_size"];
  if (!model["preset"].is_null()) model["preset"] = llama ? "llama2-7b" : "gpt2-124m";
  model["vocab_size"] = 300;
  model["vocab_multiple"] = model["vocab_multiple"].get<int64_t>() % 2 == 0 ? 25 : 60;
  model["max_position_embeddings"] = recipe["data"]["seq_len"];
  if (model["init_from"].is_null()) model["lora"] = model["base"] = nullptr;
  if (model["lora"].is_object()) {
    Json& lora = model["lora"];
    if (lora["base"] == "none") {
      lora["base_exclude"] = Json::array();
      if (lora["rank"] == 0) lora["rank"] = 1;
    }
    if (lora["rank"] == 0) lora["full"] = Json::array();
    if (lora["rank"] == 0 || lora["targets"].empty()) lora["targets"] = {"*"};
  }
  // One for all sources: that of the first one drawn.
  const Json& drawn = recipe["data"]["train"];
  const Json tokenizer = (drawn.is_array() ? drawn[0] : drawn)["tokenizer"];
  bool text = false;
  int names = 0;
  Json& data = recipe["data"];
  const auto is_whole = [](const Json& source) {
    return source.is_object() &&
           (source.value("source", "") == "chat" || source.value("source", "") == "pairs");
  };
  for (const char* part : {"train", "valid"}) {
    const Json& sources = data[part];
    const bool any = sources.is_array() ? std::any_of(sources.begin(), sources.end(), is_whole)
                                        : is_whole(sources);
    if (any && data["packing"] == "windows") data["packing"] = "samples";
  }
  data.update(Json{{"objective", "causal"},  // None of these models has an encoder.
                   {"target_len", nullptr},
                   {"noise_density", 0.15},
                   {"mean_span", 3.0}});
  Json& wrap = recipe["fsdp"]["auto_wrap"];
  // Nor is one split into branches, or has experts.
  if (wrap["policy"] == "branch" || wrap["policy"] == "experts") wrap["policy"] = "size";
  wrap["expert_pieces"] = 1;
  const bool windows = data["packing"] == "windows";
  if (windows) data["too_long"] = "error";
  if (!windows) data["documents"] = false;
  if (!windows || data["documents"] == true) recipe["train"]["attention"] = "flash";
  const auto fit = [&](Json& source) {
    if (!source.is_object() || !source.contains("paths")) return;
    if (source["source"] == "synthetic") source["paths"] = Json::array();
    if (source["source"] != "synthetic" && source["paths"].empty()) source["paths"] = {"no"};
    if (source["source"] != "tokens") source["dtype"] = nullptr;
    source["tokenizer"] = tokenizer;
    if (source.contains("weight") && source["weight"] < 1e-3) source["weight"] = 1.5;
    if (!source["eot"].is_null() || data["documents"] == true || !windows) source["eot"] = 7;
    if (source["source"] == "chat") {
      source["eot"] = nullptr;
      if (!source["date"].is_null()) source["date"] = "2024-02-29";
    } else {
      source["template"] = source["date"] = nullptr;
      source["train_on"] = "assistant";
    }
    // These models are fed tokens.
    if (source["source"] == "images" || source["source"] == "clicks") source["source"] = "text";
    source["label"] = "label";
    source["dense"] = source["categorical"] = Json::array();
    source["planted"] = nullptr;
    source["labels"] = Json::array();
    source["size"] = nullptr;
    source["crop"] = "none";
    source["flip"] = false;
    source["mean"] = source["std"] = {0.5};
    if (source["source"] != "pairs") {
      source["prompt"] = "prompt";
      source["completion"] = "completion";
    }
    if (source.contains("name")) {
      source["name"] = source["name"].get<std::string>() + std::to_string(names++);
    }
  };
  for (const char* part : {"train", "valid"}) {
    Json& sources = recipe["data"][part];
    if (sources.is_array()) {
      for (Json& source : sources) fit(source);
    } else {
      fit(sources);
    }
  }
  const Json& train = recipe["data"]["train"];
  for (const Json& source : train.is_array() ? train : Json::array({train})) {
    text |= source["source"] == "text" || is_whole(source) ||
            (source["source"] == "tokens" && tokenizer != "bytes");
  }
  if (!text) recipe["eval"]["sample"] = nullptr;
  if (recipe["train"]["micro_batch_size"] > 1000) recipe["train"]["micro_batch_size"] = 1000;
  if (recipe["optimizer"]["eps"] < 1e-37) recipe["optimizer"]["eps"] = 1e-37;
  if (recipe["data"]["valid"].is_null()) recipe["eval"]["every"] = 0;
  if (recipe["train"]["ema"].is_null()) recipe["eval"]["ema"] = false;
  Json& steps = recipe["train"]["steps"];
  if (!steps.is_null()) recipe["train"]["epochs"] = nullptr;
  if (steps.is_null() && recipe["train"]["epochs"].is_null()) steps = 7;
  if (recipe["eval"]["every"] == 0) recipe["eval"]["stop_after"] = nullptr;
  if (recipe["eval"]["every"] == 0 || recipe["checkpoint"]["keep_last"] == 0) {
    recipe["checkpoint"]["keep_best"] = 0;
  }
  recipe["optimizer"]["muon"]["ns_coefficients"] = {3.5, -4.75, 2.0};
  recipe["optimizer"]["adafactor"]["eps"] = {0.25, 0.5};
  Json& optimizer = recipe["optimizer"];
  if (optimizer["name"] != "sgd") optimizer["momentum"] = 0.0;
  const auto without_codes = [&](Json& with_state) {
    Json& state = with_state["state_dtype"];
    if ((optimizer["name"] == "sgd" || optimizer["name"] == "adafactor") && state == "8bit") {
      state = "bf16";
    }
    if (optimizer["name"] == "adafactor" && state == "bf16") state = "fp32";
    if (with_state.value("frozen", false)) state = nullptr;
  };
  without_codes(optimizer);
  for (Json& group : optimizer["groups"]) without_codes(group);
  Json& fsdp = recipe["fsdp"];
  Json& mixed = fsdp["mixed_precision"];
  if (recipe["run"]["deterministic"]) mixed["sum"] = "exact";
  for (const char* other : {"grad_dtype", "reduce_dtype", "master_dtype"}) {
    mixed[other] = mixed["param_dtype"] == "bf16" && mixed[other] == "bf16" ? "bf16" : "fp32";
  }
  mixed["scaler"].update(Json{{"init_scale", 3.5}, {"min_scale", 0.25}});
  mixed["scaler"]["backoff_factor"] = 0.5;
  Json& offload = fsdp["cpu_offload"];
  if (optimizer["name"] == "muon" || optimizer["name"] == "adafactor") {
    offload["optimizer"] = false;
  }
  if (fsdp["buffers"] == "caching") {
    offload["optimizer"] = false;
    recipe["train"]["activation_offload"] = "none";
  }
  if (offload["optimizer"] == false)
    offload.update(Json{{"params", false}, {"optimizer_share", 0}, {"spill", nullptr}});
  if (offload["spill"].is_null() && recipe["train"]["activation_offload"] == "spill") {
    recipe["train"]["activation_offload"] = "host";
  }
  recipe["train"]["router"].update(  // The model has no experts.
      Json{{"aux_loss", 0}, {"aux_scope", "sequence"}, {"z_loss", 0}, {"bias_rate", nullptr}});
  if (fsdp["sharding_strategy"] == "no_shard") fsdp["shard_size"] = nullptr;
  if (fsdp["buffers"] == "caching") {
    fsdp["limiter"] = "host";
  } else {
    fsdp["concat_gradients"] = false;
  }
  const Json& resume = recipe["checkpoint"]["resume"];
  if (!recipe["checkpoint"]["every"].is_null() ||
      !recipe["checkpoint"]["every_minutes"].is_null() || (resume != "auto" && resume != "none")) {
    fsdp["fake_all_gather"] = fsdp["fake_reduce"] = false;
  }
  if (fsdp["sharding_strategy"] != "full_shard" && fsdp["sharding_strategy"] != "hybrid_shard") {
    fsdp["reshard_after_forward"] = nullptr;
  }
  if (fsdp["sharding_strategy"] == "no_shard") {
    fsdp["quantize"]["gather"] = fsdp["quantize"]["reduce"] = "none";
  }
  if (fsdp["mixed_precision"]["reduce_dtype"] != "fp32") fsdp["quantize"]["reduce"] = "none";
  recipe["model"]["sliding_window"] = nullptr;  // Or sequences are no longer.
  recipe["schedule"]["warmup_steps"] = 1;
  Json& decay_steps = recipe["schedule"]["decay_steps"];
  if (recipe["schedule"]["name"] != "wsd" || (!steps.is_null() && decay_steps >= steps)) {
    decay_steps = nullptr;
  }
  std::string& name = recipe["run"]["name"].get_ref<std::string&>();
  std::replace(name.begin(), name.end(), '/', '_');
  name += "x";
}

// The list that a text for `paths` stands for.
void SpellOutPaths(Json& value) {
  for (auto& [key, inner] : value.items()) {
    if (key == "paths" && inner.is_string()) inner = Json::array({inner});
    if (inner.is_structured()) SpellOutPaths(inner);
  }
}

TEST(Print, ReadsBackToTheSameRecipe) {
  const Json schema = Schema();
  const RandomStream random(20231, "recipes");
  uint64_t n = 0;
  for (int i = 0; i < 150; ++i) {
    Json drawn = Draw(schema, random, n);
    Reconcile(drawn);
    SCOPED_TRACE(drawn.dump());
    Recipe recipe;
    ASSERT_NO_THROW(recipe = ParseRecipe({{"drawn", drawn.dump()}})) << MistakesOf(drawn);
    // The recipe drawn is the recipe read ...
    SpellOutPaths(drawn);
    Json written = Json::parse(recipe::WriteRecipe(recipe).Dump());
    Json& limit = drawn["run"]["memory_limit"];
    if (limit.is_string()) limit = written["run"]["memory_limit"];  // In bytes.
    Json& time = drawn["run"]["max_time"];
    if (time.is_string()) time = written["run"]["max_time"];  // In seconds.
    for (const auto& [key, value] : drawn["model"].items()) {
      if (value.is_null()) written["model"][key] = nullptr;  // Filled in.
    }
    ASSERT_EQ(written, drawn);
    // ... and printing loses nothing.
    const std::string text = PrintRecipe(recipe);
    ASSERT_EQ(ParseRecipe({{"printed", text}}), recipe) << text;
    ASSERT_EQ(PrintRecipe(ParseRecipe({{"printed", text}})), text);
  }
}

TEST(Print, IsPlainYaml) {
  const Recipe recipe =
      ParseRecipe({{"r", GoodRecipe().dump()}},
                  {"optimizer.eps=1e-8", "run.name='no'", "data.train.paths=[a b, c.txt, '7']"});
  const std::string text = PrintRecipe(recipe);
  for (const char* line : {"\nmodel:\n  family: gpt2\n", "  eps: 1.0e-8\n", "  name: \"no\"\n",
                           "    paths: [\"a b\", c.txt, \"7\"]\n", "  betas: [0.9, 0.95]\n",
                           "  grad_clip: 1.0\n", "  lr: 3.0e-4\n", "  sample: null\n"}) {
    EXPECT_NE(text.find(line), std::string::npos) << line << text;
  }
  EXPECT_EQ(text.substr(0, 16), "run:\n  name: \"no");
}

// == must see every key: two recipes that print differently differ.
TEST(Recipe, EqualityIsThatOfThePrintedText) {
  const Json schema = Schema();
  const RandomStream random(5, "equality");
  uint64_t n = 0;
  Json drawn = Draw(schema, random, n);
  Reconcile(drawn);
  const Recipe before = ParseRecipe({{"r", drawn.dump()}});
  int changed = 0;
  for (int i = 0; i < 200; ++i) {
    Json other = Draw(schema, random, n);
    // One section of another recipe.
    const auto& sections = schema["properties"];
    std::vector<std::string> names;
    for (const auto& item : sections.items()) names.push_back(item.key());
    const std::string name = names[random.Below(n++, names.size())];
    Json mixed = drawn;
    mixed[name] = other[name];
    Reconcile(mixed);
    const Recipe now = ParseRecipe({{"r", mixed.dump()}});
    EXPECT_EQ(now == before, PrintRecipe(now) == PrintRecipe(before)) << name;
    changed += now == before ? 0 : 1;
  }
  EXPECT_GT(changed, 160);
}

}  // namespace
}  // namespace fsdp
