// A JSON value that is made, changed and compared in memory, with members in the order in which
// they came. Texts from outside, whose mistakes have a place, are json_reader.h's; a record that is
// only written is json.h's.
// Tests: tests/trainer/core/json_tree_test.cc
#ifndef FSDP_TRAIN_TRAINER_CORE_JSON_TREE_H_
#define FSDP_TRAIN_TRAINER_CORE_JSON_TREE_H_

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace fsdp {

// A text to write is no UTF-8.
struct NotUtf8 : std::invalid_argument {
  using std::invalid_argument::invalid_argument;
};

// Asking a value for another type than its own, or for a member that it lacks, is our own bug.
class JsonTree {
 public:
  struct Member;  // .key, .value

  // NOLINTBEGIN(google-explicit-constructor): `return 1;` is the value.
  JsonTree();  // Null.
  JsonTree(std::nullptr_t);
  JsonTree(const char* text);
  JsonTree(std::string text);
  JsonTree(std::string_view text);
  JsonTree(double value);
  JsonTree(std::same_as<bool> auto value) : JsonTree(Kind::kBoolean) { boolean_ = value; }
  template <std::integral T>
  requires(!std::same_as<T, bool>) JsonTree(T value)
      : JsonTree(std::in_range<int64_t>(value) ? Kind::kInteger : Kind::kUnsigned) {
    bits_ = static_cast<uint64_t>(value);
  }
  template <typename T>
  JsonTree(const std::optional<T>& value) : JsonTree(value ? JsonTree(*value) : JsonTree()) {}
  template <typename T>
  JsonTree(const std::vector<T>& elements) : JsonTree(Kind::kList) {
    for (const T& element : elements) Append(element);
  }
  template <typename T>
  JsonTree(const std::map<std::string, T>& members) : JsonTree(Kind::kObject) {
    for (const auto& [key, value] : members) (*this)[key] = value;
  }
  // NOLINTEND(google-explicit-constructor)
  static JsonTree Object(std::initializer_list<Member> members = {});
  static JsonTree List(std::initializer_list<JsonTree> elements = {});
  // Empty where `text` is no JSON or nests more than `most_depth` deep, with the reason in `why`.
  // The last of equal keys counts.
  static std::optional<JsonTree> Parse(std::string_view text, int most_depth = 100,
                                       std::string* why = nullptr);

  JsonTree(const JsonTree& other);
  JsonTree(JsonTree&& other) noexcept;
  JsonTree& operator=(const JsonTree& other);
  JsonTree& operator=(JsonTree&& other) noexcept;
  ~JsonTree();

  bool IsNull() const { return kind_ == Kind::kNull; }
  bool IsBoolean() const { return kind_ == Kind::kBoolean; }
  bool IsInteger() const { return kind_ == Kind::kInteger || kind_ == Kind::kUnsigned; }
  bool IsReal() const { return kind_ == Kind::kReal; }  // 1.0, too.
  bool IsNumber() const { return IsInteger() || IsReal(); }
  bool IsText() const { return kind_ == Kind::kText; }
  bool IsList() const { return kind_ == Kind::kList; }
  bool IsObject() const { return kind_ == Kind::kObject; }

  bool Boolean() const;
  int64_t Integer() const;  // Fits.
  double Number() const;
  const std::string& Text() const;

  size_t size() const;  // A list's or an object's.
  bool empty() const { return size() == 0; }

  // A list.
  const std::vector<JsonTree>& Elements() const;
  const JsonTree& operator[](size_t i) const;
  void Append(JsonTree element);

  // An object. A value of another type contains nothing.
  const std::vector<Member>& Members() const;
  const JsonTree* Find(std::string_view key) const;  // Null: there is none.
  bool Contains(std::string_view key) const { return Find(key) != nullptr; }
  const JsonTree& operator[](std::string_view key) const;
  // The elements of a member that is a list; none where there is no such member.
  const std::vector<JsonTree>& ElementsOf(std::string_view key) const;
  JsonTree& operator[](
      std::string_view key);            // Adds null where there is none; null becomes an object.
  void Update(const JsonTree& object);  // A member that is here keeps its place.
  void Erase(std::string_view key);

  // 1 and 1.0 are equal. Objects are where their members have one order, too.
  bool operator==(const JsonTree& other) const;

  enum class IllFormed { kRefused, kReplaced };  // Bytes that are no UTF-8 become U+FFFD.
  // In one line without spaces; with an `indent`, a line a member. Numbers read back to the same
  // bits. Throws NotUtf8.
  std::string Dump(int indent = -1, IllFormed ill_formed = IllFormed::kRefused) const;
  std::string DumpScalar() const;  // Null, a boolean or a number.

 private:
  enum class Kind { kNull, kBoolean, kInteger, kUnsigned, kReal, kText, kList, kObject };
  explicit JsonTree(Kind kind);

  Kind kind_;
  union {
    bool boolean_;
    uint64_t bits_ = 0;  // An int64_t's; kUnsigned is too large for one.
    double real_;
  };
  std::string text_;
  std::vector<JsonTree> elements_;
  std::vector<Member> members_;
};

struct JsonTree::Member {
  std::string key;
  JsonTree value;

  bool operator==(const Member& other) const = default;
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_CORE_JSON_TREE_H_
