#include "trainer/data/jinja/value.h"

#include <algorithm>
#include <cmath>

namespace fsdp::jinja {
namespace {

constexpr size_t kIndexed = 8;  // Entries up to which a dict is looked through.

size_t HashNumber(double number) {
  // An integer has the hash of the float that equals it.
  if (number >= -9.2e18 && number <= 9.2e18 && number == std::floor(number)) {
    return std::hash<int64_t>()(static_cast<int64_t>(number));
  }
  return std::hash<double>()(number);
}

// The extent of a value of extent `whole` that holds one more.
Extent Join(Extent whole, Extent part) {
  const Extent joined{std::max(whole.depth, part.depth + 1), whole.weight + part.weight};
  if (joined.depth > kMostDepth) {
    throw Fault("makes a value that nests more than " + std::to_string(kMostDepth) + " deep");
  }
  if (joined.weight > kMostWeight) {
    throw Fault("makes a value of more than " + std::to_string(kMostWeight) + " parts");
  }
  return joined;
}

bool EqualNumbers(const Value& a, const Value& b) {
  if (a.IsInteger() && b.IsInteger()) return a.integer() == b.integer();
  // 64 bits of mantissa: every int64_t is exact.
  const auto wide = [](const Value& v) {
    return v.IsInteger() ? static_cast<long double>(v.integer())
                         : static_cast<long double>(v.number());
  };
  return wide(a) == wide(b);
}

}  // namespace

void Budget::CheckText(size_t bytes) const {
  if (bytes > text_) {
    throw Fault("makes a text of " + std::to_string(bytes) + " bytes, the most is " +
                std::to_string(text_));
  }
}

void Budget::Text(size_t bytes) {
  CheckText(bytes);
  Charge(1 + static_cast<int64_t>(bytes / 32));
}

void Budget::Exhausted() {
  left_ = -1;
  throw Fault("takes more than " + std::to_string(steps_) + " steps");
}

Extent Around(Extent within) { return Join({0, 0}, within); }

Extent Around(const Values& values) {
  Extent all;
  for (const Value& value : values) all = Join(all, value.extent());
  return all;
}

void Value::SetExtent(Extent extent) {
  depth_ = static_cast<int16_t>(extent.depth);
  weight_ = extent.weight;
}

Value Value::Undefined(std::string why) {
  Value v = Text(std::move(why));
  v.kind_ = Kind::kUndefined;
  return v;
}
Value Value::None() {
  Value v;
  v.kind_ = Kind::kNone;
  return v;
}
Value Value::Bool(bool value) {
  Value v = Int(value ? 1 : 0);
  v.kind_ = Kind::kBool;
  return v;
}
Value Value::Int(int64_t value) {
  Value v;
  v.kind_ = Kind::kInt;
  v.integer_ = value;
  return v;
}
Value Value::Float(double value) {
  Value v;
  v.kind_ = Kind::kFloat;
  v.number_ = value;
  return v;
}
Value Value::Text(std::string text, bool safe) {
  Value v;
  v.kind_ = Kind::kText;
  v.safe_ = safe;
  v.weight_ = static_cast<int32_t>(std::min<size_t>(1 + text.size() / 32, kMostWeight));
  v.shared_ = std::make_shared<std::string>(std::move(text));
  return v;
}
Value Value::List(Values items) {
  Value v;
  v.kind_ = Kind::kList;
  v.SetExtent(Around(items));
  v.shared_ = std::make_shared<Values>(std::move(items));
  return v;
}
Value Value::Tuple(Values items) {
  Value v = List(std::move(items));
  v.kind_ = Kind::kTuple;
  return v;
}
Value Value::Of(Dict dict) {
  Value v;
  v.kind_ = Kind::kDict;
  v.SetExtent(dict.extent());
  v.shared_ = std::make_shared<Dict>(std::move(dict));
  return v;
}
Value Value::Of(std::shared_ptr<Object> object) {
  Value v;
  v.kind_ = Kind::kObject;
  v.SetExtent(Around(object->extent()));
  v.shared_ = std::move(object);
  return v;
}

const Dict& Value::dict() const { return *static_cast<const Dict*>(shared_.get()); }
Object& Value::object() const { return *static_cast<Object*>(shared_.get()); }
std::shared_ptr<Object> Value::shared_object() const {
  return std::static_pointer_cast<Object>(shared_);
}

const Value* Dict::FindHashed(size_t hash, const Value& key) const {
  if (entries_.size() <= kIndexed) {
    for (const auto& [known, value] : entries_) {
      if (Equal(known, key)) return &value;
    }
    return nullptr;
  }
  const auto [begin, end] = by_hash_.equal_range(hash);
  for (auto i = begin; i != end; ++i) {
    if (Equal(entries_[i->second].first, key)) return &entries_[i->second].second;
  }
  return nullptr;
}

const Value* Dict::Find(const Value& key) const { return FindHashed(Hash(key), key); }

const Value* Dict::Find(std::string_view key) const {
  if (entries_.size() > kIndexed) return Find(Value::Text(key));
  for (const auto& [known, value] : entries_) {
    if (known.IsText() && known.text() == key) return &value;
  }
  return nullptr;
}

void Dict::Set(const Value& key, Value value) {
  const size_t hash = Hash(key);
  extent_ = Join(Join(extent_, key.extent()), value.extent());
  if (const Value* old = FindHashed(hash, key)) {
    *const_cast<Value*>(old) = std::move(value);
    return;
  }
  entries_.emplace_back(key, std::move(value));
  if (entries_.size() <= kIndexed) return;
  for (size_t i = by_hash_.empty() ? 0 : entries_.size() - 1; i < entries_.size(); ++i) {
    by_hash_.emplace(Hash(entries_[i].first), static_cast<uint32_t>(i));
  }
}

std::string Object::Repr(Budget& /*budget*/) const {
  throw Fault(std::string("prints a ") + type() + ", which has no text of its own");
}
std::unique_ptr<Cursor> Object::Iterate(const Value& /*self*/, Budget& /*budget*/) {
  return nullptr;
}
Value Object::Attribute(const std::string& /*name*/) { return {}; }
Value Object::Call(Machine& /*machine*/, Arguments& /*arguments*/) {
  throw Fault(std::string("calls a ") + type() + ", which is no function");
}

size_t Hash(const Value& value) {
  switch (value.kind()) {
    case Value::Kind::kBool:
    case Value::Kind::kInt:
      return std::hash<int64_t>()(value.integer());
    case Value::Kind::kFloat:
      return HashNumber(value.number());
    case Value::Kind::kText:
      return std::hash<std::string>()(value.text());
    case Value::Kind::kTuple: {
      size_t hash = 17;
      for (const Value& item : value.items()) hash = hash * 1000003 ^ Hash(item);
      return hash;
    }
    case Value::Kind::kList:
    case Value::Kind::kDict:
      throw Fault(std::string("a ") + TypeName(value) +
                  " cannot be a key, or be looked for among keys");
    case Value::Kind::kObject:
      return std::hash<const void*>()(value.address());
    default:
      return static_cast<size_t>(value.kind());
  }
}

bool Equal(const Value& a, const Value& b) {
  if (a.IsNumber() && b.IsNumber()) return EqualNumbers(a, b);
  if (a.IsUndefined() && b.IsUndefined()) return true;
  if (a.kind() != b.kind()) return false;
  switch (a.kind()) {
    case Value::Kind::kText:
      return a.text() == b.text();
    case Value::Kind::kList:
    case Value::Kind::kTuple:
      return a.address() == b.address() ||
             std::equal(a.items().begin(), a.items().end(), b.items().begin(), b.items().end(),
                        [](const Value& x, const Value& y) { return Same(x, y) || Equal(x, y); });
    case Value::Kind::kDict: {
      if (a.dict().size() != b.dict().size()) return false;
      for (const auto& [key, value] : a.dict().entries()) {
        const Value* other = b.dict().Find(key);
        if (!other || !(Same(value, *other) || Equal(value, *other))) return false;
      }
      return true;
    }
    case Value::Kind::kObject:
      return a.address() == b.address();
    default:
      return true;  // None.
  }
}

bool Same(const Value& a, const Value& b) {
  if (a.kind() != b.kind()) return false;
  if (a.Is(Value::Kind::kInt) || a.Is(Value::Kind::kBool)) return a.integer() == b.integer();
  if (a.IsNone()) return true;
  if (a.IsText() && a.text().empty() && b.text().empty()) return true;
  return a.address() != nullptr && a.address() == b.address();
}

const char* TypeName(const Value& value) {
  switch (value.kind()) {
    case Value::Kind::kMissing:
    case Value::Kind::kUndefined:
      return "Undefined";
    case Value::Kind::kNone:
      return "None";
    case Value::Kind::kBool:
      return "bool";
    case Value::Kind::kInt:
      return "int";
    case Value::Kind::kFloat:
      return "float";
    case Value::Kind::kText:
      return value.safe() ? "Markup" : "str";
    case Value::Kind::kList:
      return "list";
    case Value::Kind::kTuple:
      return "tuple";
    case Value::Kind::kDict:
      return "dict";
    case Value::Kind::kObject:
      return value.object().type();
  }
  return "value";
}

}  // namespace fsdp::jinja
