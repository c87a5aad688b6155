#include "trainer/core/json_tree.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "trainer/core/check.h"
#include "trainer/core/json_reader.h"
#include "trainer/core/json_text.h"

namespace fsdp {
namespace {

using Library = nlohmann::ordered_json;

JsonTree FromLibrary(const Library& json) {
  switch (json.type()) {
    case Library::value_t::boolean:
      return json.get<bool>();
    case Library::value_t::number_integer:
      return json.get<int64_t>();
    case Library::value_t::number_unsigned:
      return json.get<uint64_t>();
    case Library::value_t::number_float:
      return json.get<double>();
    case Library::value_t::string:
      return json.get_ref<const std::string&>();
    case Library::value_t::array: {
      JsonTree list = JsonTree::List();
      for (const Library& element : json) list.Append(FromLibrary(element));
      return list;
    }
    case Library::value_t::object: {
      JsonTree object = JsonTree::Object();
      for (const auto& [key, value] : json.items()) object[key] = FromLibrary(value);
      return object;
    }
    default:
      return {};
  }
}

std::string DumpText(const std::string& text, JsonTree::IllFormed ill_formed) {
  const bool plain = std::all_of(text.begin(), text.end(), [](char c) {
    return c >= ' ' && c < 0x7f && c != '"' && c != '\\';
  });
  if (plain) return '"' + text + '"';
  const bool refused = ill_formed == JsonTree::IllFormed::kRefused;
  try {
    return Library(text).dump(
        -1, ' ', false,
        refused ? Library::error_handler_t::strict : Library::error_handler_t::replace);
  } catch (const Library::type_error& error) {
    throw NotUtf8(error.what());
  }
}

// `indent` below 0: all in one line. `margin`: of the line that the value begins in.
void Add(const JsonTree& json, int indent, size_t margin, JsonTree::IllFormed ill_formed,
         std::string& out) {
  const size_t inner = margin + static_cast<size_t>(std::max(indent, 0));
  const auto begin_line = [&](size_t spaces) {
    if (indent >= 0) out.append(1, '\n').append(spaces, ' ');
  };
  const auto add_all = [&](const auto& parts, char open, char close, const auto& add) {
    out += open;
    for (const auto& part : parts) {
      if (&part != &parts.front()) out += ',';
      begin_line(inner);
      add(part);
    }
    if (!parts.empty()) begin_line(margin);
    out += close;
  };
  if (json.IsList()) {
    add_all(json.Elements(), '[', ']',
            [&](const JsonTree& element) { Add(element, indent, inner, ill_formed, out); });
  } else if (json.IsObject()) {
    add_all(json.Members(), '{', '}', [&](const JsonTree::Member& member) {
      out.append(DumpText(member.key, ill_formed)).append(indent < 0 ? ":" : ": ");
      Add(member.value, indent, inner, ill_formed, out);
    });
  } else if (json.IsText()) {
    out += DumpText(json.Text(), ill_formed);
  } else {
    out += json.DumpScalar();
  }
}

}  // namespace

JsonTree::JsonTree(Kind kind) : kind_(kind) {}
JsonTree::JsonTree() : JsonTree(Kind::kNull) {}
JsonTree::JsonTree(std::nullptr_t) : JsonTree() {}
JsonTree::JsonTree(const char* text) : JsonTree(std::string(text)) {}
JsonTree::JsonTree(std::string text) : kind_(Kind::kText), text_(std::move(text)) {}
JsonTree::JsonTree(std::string_view text) : JsonTree(std::string(text)) {}
JsonTree::JsonTree(double value) : JsonTree(Kind::kReal) { real_ = value; }
JsonTree::JsonTree(const JsonTree& other) = default;
JsonTree::JsonTree(JsonTree&& other) noexcept = default;
JsonTree& JsonTree::operator=(const JsonTree& other) = default;
JsonTree& JsonTree::operator=(JsonTree&& other) noexcept = default;
JsonTree::~JsonTree() = default;

JsonTree JsonTree::Object(std::initializer_list<Member> members) {
  JsonTree object(Kind::kObject);
  object.members_ = members;
  return object;
}

JsonTree JsonTree::List(std::initializer_list<JsonTree> elements) {
  JsonTree list(Kind::kList);
  list.elements_ = elements;
  return list;
}

std::optional<JsonTree> JsonTree::Parse(std::string_view text, int most_depth, std::string* why) {
  std::string reason;
  if (NestsDeeper(text, most_depth)) {
    reason = "is nested more than " + std::to_string(most_depth) + " deep";
  } else {
    try {
      return FromLibrary(Library::parse(text));
    } catch (const Library::exception&) {
      const JsonFault fault = FaultOfRefused(text);
      reason = "line " + std::to_string(fault.line) + ", column " + std::to_string(fault.column) +
               ": " + fault.reason;
    }
  }
  if (why != nullptr) *why = std::move(reason);
  return std::nullopt;
}

bool JsonTree::Boolean() const {
  FSDP_CHECK(IsBoolean());
  return boolean_;
}

int64_t JsonTree::Integer() const {
  FSDP_CHECK(kind_ == Kind::kInteger);
  return static_cast<int64_t>(bits_);
}

double JsonTree::Number() const {
  FSDP_CHECK(IsNumber());
  if (kind_ == Kind::kReal) return real_;
  return kind_ == Kind::kUnsigned ? static_cast<double>(bits_)
                                  : static_cast<double>(static_cast<int64_t>(bits_));
}

const std::string& JsonTree::Text() const {
  FSDP_CHECK(IsText());
  return text_;
}

size_t JsonTree::size() const {
  FSDP_CHECK(IsList() || IsObject());
  return IsList() ? elements_.size() : members_.size();
}

const std::vector<JsonTree>& JsonTree::Elements() const {
  FSDP_CHECK(IsList());
  return elements_;
}

const JsonTree& JsonTree::operator[](size_t i) const { return Elements().at(i); }

void JsonTree::Append(JsonTree element) {
  FSDP_CHECK(IsList());
  elements_.push_back(std::move(element));
}

const std::vector<JsonTree::Member>& JsonTree::Members() const {
  FSDP_CHECK(IsObject());
  return members_;
}

const JsonTree* JsonTree::Find(std::string_view key) const {
  const auto at = std::find_if(members_.begin(), members_.end(),
                               [&](const Member& member) { return member.key == key; });
  return at == members_.end() ? nullptr : &at->value;
}

const JsonTree& JsonTree::operator[](std::string_view key) const {
  const JsonTree* const value = Find(key);
  FSDP_CHECK(value != nullptr) << key;
  return *value;
}

const std::vector<JsonTree>& JsonTree::ElementsOf(std::string_view key) const {
  static const std::vector<JsonTree> kNone;
  const JsonTree* const list = Find(key);
  return list == nullptr ? kNone : list->Elements();
}

JsonTree& JsonTree::operator[](std::string_view key) {
  if (IsNull()) *this = Object();
  FSDP_CHECK(IsObject()) << key;
  if (const JsonTree* const value = Find(key)) return const_cast<JsonTree&>(*value);
  members_.push_back({std::string(key), JsonTree()});
  return members_.back().value;
}

void JsonTree::Update(const JsonTree& object) {
  for (const auto& [key, value] : object.Members()) (*this)[key] = value;
}

void JsonTree::Erase(std::string_view key) {
  std::erase_if(members_, [&](const Member& member) { return member.key == key; });
}

bool JsonTree::operator==(const JsonTree& other) const {
  if (kind_ != other.kind_) return IsNumber() && other.IsNumber() && Number() == other.Number();
  switch (kind_) {
    case Kind::kNull:
      return true;
    case Kind::kBoolean:
      return boolean_ == other.boolean_;
    case Kind::kInteger:
    case Kind::kUnsigned:
      return bits_ == other.bits_;
    case Kind::kReal:
      return real_ == other.real_;
    case Kind::kText:
      return text_ == other.text_;
    case Kind::kList:
      return elements_ == other.elements_;
    case Kind::kObject:
      return members_ == other.members_;
  }
  return false;
}

std::string JsonTree::Dump(int indent, IllFormed ill_formed) const {
  std::string out;
  Add(*this, indent, 0, ill_formed, out);
  return out;
}

std::string JsonTree::DumpScalar() const {
  switch (kind_) {
    case Kind::kNull:
      return "null";
    case Kind::kBoolean:
      return boolean_ ? "true" : "false";
    case Kind::kInteger:
      return std::to_string(static_cast<int64_t>(bits_));
    case Kind::kUnsigned:
      return std::to_string(bits_);
    case Kind::kReal:
      return Library(real_).dump();
    default:
      FSDP_CHECK(false) << "no scalar";
  }
}

}  // namespace fsdp
