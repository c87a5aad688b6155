#include "tests/testing/json.h"

#include <algorithm>
#include <ostream>
#include <stdexcept>

#include "trainer/core/json_tree.h"

namespace fsdp::testing {
namespace {

[[noreturn]] void Refuse(const Json& value, const std::string& what) {
  throw std::invalid_argument(value.dump() + " " + what);
}

}  // namespace

struct Json::Trees {
  static Json From(const JsonTree& tree) {
    Json json;
    if (tree.IsBoolean()) return tree.Boolean();
    if (tree.IsReal()) return tree.Number();
    if (tree.IsText()) return tree.Text();
    if (tree.IsInteger()) {
      const std::string digits = tree.DumpScalar();
      return digits[0] == '-' ? Json(std::stoll(digits)) : Json(std::stoull(digits));
    }
    if (tree.IsList()) {
      json.kind_ = Kind::kList;
      for (const JsonTree& element : tree.Elements()) json.elements_.push_back(From(element));
    } else if (tree.IsObject()) {
      json.kind_ = Kind::kObject;
      for (const JsonTree::Member& member : tree.Members()) json[member.key] = From(member.value);
    }
    return json;
  }

  static JsonTree Of(const Json& json) {
    switch (json.kind_) {
      case Kind::kNull:
        return {};
      case Kind::kBoolean:
        return json.integer_ != 0;
      case Kind::kInteger:
        return json.integer_;
      case Kind::kUnsigned:
        return static_cast<uint64_t>(json.integer_);
      case Kind::kReal:
        return json.real_;
      case Kind::kText:
        return json.text_;
      case Kind::kList: {
        JsonTree list = JsonTree::List();
        for (const Json& element : json.elements_) list.Append(Of(element));
        return list;
      }
      case Kind::kObject: {
        JsonTree object = JsonTree::Object();
        json.ForEachMember(
            [&](const std::string& key, const Json& value) { object[key] = Of(value); });
        return object;
      }
    }
    return {};
  }
};

Json::Json(std::initializer_list<Json> elements) {
  const bool pairs = std::all_of(elements.begin(), elements.end(), [](const Json& element) {
    return element.is_array() && element.size() == 2 && element[0].is_string();
  });
  if (!pairs || elements.size() == 0) {
    *this = array(elements);
    return;
  }
  for (const Json& element : elements) (*this)[element[0].text_] = element[1];
}

Json Json::object() {
  Json json;
  json.kind_ = Kind::kObject;
  return json;
}

Json Json::array(std::initializer_list<Json> elements) {
  Json json;
  json.kind_ = Kind::kList;
  json.elements_ = elements;
  return json;
}

Json Json::parse(std::string_view text) {
  std::string why;
  const auto tree = JsonTree::Parse(text, /*most_depth=*/1000, &why);
  if (!tree)
    throw std::invalid_argument("no JSON: " + why + ": " + std::string(text.substr(0, 500)));
  return Trees::From(*tree);
}

const Json& Json::at(size_t i) const {
  if (i >= List().size()) Refuse(*this, "has no element " + std::to_string(i));
  return elements_[i];
}

void Json::push_back(Json element) {
  if (is_null()) kind_ = Kind::kList;
  (void)List();
  elements_.push_back(std::move(element));
}

const Json& Json::at(std::string_view key) const {
  const Json* found = Find(key);
  if (!found) Refuse(*this, "has no " + std::string(key));
  return *found;
}

const Json& Json::operator[](const std::string& key) const {
  static const Json null;
  const Json* found = Find(key);
  return found ? *found : null;
}

Json& Json::operator[](const std::string& key) {
  if (is_null()) kind_ = Kind::kObject;
  if (!is_object()) Refuse(*this, "is no object");
  const auto place = std::lower_bound(keys_.begin(), keys_.end(), key);
  const auto i = place - keys_.begin();
  if (place == keys_.end() || *place != key) {
    keys_.insert(place, key);
    elements_.insert(elements_.begin() + i, Json());
  }
  return elements_[static_cast<size_t>(i)];
}

size_t Json::erase(std::string_view key) {
  const Json* found = Find(key);
  if (!found) return 0;
  const auto i = found - elements_.data();
  keys_.erase(keys_.begin() + i);
  elements_.erase(elements_.begin() + i);
  return 1;
}

std::vector<Json::Item> Json::items() const {
  std::vector<Item> all;
  ForEachMember([&](const std::string& key, const Json& value) { all.push_back({key, value}); });
  return all;
}

std::string Json::dump(int indent) const { return Trees::Of(*this).Dump(indent); }

bool Json::operator==(const Json& other) const {
  if (is_number() && other.is_number()) return (*this <=> other) == 0;
  return kind_ == other.kind_ && integer_ == other.integer_ && text_ == other.text_ &&
         keys_ == other.keys_ && elements_ == other.elements_;
}

std::partial_ordering Json::operator<=>(const Json& other) const {
  if (is_string() && other.is_string()) return text_ <=> other.text_;
  if (!is_number() || !other.is_number()) return std::partial_ordering::unordered;
  if (kind_ == Kind::kReal || other.kind_ == Kind::kReal)
    return get<double>() <=> other.get<double>();
  if (kind_ != other.kind_) return kind_ <=> other.kind_;  // An unsigned one is past an int64_t.
  return kind_ == Kind::kInteger ? integer_ <=> other.integer_
                                 : get<uint64_t>() <=> other.get<uint64_t>();
}

std::ostream& operator<<(std::ostream& out, const Json& value) { return out << value.dump(); }

bool Json::Boolean() const {
  if (!is_boolean()) Refuse(*this, "is no boolean");
  return integer_ != 0;
}

int64_t Json::Integer() const {
  if (!is_number_integer() && !is_boolean()) Refuse(*this, "is no number");
  return integer_;
}

const std::string& Json::Text() const {
  if (!is_string()) Refuse(*this, "is no text");
  return text_;
}

const Json::Elements& Json::List() const {
  if (!is_array()) Refuse(*this, "is no list");
  return elements_;
}

const Json* Json::Find(std::string_view key) const {
  const auto place = std::lower_bound(keys_.begin(), keys_.end(), key);
  return place == keys_.end() || *place != key
             ? nullptr
             : &elements_[static_cast<size_t>(place - keys_.begin())];
}

}  // namespace fsdp::testing
