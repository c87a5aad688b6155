// Values of a template, as Python has them: immutable, cheap to copy. Python's operators on them.
// Tests: tests/trainer/data/chat/jinja/jinja_template_test.cc
#ifndef FSDP_TRAIN_TRAINER_DATA_CHAT_JINJA_VALUE_H_
#define FSDP_TRAIN_TRAINER_DATA_CHAT_JINJA_VALUE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "trainer/data/chat/jinja/budget.h"

namespace fsdp::jinja {

// How deeply values nest at most: no walk over one exhausts a stack.
inline constexpr int kMostDepth = 200;

class Dict;
class Object;
class Value;
using Values = std::vector<Value>;

class Value {
 public:
  enum class Kind : uint8_t {
    kMissing,  // No value: an argument that is not given, an attribute that is not there.
    kUndefined,
    kNone,
    kBool,
    kInt,
    kFloat,
    kText,
    kList,
    kTuple,
    kDict,
    kObject
  };
  Value() = default;
  static Value Undefined(std::string why) { return {Kind::kUndefined, std::move(why)}; }
  static Value None() { return {Kind::kNone, 0}; }
  static Value Bool(bool value) { return {Kind::kBool, value ? 1 : 0}; }
  static Value Int(int64_t value) { return {Kind::kInt, value}; }
  static Value Float(double value);
  static Value Text(std::string_view text) { return {Kind::kText, std::string(text)}; }
  static Value Text(std::string text, bool safe = false);
  static Value Text(const char* text) { return Text(std::string(text)); }
  static Value List(Values items);  // Throws Fault where values nest too deeply, as the next three.
  static Value Tuple(Values items);
  // A list whose first items are known and whose end is not. Looking at its end throws Observed.
  static Value Open(Values items);
  static Value Of(Dict dict);
  static Value Of(std::shared_ptr<Object> object);

  Kind kind() const { return kind_; }
  bool Is(Kind kind) const { return kind_ == kind; }
  bool IsUndefined() const { return kind_ <= Kind::kUndefined; }
  bool IsNone() const { return kind_ == Kind::kNone; }
  bool IsText() const { return kind_ == Kind::kText; }
  bool IsDict() const { return kind_ == Kind::kDict; }
  bool IsSequence() const { return kind_ == Kind::kList || kind_ == Kind::kTuple; }
  bool IsInteger() const { return kind_ == Kind::kInt || kind_ == Kind::kBool; }  // Python's int.
  bool IsNumber() const { return IsInteger() || kind_ == Kind::kFloat; }

  int64_t integer() const { return integer_; }  // An integer's value.
  double number() const { return kind_ == Kind::kFloat ? number_ : static_cast<double>(integer_); }
  const std::string& text() const { return *static_cast<const std::string*>(shared_.get()); }
  // markupsafe.Markup, which `safe` returns: `+` escapes HTML in what is added to it.
  bool safe() const { return safe_; }
  const Values& items() const {
    if (open_) throw Observed();
    return *static_cast<const Values*>(shared_.get());
  }
  bool open() const { return open_; }
  // Those known of an open list, of which the first skipped() are no longer in it.
  const Values& known() const { return *static_cast<const Values*>(shared_.get()); }
  size_t skipped() const { return static_cast<size_t>(integer_); }
  Value Skip(size_t more) const;
  const Dict& dict() const { return *static_cast<const Dict*>(shared_.get()); }
  Object& object() const { return *static_cast<Object*>(shared_.get()); }
  // The object, if it is of this class.
  template <typename T>
  T* As() const {
    return kind_ == Kind::kObject ? dynamic_cast<T*>(&object()) : nullptr;
  }
  const std::string& why() const { return text(); }  // Why a value is undefined.
  const void* address() const { return shared_.get(); }
  int depth() const { return depth_; }

 private:
  Value(Kind kind, int64_t integer) : kind_(kind), integer_(integer) {}
  Value(Kind kind, std::string text)
      : kind_(kind), shared_(std::make_shared<std::string>(std::move(text))) {}

  Kind kind_ = Kind::kMissing;
  bool safe_ = false;
  bool open_ = false;
  int16_t depth_ = 0;
  union {
    int64_t integer_ = 0;  // An open list: skipped().
    double number_;
  };
  std::shared_ptr<void> shared_;
};

// In the order in which keys were first set: texts or, in a template's own dict, integers.
class Dict {
 public:
  using Entry = std::pair<Value, Value>;
  void Set(const Value& key, Value value);        // Throws Fault: the key is neither.
  const Value* Find(std::string_view key) const;  // Null: none.
  const Value* Find(const Value& key) const;      // Throws Fault: the key is a list or a dict.
  const std::vector<Entry>& entries() const { return entries_; }
  size_t size() const { return entries_.size(); }
  int depth() const { return depth_; }

 private:
  std::vector<Entry> entries_;
  int depth_ = 0;
  std::unordered_map<std::string_view, size_t> by_key_;  // Texts, once there are more than a few.
};

// All that is no plain value: functions, namespaces, loops.
class Object {
 public:
  virtual ~Object() = default;
  virtual const char* type() const = 0;                    // As Python calls it.
  virtual Value Attribute(const std::string& name) const;  // Missing: no such attribute.
  virtual int depth() const { return 0; }                  // How deep its contents nest.
};

// A range, a view of a dict, or a generator, which can be run through only once.
class Items : public Object {
 public:
  Items(const char* type, Values items) : type_(type), items_(Value::List(std::move(items))) {}
  static Value Make(const char* type, Values items);
  const char* type() const override { return type_; }
  int depth() const override { return items_.depth(); }
  bool is_range() const { return *type_ == 'r'; }
  bool is_generator() const { return *type_ == 'g'; }
  const Values& items() const { return items_.items(); }
  const Values& Take();  // Throws Fault where a generator is run through again.

 private:
  const char* const type_;
  const Value items_;
  bool taken_ = false;
};

// --- Operators. They throw Fault where Python raises, or where an integer has more than 64 bits.
// ---

enum class Operator { kOr, kAnd, kEq, kNe, kLt, kLe, kGt, kGe, kIn, kAdd, kSub, kCat, kMul, kMod };
// Not for kOr and kAnd, which may leave their right operand alone.
Value Apply(Operator op, const Value& a, const Value& b, Budget& budget);

bool Equal(const Value& a, const Value& b, Budget& budget);
bool Truth(const Value& value);
// Whether a value is `such`, or holds one that is. An open list's items are not looked at.
bool Holds(const Value& value, bool (*such)(const Value&));
std::string Str(const Value& value, Budget& budget);
std::string Repr(const Value& value, Budget& budget);
std::string FloatRepr(double value);
int64_t Length(const Value& value);
// Whether there are elements: keys of a dict, characters of a text, none of an undefined value.
bool CanIterate(const Value& value);
Values ToList(const Value& value, Budget& budget);  // Throws Fault: there are no elements.

// whole[key]; none where Python raises TypeError, IndexError or KeyError.
std::optional<Value> Subscript(const Value& whole, const Value& key, Budget& budget);
// whole[start:stop], of which either may be None, and whole[::-1].
Value Slice(const Value& whole, const Value& start, const Value& stop, Budget& budget);
Value Reversed(const Value& whole, Budget& budget);

// HTML's characters replaced, as markupsafe.escape() does; a safe text is as it is.
Value Escape(const Value& value, Budget& budget);

const char* TypeName(const Value& value);
// Throws Fault: `value` is undefined.
[[noreturn]] void RefuseUndefined(const Value& value);

}  // namespace fsdp::jinja

#endif  // FSDP_TRAIN_TRAINER_DATA_CHAT_JINJA_VALUE_H_
