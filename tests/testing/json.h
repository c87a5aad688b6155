// A JSON value to compare with, and with nlohmann::json's names: a source that reads
// nlohmann/json.hpp takes twice to six times as long to compile as one that reads this.
#ifndef FSDP_TRAIN_TESTS_TESTING_JSON_H_
#define FSDP_TRAIN_TESTS_TESTING_JSON_H_

#include <compare>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <iosfwd>
#include <map>
#include <ranges>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace fsdp::testing {

class Json;

template <typename T>
struct IsReadFromJson : std::bool_constant<std::is_arithmetic_v<T> && !std::same_as<T, char>> {};
template <>
struct IsReadFromJson<std::string> : std::true_type {};
template <typename T>
struct IsReadFromJson<std::vector<T>> : std::bool_constant<IsReadFromJson<T>::value> {};
template <typename T>
struct IsReadFromJson<std::map<std::string, T>> : std::bool_constant<IsReadFromJson<T>::value> {};

// A question to another kind of value, or for what is not there, throws std::invalid_argument.
class Json {
 public:
  struct Item;  // .key(), .value(), and both as a structured binding.
  using Elements = std::vector<Json>;

  // NOLINTBEGIN(google-explicit-constructor): a literal is a value.
  Json() = default;  // Null.
  Json(std::nullptr_t) {}
  template <typename T>
  requires(std::is_arithmetic_v<T>) Json(T value) {
    if constexpr (std::same_as<T, bool>) {
      kind_ = Kind::kBoolean;
      integer_ = value;
    } else if constexpr (std::integral<T>) {
      kind_ = std::in_range<int64_t>(value) ? Kind::kInteger : Kind::kUnsigned;
      integer_ = static_cast<int64_t>(value);
    } else {
      kind_ = Kind::kReal;
      real_ = value;
    }
  }
  template <typename T>
  requires(std::convertible_to<const T&, std::string_view> && !std::same_as<T, Json>)
      Json(const T& text)
      : kind_(Kind::kText), text_(std::string_view(text)) {}
  template <typename T>
  requires(std::ranges::range<const T> && !std::convertible_to<const T&, std::string_view> &&
           !std::same_as<T, Json>) Json(const T& elements)
      : kind_(Kind::kList) {
    for (const auto& element : elements) elements_.emplace_back(element);
  }
  // An object where each element is a list of a text and a value; otherwise a list.
  Json(std::initializer_list<Json> elements);
  // NOLINTEND(google-explicit-constructor)
  static Json object();
  static Json array(std::initializer_list<Json> elements = {});
  static Json parse(std::string_view text);

  bool is_null() const { return kind_ == Kind::kNull; }
  bool is_boolean() const { return kind_ == Kind::kBoolean; }
  bool is_number() const { return is_number_integer() || is_number_float(); }
  bool is_number_integer() const { return kind_ == Kind::kInteger || kind_ == Kind::kUnsigned; }
  bool is_number_float() const { return kind_ == Kind::kReal; }
  bool is_string() const { return kind_ == Kind::kText; }
  bool is_array() const { return kind_ == Kind::kList; }
  bool is_object() const { return kind_ == Kind::kObject; }

  size_t size() const { return is_array() || is_object() ? elements_.size() : !is_null(); }
  bool empty() const { return size() == 0; }
  Elements::const_iterator begin() const { return elements_.begin(); }
  Elements::const_iterator end() const { return elements_.end(); }
  const Json& front() const { return at(0); }
  const Json& back() const { return at(size() - 1); }
  const Json& at(size_t i) const;
  const Json& operator[](std::integral auto i) const { return at(static_cast<size_t>(i)); }
  Json& operator[](std::integral auto i) { return const_cast<Json&>(at(static_cast<size_t>(i))); }
  void push_back(Json element);  // Null becomes a list.

  const Json& at(std::string_view key) const;
  const Json& operator[](const std::string& key) const;  // Null where there is none.
  const Json& operator[](const char* key) const { return (*this)[std::string(key)]; }
  Json& operator[](const std::string& key);  // Adds null where there is none.
  Json& operator[](const char* key) { return (*this)[std::string(key)]; }
  bool contains(std::string_view key) const { return Find(key) != nullptr; }
  size_t erase(std::string_view key);
  std::vector<Item> items() const;  // In the order of their keys.
  template <typename T>
  T value(std::string_view key, const T& otherwise) const {
    const Json* found = Find(key);
    return found ? found->get<T>() : otherwise;
  }
  std::string value(std::string_view key, const char* otherwise) const {
    return value(key, std::string(otherwise));
  }

  template <typename T>
  T get() const {
    if constexpr (std::same_as<T, Json>) {
      return *this;
    } else if constexpr (std::same_as<T, bool>) {
      return Boolean();
    } else if constexpr (std::is_arithmetic_v<T>) {
      if (kind_ == Kind::kReal) return static_cast<T>(real_);
      return kind_ == Kind::kUnsigned ? static_cast<T>(static_cast<uint64_t>(Integer()))
                                      : static_cast<T>(Integer());
    } else if constexpr (std::same_as<T, std::string>) {
      return Text();
    } else {
      T all;
      if constexpr (requires { typename T::mapped_type; }) {
        ForEachMember([&](const std::string& key, const Json& value) {
          all[key] = value.get<typename T::mapped_type>();
        });
      } else {
        for (const Json& element : List()) all.push_back(element.get<typename T::value_type>());
      }
      return all;
    }
  }
  template <typename T>
  requires(IsReadFromJson<T>::value) operator T() const {  // NOLINT(google-explicit-constructor)
    return get<T>();
  }

  // In one line without spaces; with an `indent`, a line a member.
  std::string dump(int indent = -1) const;

  bool operator==(const Json& other) const;  // 1 and 1.0 are equal.
  std::partial_ordering operator<=>(const Json& other) const;
  template <typename T>
  requires(std::is_arithmetic_v<T>) bool operator==(T value) const { return *this == Json(value); }
  template <typename T>
  requires(std::is_arithmetic_v<T>) std::partial_ordering operator<=>(T value) const {
    return *this <=> Json(value);
  }
  template <typename T>
  requires(std::convertible_to<const T&, std::string_view> && !std::same_as<T, Json>) bool
  operator==(const T& text) const {
    return is_string() && text_ == std::string_view(text);
  }
  friend std::ostream& operator<<(std::ostream& out, const Json& value);

 private:
  enum class Kind { kNull, kBoolean, kInteger, kUnsigned, kReal, kText, kList, kObject };
  struct Trees;

  bool Boolean() const;
  int64_t Integer() const;  // Its bits.
  const std::string& Text() const;
  const Elements& List() const;
  const Json* Find(std::string_view key) const;
  void ForEachMember(const auto& call) const {
    for (size_t i = 0; i < keys_.size(); ++i) call(keys_[i], elements_[i]);
  }

  Kind kind_ = Kind::kNull;
  int64_t integer_ = 0;
  double real_ = 0;
  std::string text_;
  std::vector<std::string> keys_;  // An object's, sorted.
  Elements elements_;              // A list's, or the keys' values.
};

struct Json::Item {
  std::string name;
  Json content;

  const std::string& key() const { return name; }
  const Json& value() const { return content; }
};

}  // namespace fsdp::testing

#endif  // FSDP_TRAIN_TESTS_TESTING_JSON_H_
