#include "trainer/core/json_reader.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <nlohmann/json.hpp>

#include "trainer/core/check.h"
#include "trainer/core/json_text.h"

namespace fsdp {

bool NestsDeeper(std::string_view text, int levels) {
  // '[' and '{' differ in this bit. Few texts have so many that the slow look is needed.
  const auto opening = [](char c) { return (c | 0x20) == '{'; };
  if (std::count_if(text.begin(), text.end(), opening) <= levels) return false;
  int depth = 0;
  bool quoted = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (quoted) {
      if (c == '\\') {
        ++i;
      } else if (c == '"') {
        quoted = false;
      }
    } else if (c == '"') {
      quoted = true;
    } else if (c == '[' || c == '{') {
      if (++depth > levels) return true;
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return false;
}

namespace {

using Json = nlohmann::json;

constexpr int kMaxDepth = 100;

}  // namespace

struct JsonValue::Document {
  std::string path;
  JsonErrors errors;
  Json json;
};

JsonValue ParseJson(std::string_view text, std::string path, const JsonErrors& errors,
                    std::string place) {
  const auto document = std::make_shared<JsonValue::Document>();
  document->path = std::move(path);
  document->errors = errors;
  JsonValue root(document, &document->json, std::move(place));
  if (NestsDeeper(text, kMaxDepth)) {
    root.Refuse("is nested more than " + std::to_string(kMaxDepth) + " deep");
  }
  try {
    document->json = Json::parse(text);
  } catch (const Json::exception&) {
    if (errors.not_json != nullptr) root.Refuse(errors.not_json);
    const JsonFault fault = FaultOfRefused(text);
    std::string& named = root.place_.empty() ? document->path : root.place_;
    const std::string line = std::to_string(fault.line), column = std::to_string(fault.column);
    named += named.empty() ? "line " + line + ", column " + column : ":" + line + ":" + column;
    document->errors.separator = ": ";
    root.Refuse(fault.reason);
  }
  return root;
}

std::optional<JsonValue> TryParseJson(std::string_view text) {
  if (NestsDeeper(text, kMaxDepth)) return std::nullopt;
  const auto document = std::make_shared<JsonValue::Document>();
  document->json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (document->json.is_discarded()) return std::nullopt;
  return JsonValue(document, &document->json, "");
}

JsonValue::JsonValue(std::shared_ptr<const Document> document, const Json* json, std::string place)
    : document_(std::move(document)), json_(json), place_(std::move(place)) {}

void JsonValue::Refuse(const std::string& reason) const {
  const auto& [path, errors, json] = *document_;
  errors.raise((path.empty() ? "" : path + ": ") +
               (place_.empty() ? "" : place_ + errors.separator) + reason);
  FSDP_CHECK(false) << reason;
}

void JsonValue::Refuse(const std::string& key, const std::string& reason) const {
  Named(PlaceOf(key)).Refuse(reason);
}

void JsonValue::RefuseType(const std::string& words) const {
  Refuse((document_->errors.shows_value ? Show() + " " : "") + words);
}

JsonValue JsonValue::Named(std::string place) const { return {document_, json_, std::move(place)}; }

// The document's own members stand for themselves.
std::string JsonValue::PlaceOf(const std::string& key) const {
  return json_ == &document_->json ? key : place_ + "." + key;
}

bool JsonValue::IsNull() const { return json_->is_null(); }
bool JsonValue::IsObject() const { return json_->is_object(); }
bool JsonValue::IsList() const { return json_->is_array(); }
bool JsonValue::IsNumber() const { return json_->is_number(); }
bool JsonValue::IsText() const { return json_->is_string(); }
bool JsonValue::IsText(std::string_view text) const {
  return json_->is_string() && json_->get_ref<const std::string&>() == text;
}

bool JsonValue::IsInteger() const {
  constexpr auto kLimits = std::numeric_limits<int64_t>();
  return IsInteger(kLimits.min(), kLimits.max());
}

// nlohmann's own conversions would take 1.5 or true for the integer 1.
bool JsonValue::IsInteger(int64_t least, int64_t most) const {
  if (!json_->is_number_integer()) return false;
  if (json_->is_number_unsigned() &&
      json_->get<uint64_t>() > uint64_t{std::numeric_limits<int64_t>::max()}) {
    return false;
  }
  const auto value = json_->get<int64_t>();
  return value >= least && value <= most;
}

bool JsonValue::Is(std::string_view json) const { return *json_ == Json::parse(json); }

bool JsonValue::Has(const std::string& key) const {
  return json_->is_object() && json_->contains(key);
}

std::optional<JsonValue> JsonValue::Find(const std::string& key) const {
  if (!json_->is_object()) return std::nullopt;
  const auto it = json_->find(key);
  if (it == json_->end() || it->is_null()) return std::nullopt;
  return JsonValue(document_, &*it, PlaceOf(key));
}

JsonValue JsonValue::At(const std::string& key) const {
  if (!Has(key)) {
    const char* quote = document_->errors.key_quote;
    Refuse(std::string("has no ") + quote + key + quote);
  }
  return {document_, &*json_->find(key), PlaceOf(key)};
}

std::vector<std::pair<std::string, JsonValue>> JsonValue::Members() const {
  if (!json_->is_object()) RefuseType(document_->errors.object);
  std::vector<std::pair<std::string, JsonValue>> members;
  members.reserve(json_->size());
  for (const auto& [key, value] : json_->items()) {
    members.emplace_back(key, JsonValue(document_, &value, PlaceOf(Quote(key))));
  }
  return members;
}

std::vector<JsonValue> JsonValue::Elements() const {
  if (!json_->is_array()) RefuseType(document_->errors.list);
  std::vector<JsonValue> elements;
  elements.reserve(json_->size());
  for (size_t i = 0; i < json_->size(); ++i) {
    elements.push_back({document_, &(*json_)[i], place_ + "[" + std::to_string(i) + "]"});
  }
  return elements;
}

int64_t JsonValue::Integer() const {
  if (!IsInteger()) RefuseType(document_->errors.integer);
  return json_->get<int64_t>();
}

int64_t JsonValue::Integer(int64_t least, int64_t most) const {
  if (!IsInteger(least, most)) {
    RefuseType(document_->errors.integer + (" from " + std::to_string(least)) + " to " +
               std::to_string(most));
  }
  return json_->get<int64_t>();
}

uint64_t JsonValue::Unsigned() const {
  if (!json_->is_number_unsigned()) Refuse("want an unsigned integer of 64 bits");
  return json_->get<uint64_t>();
}

double JsonValue::Number() const {
  if (!json_->is_number()) RefuseType(document_->errors.number);
  return json_->get<double>();
}

bool JsonValue::Boolean() const {
  if (!json_->is_boolean()) RefuseType(document_->errors.boolean);
  return json_->get<bool>();
}

const std::string& JsonValue::Text() const {
  if (!json_->is_string()) RefuseType(document_->errors.text);
  return json_->get_ref<const std::string&>();
}

std::string JsonValue::Dump() const { return json_->dump(); }

std::string JsonValue::Show() const {
  constexpr size_t kShown = 60;
  if (json_->is_object()) return "an object";
  if (json_->is_array()) return "a list";
  const std::string text = json_->dump(-1, ' ', /*ensure_ascii=*/true);
  return text.size() <= kShown ? text : text.substr(0, kShown) + "...";
}

std::string Quote(std::string_view text) {
  constexpr size_t kShown = 100;
  std::string out = "'";
  for (const char c : text.substr(0, kShown)) out += c >= ' ' && c < 0x7f ? c : '?';
  return out + (text.size() > kShown ? "...'" : "'");
}

namespace {

class Adapter final : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit Adapter(JsonEvents& events) : events_(events) {}

  bool null() override { return events_.Null(); }
  bool boolean(bool) override { return events_.Boolean(); }
  bool number_integer(number_integer_t) override { return events_.Negative(); }
  bool number_unsigned(number_unsigned_t value) override { return events_.Unsigned(value); }
  bool number_float(number_float_t, const string_t&) override { return events_.Real(); }
  bool string(string_t& value) override { return events_.Text(value); }
  bool binary(binary_t&) override { return false; }  // JSON has none.
  bool start_object(size_t) override { return events_.BeginObject(); }
  bool key(string_t& key) override { return events_.Key(key); }
  bool end_object() override { return events_.EndObject(); }
  bool start_array(size_t) override { return events_.BeginList(); }
  bool end_array() override { return events_.EndList(); }
  bool parse_error(size_t position, const std::string&,
                   const nlohmann::detail::exception&) override {
    events_.NoJson(position);
    return false;
  }

 private:
  JsonEvents& events_;
};

}  // namespace

bool ReadJson(std::string_view text, JsonEvents& events) {
  Adapter adapter(events);
  return nlohmann::json::sax_parse(text, &adapter);
}

}  // namespace fsdp
