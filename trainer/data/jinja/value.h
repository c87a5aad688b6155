// Values of a template, as Python has them: immutable, cheap to copy. An Object is a value that a
// template can change (namespaces, loops) or run through only once (generators).
// Tests: tests/trainer/data/jinja/jinja_template_test.cc
#ifndef FSDP_TRAIN_TRAINER_DATA_JINJA_VALUE_H_
#define FSDP_TRAIN_TRAINER_DATA_JINJA_VALUE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "trainer/core/errors.h"

namespace fsdp::jinja {

// An error in words. The renderer adds the template's name and the line.
struct Fault : DataError {
  explicit Fault(const std::string& message) : DataError(message) {}
};

// Bounds the work of one rendering. One step is a node of the template, an element that a filter
// looks at, or 32 bytes of a string that is made.
class Budget {
 public:
  Budget(int64_t steps, size_t text_bytes) : left_(steps), steps_(steps), text_(text_bytes) {}
  void Charge(int64_t steps = 1) {
    if ((left_ -= steps) < 0) Exhausted();
  }
  // Before a string of so many bytes is made.
  void Text(size_t bytes);
  void CheckText(size_t bytes) const;  // The same, and charges nothing.

 private:
  [[noreturn]] void Exhausted();
  int64_t left_;
  const int64_t steps_;
  const size_t text_;
};

// How deeply a value nests, and its number of parts, each counted wherever it stands; 32 bytes of a
// string are one part. Both are bounded: no walk over a value exhausts a stack, and every walk
// charges the value's weight first.
struct Extent {
  int32_t depth = 0;
  int32_t weight = 1;
};
inline constexpr int32_t kMostDepth = 200, kMostWeight = 20'000'000;

class Dict;
class Object;
class Value;
using Values = std::vector<Value>;

class Value {
 public:
  enum class Kind : uint8_t {
    kMissing,  // A variable that nothing has been assigned to.
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
  static Value Undefined(std::string why);
  static Value None();
  static Value Bool(bool value);
  static Value Int(int64_t value);
  static Value Float(double value);
  // `safe`: markupsafe.Markup, what `safe` and `escape` return.
  static Value Text(std::string text, bool safe = false);
  static Value Text(std::string_view text, bool safe = false) {
    return Text(std::string(text), safe);
  }
  static Value Text(const char* text) { return Text(std::string(text)); }
  static Value List(Values items);  // Throws Fault where values nest too deeply, as the next two.
  static Value Tuple(Values items);
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
  bool IsTrue() const { return kind_ == Kind::kBool && integer_ != 0; }

  int64_t integer() const { return integer_; }  // An integer's value.
  double number() const { return kind_ == Kind::kFloat ? number_ : static_cast<double>(integer_); }
  const std::string& text() const { return *static_cast<const std::string*>(shared_.get()); }
  bool safe() const { return safe_; }
  const Values& items() const { return *static_cast<const Values*>(shared_.get()); }
  const Dict& dict() const;
  Object& object() const;
  std::shared_ptr<Object> shared_object() const;
  // Why a value is undefined.
  const std::string& why() const { return text(); }
  const void* address() const { return shared_.get(); }
  Extent extent() const { return {depth_, weight_}; }

 private:
  void SetExtent(Extent extent);

  Kind kind_ = Kind::kMissing;
  bool safe_ = false;
  int16_t depth_ = 0;
  int32_t weight_ = 1;
  union {
    int64_t integer_ = 0;
    double number_;
  };
  std::shared_ptr<void> shared_;
};

// The extent of a value that holds these. Throws Fault above the bounds.
Extent Around(const Values& values);
Extent Around(Extent within);

// In the order in which keys were first set.
class Dict {
 public:
  using Entry = std::pair<Value, Value>;
  void Set(const Value& key, Value value);
  const Value* Find(const Value& key) const;  // Null: none. Throws Fault: a key without hash.
  const Value* Find(std::string_view key) const;
  const std::vector<Entry>& entries() const { return entries_; }
  size_t size() const { return entries_.size(); }
  Extent extent() const { return extent_; }

 private:
  const Value* FindHashed(size_t hash, const Value& key) const;
  std::vector<Entry> entries_;
  Extent extent_;
  std::unordered_multimap<size_t, uint32_t> by_hash_;  // Once there are more than a few.
};

// Runs through what can be iterated, once.
class Cursor {
 public:
  virtual ~Cursor() = default;
  virtual bool Next(Value& item) = 0;  // False at the end.
};

// Arguments of a call, in the order given.
struct Arguments {
  Values positional;
  std::vector<std::pair<std::string, Value>> named;
};

class Machine;

class Object {
 public:
  virtual ~Object() = default;
  virtual const char* type() const = 0;  // As Python calls it.
  // Its printed text. Throws Fault where Python would print an address.
  virtual std::string Repr(Budget& budget) const;
  virtual bool Truth() const { return true; }
  virtual int64_t Length() const { return -1; }  // -1: has none.
  // Null: cannot be iterated.
  virtual std::unique_ptr<Cursor> Iterate(const Value& self, Budget& budget);
  // Missing: no such attribute.
  virtual Value Attribute(const std::string& name);
  virtual bool callable() const { return false; }
  virtual Value Call(Machine& machine, Arguments& arguments);
  virtual Extent extent() const { return {}; }  // For its unchangeable contents.
};

// Equal values have equal hashes. Throws Fault: lists and dicts have none.
size_t Hash(const Value& value);
bool Equal(const Value& a, const Value& b);
// Whether Python's `is` holds, as far as values that are no objects go.
bool Same(const Value& a, const Value& b);
const char* TypeName(const Value& value);

}  // namespace fsdp::jinja

#endif  // FSDP_TRAIN_TRAINER_DATA_JINJA_VALUE_H_
