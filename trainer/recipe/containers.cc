#include "trainer/recipe/containers.h"

#include <algorithm>
#include <map>
#include <set>
#include <string_view>

#include "trainer/recipe/hints.h"

namespace fsdp::recipe {
namespace {

class NullableType final : public ValueType {
 public:
  NullableType(const AnyType& inner, const OptionalOps& ops)
      : inner_(inner), ops_(ops), is_map_(inner->Schema().Contains("properties")) {}

  Json Schema() const override {
    Json schema = inner_->Schema();
    const Json null = Json::Object({{"type", "null"}});
    if (schema.Contains("enum")) {
      schema["enum"].Append(nullptr);
    } else if (schema.Contains("anyOf") && !is_map_) {
      schema["anyOf"].Append(null);
    } else if (is_map_) {
      return AnyOfSchemas({null, schema});
    } else {
      schema["type"] = Json::List({schema["type"], "null"});
    }
    return schema;
  }
  bool Read(const YamlNode& node, const std::string& key, RecipeReader& reader,
            void* value) const override {
    if (node.kind == YamlNode::Kind::kNull) {
      reader.ForgetBelow(key);
      ops_.reset(value);
      return true;
    }
    void* inner = const_cast<void*>(ops_.get(value));
    const bool was_empty = inner == nullptr;
    if (was_empty) inner = ops_.emplace(value);
    const bool good = inner_->Read(node, key, reader, inner);
    // A map with mistakes is kept, so that further mistakes are found.
    if (!good && !is_map_ && was_empty) ops_.reset(value);
    return good;
  }
  Json Write(const void* value) const override {
    const void* inner = ops_.get(value);
    return inner == nullptr ? Json() : inner_->Write(inner);
  }

 private:
  const AnyType inner_;
  const OptionalOps ops_;
  const bool is_map_;
};

class ListType final : public ValueType {
 public:
  ListType(const AnyType& item, std::optional<size_t> size, const ListOps& ops)
      : item_(item), size_(size), ops_(ops) {}

  Json Schema() const override {
    Json schema = Json::Object({{"type", "array"}, {"items", item_->Schema()}});
    for (const char* keyword : {"maxItems", "minItems"}) {
      if (size_) schema[keyword] = *size_;
    }
    return schema;
  }
  bool Read(const YamlNode& node, const std::string& key, RecipeReader& reader,
            void* value) const override {
    if (node.kind != YamlNode::Kind::kList || (size_ && node.items.size() != *size_)) {
      reader.Wrong(node, key, size_ ? "a list of " + std::to_string(*size_) : "a list");
      return false;
    }
    const std::shared_ptr<void> list = ops_.make(node.items.size());
    bool good = true;
    for (size_t i = 0; i < node.items.size(); ++i) {
      good &= item_->Read(*node.items[i], key + "[" + std::to_string(i) + "]", reader,
                          const_cast<void*>(ops_.at(list.get(), i)));
    }
    if (good) ops_.move(value, list.get());
    return good;
  }
  Json Write(const void* value) const override {
    Json list = Json::List();
    for (size_t i = 0; i < ops_.size(value); ++i) list.Append(item_->Write(ops_.at(value, i)));
    return list;
  }

 private:
  const AnyType item_;
  const std::optional<size_t> size_;
  const ListOps ops_;
};

class NamedType final : public ValueType {
 public:
  NamedType(const AnyType& item, const NamedOps& ops) : item_(item), ops_(ops) {}

  Json Schema() const override {
    return Json::Object({{"type", "object"}, {"additionalProperties", item_->Schema()}});
  }
  bool Read(const YamlNode& node, const std::string& key, RecipeReader& reader,
            void* value) const override {
    if (node.kind != YamlNode::Kind::kMap) {
      reader.Wrong(node, key, "a map");
      return false;
    }
    const std::shared_ptr<void> map = ops_.make();
    bool good = true;
    for (const YamlNode::Entry& entry : node.entries) {
      if (entry.key.empty()) {
        reader.Mistake(entry.place, key, "a key is empty");
        good = false;
        continue;
      }
      const std::string name = key + "." + entry.key;
      reader.Saw(name, entry.value->place, entry.value->kind == YamlNode::Kind::kMap);
      good &= item_->Read(*entry.value, name, reader, ops_.add(map.get(), entry.key));
    }
    if (good) ops_.merge(value, map.get());
    return good;
  }
  Json Write(const void* value) const override {
    Json map = Json::Object();
    for (const std::string& name : ops_.names(value)) {
      map[name] = item_->Write(ops_.at(value, name));
    }
    return map;
  }

 private:
  const AnyType item_;
  const NamedOps ops_;
};

class MapType final : public ValueType {
 public:
  MapType(AnySection section, const void* defaults)
      : section_(std::move(section)), defaults_(defaults) {
    for (const AnyField& field : section_.fields) {
      names_.push_back(field.name);
      for (const std::string& alias : field.aliases) aliases_[alias] = field.name;
    }
  }

  Json Schema() const override {
    Json properties = Json::Object(), required = Json::List(), one_required = Json::List();
    for (const AnyField& field : section_.fields) {
      Json property = Json::Object({{"description", field.description}});
      property.Update(field.type->Schema());
      if (field.required) {
        required.Append(field.name);
      } else if (const Json* type = property.Find("type"); type == nullptr || *type != "object") {
        property["default"] = field.type->Write(At(defaults_, field));
      }
      properties[field.name] = std::move(property);
    }
    Json schema = Json::Object(
        {{"type", "object"}, {"additionalProperties", false}, {"properties", properties}});
    if (!required.empty()) schema["required"] = std::move(required);
    for (const std::string& name : section_.one_required) {
      one_required.Append(Json::Object({{"required", Json::List({name})}}));
    }
    if (!one_required.empty()) schema["anyOf"] = std::move(one_required);
    return schema;
  }
  bool Read(const YamlNode& node, const std::string& key, RecipeReader& reader,
            void* object) const override {
    if (section_.before) section_.before(node, object);
    if (node.kind != YamlNode::Kind::kMap) {
      const std::string like = node.kind == YamlNode::Kind::kNull ? "" : Like(node, key, object);
      reader.Wrong(node, key, like.empty() ? "a map" : "a map as in `" + like + "`");
      return false;
    }
    const std::string prefix = key.empty() ? "" : key + ".";
    const size_t before = reader.mistakes().size();
    // In the table's order, not the file's: model.preset goes before the fields it sets.
    std::set<std::string> seen;
    for (const AnyField& field : section_.fields) {
      const YamlNode::Entry* entry = node.Find(field.name);
      if (entry == nullptr) continue;
      seen.insert(field.name);
      ReadField(field, *entry, prefix, reader, object);
    }
    for (const YamlNode::Entry& entry : node.entries) {
      const auto known = std::find(names_.begin(), names_.end(), entry.key);
      if (known != names_.end()) continue;
      const std::string meant = reader.UnknownKey(entry, prefix, names_, aliases_);
      const auto at = std::find(names_.begin(), names_.end(), meant);
      if (at == names_.end()) continue;
      const AnyField& field = section_.fields[static_cast<size_t>(at - names_.begin())];
      // A misspelt section is read as if it were spelt right, and all keys of a section that is
      // no map are missing: so neither hides further mistakes.
      if (!TakesMap(field.type->Schema())) {
        reader.Misspelt(prefix + meant);
      } else if (entry.value->kind == YamlNode::Kind::kMap && seen.insert(meant).second) {
        ReadField(field, entry, prefix, reader, object);
      }
    }
    return reader.mistakes().size() == before;
  }
  Json Write(const void* object) const override {
    Json map = Json::Object();
    for (const AnyField& field : section_.fields) {
      map[field.name] = field.type->Write(At(object, field));
    }
    return map;
  }

 private:
  static bool TakesMap(const Json& schema) {
    const std::vector<Json>& forms = schema.ElementsOf("anyOf");
    return schema.Contains("properties") || std::any_of(forms.begin(), forms.end(), TakesMap);
  }
  // The map that is meant by a node that is none: the first key that takes its value, which for a
  // number is the first of all, otherwise the first that has a default. The object may change,
  // whose recipe is refused.
  std::string Like(const YamlNode& node, const std::string& key, void* object) const {
    const bool is_scalar = node.kind == YamlNode::Kind::kScalar;
    const std::string_view row = is_scalar ? FindPeersScalar(key, node.text) : "";
    if (!row.empty()) return std::string(row);
    const PlainType type = node.plain ? ResolvePlain(node.text) : PlainType::kText;
    const bool is_word = is_scalar && node.text.size() <= 60 && type != PlainType::kBool &&
                         node.text.find_first_of(",:#{}[]\"'\n") == std::string::npos;
    for (const AnyField& field : section_.fields) {
      if (!is_word) break;
      if (type != PlainType::kText && &field != &section_.fields.front()) break;
      RecipeReader scratch({});
      void* const part = field.part ? field.change_part(object) : object;
      if (field.type->Read(node, key, scratch, static_cast<std::byte*>(part) + field.offset)) {
        const bool is_text = !node.plain && ResolvePlain(node.text) != PlainType::kText;
        return "{" + field.name + ": " + (is_text ? "'" + node.text + "'" : node.text) + "}";
      }
    }
    for (const AnyField& field : section_.fields) {
      const Json value = field.type->Write(At(defaults_, field));
      const std::string text = value.IsText() ? value.Text() : value.Dump();
      if (value.IsNull() || text.empty() || text[0] == '{' || text[0] == '[') continue;
      return "{" + field.name + ": " + text + "}";
    }
    return "";
  }
  static void ReadField(const AnyField& field, const YamlNode::Entry& entry,
                        const std::string& prefix, RecipeReader& reader, void* object) {
    const bool is_map = entry.value->kind == YamlNode::Kind::kMap;
    reader.Saw(prefix + field.name, is_map ? entry.place : entry.value->place, is_map);
    void* const part = field.part ? field.change_part(object) : object;
    field.type->Read(*entry.value, prefix + field.name, reader,
                     static_cast<std::byte*>(part) + field.offset);
    if (field.then) field.then(*entry.value, object);
  }
  static const void* At(const void* object, const AnyField& field) {
    const void* const part = field.part ? field.part(object) : object;
    return static_cast<const std::byte*>(part) + field.offset;
  }

  const AnySection section_;
  const void* const defaults_;
  std::vector<std::string> names_;
  std::map<std::string, std::string> aliases_;
};

}  // namespace

AnyType NullableOf(const AnyType& inner, const OptionalOps& ops) {
  return AnyType(std::make_shared<NullableType>(inner, ops));
}
AnyType ListOfSize(const AnyType& item, std::optional<size_t> size, const ListOps& ops) {
  return AnyType(std::make_shared<ListType>(item, size, ops));
}
AnyType NamedOf(const AnyType& item, const NamedOps& ops) {
  return AnyType(std::make_shared<NamedType>(item, ops));
}

AnyField::AnyField(const char* name, const char* description, const AnyType& type, size_t offset)
    : name(name), description(description), type(type), offset(offset) {}
AnyField::AnyField(const AnyField&) = default;
AnyField::~AnyField() = default;

AnyType MapOf(AnySection section, const void* defaults) {
  return AnyType(std::make_shared<MapType>(std::move(section), defaults));
}

}  // namespace fsdp::recipe
