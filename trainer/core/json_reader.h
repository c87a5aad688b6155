// Reading JSON (RFC 8259) from files that may hold anything: as values, or event by event. A value
// knows its place, and conversions are exact. A value that is not as it must be is refused with the
// reader's own exception and words.
// Tests: tests/trainer/core/json_tree_test.cc
#ifndef FSDP_TRAIN_TRAINER_CORE_JSON_READER_H_
#define FSDP_TRAIN_TRAINER_CORE_JSON_READER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>  // The whole takes 4 s to compile.
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace fsdp {

// How deep a text nests, told before it is parsed: a walk of a document takes the stack. Looks at
// brackets outside of strings alone; the parser refuses what is no JSON.
bool NestsDeeper(std::string_view text, int levels);

// How a file is refused: "<path>: <place><separator><words>".
struct JsonErrors {
  void (*raise)(const std::string& message) = [](const std::string& message) {
    throw std::runtime_error(message);
  };
  const char* separator = ": ";
  bool shows_value = false;                 // Before the words for a type: "2.5 is not an integer".
  const char* key_quote = "";               // On both sides of the key in "has no key".
  const char* not_json = nullptr;           // Null: "<path>:<line>:<column>: <reason>".
  const char* integer = "want an integer";  // " from 1 to 2" follows where there is a range.
  const char* number = "is not a number";
  const char* text = "is not a string";
  const char* boolean = "is neither true nor false";
  const char* list = "is not a list";
  const char* object = "is not an object";
};

// A value of a document, which lives as long as one of its values. Cheap to copy.
class JsonValue {
 public:
  [[noreturn]] void Refuse(const std::string& reason) const;
  // Refuses the member `key`, which need not be there.
  [[noreturn]] void Refuse(const std::string& key, const std::string& reason) const;

  // For example "units[3].name"; the document itself has the name that ParseJson() was given.
  const std::string& place() const { return place_; }
  // The same value, called `place` in messages.
  JsonValue Named(std::string place) const;

  bool IsNull() const;
  bool IsObject() const;
  bool IsList() const;
  bool IsNumber() const;
  bool IsText() const;
  bool IsText(std::string_view text) const;  // This one.
  bool IsInteger() const;                    // That fits in 64 bits with a sign.
  bool IsInteger(int64_t least, int64_t most) const;
  // Whether it equals the value of this JSON text; 1 and 1.0 are equal.
  bool Is(std::string_view json) const;

  // A value that is no object has no members.
  bool Has(const std::string& key) const;                       // True for null, too.
  std::optional<JsonValue> Find(const std::string& key) const;  // Null counts as absent.
  JsonValue At(const std::string& key) const;                   // Refuses where there is none.

  // Sorted by the keys' bytes.
  std::vector<std::pair<std::string, JsonValue>> Members() const;
  std::vector<JsonValue> Elements() const;

  // These refuse another type: 1.5, 1.0 and true are no integers.
  int64_t Integer() const;
  int64_t Integer(int64_t least, int64_t most) const;
  uint64_t Unsigned() const;
  double Number() const;
  bool Boolean() const;
  const std::string& Text() const;

  std::string Dump() const;  // Its JSON text.
  // For messages, in ASCII: short, whatever it holds.
  std::string Show() const;

 private:
  struct Document;
  friend JsonValue ParseJson(std::string_view, std::string, const JsonErrors&, std::string);
  friend std::optional<JsonValue> TryParseJson(std::string_view);

  JsonValue(std::shared_ptr<const Document> document, const nlohmann::json* json,
            std::string place);
  std::string PlaceOf(const std::string& key) const;
  [[noreturn]] void RefuseType(const std::string& words) const;

  std::shared_ptr<const Document> document_;
  const nlohmann::json* json_;
  std::string place_;
};

// The last of equal keys counts, as for Python's json. Refuses text that is no JSON or goes on
// behind it, strings that are no UTF-8, and nesting of more than 100 levels, so that no walk of the
// document exhausts a stack. `place`: the document's name in messages. With an empty `path`
// messages begin with the place.
JsonValue ParseJson(std::string_view text, std::string path, const JsonErrors& errors,
                    std::string place = "");

// Empty where ParseJson() would refuse: for texts whose mistakes nobody is told.
std::optional<JsonValue> TryParseJson(std::string_view text);

// Text for messages, in quotes: a damaged or hostile file may hold long texts, or bytes that are no
// text.
std::string Quote(std::string_view text);

// Events of a document that is read without being kept: for a format that accepts little of JSON.
// Each returns whether to go on.
class JsonEvents {
 public:
  virtual ~JsonEvents() = default;
  virtual bool Null() = 0;
  virtual bool Boolean() = 0;
  virtual bool Negative() = 0;  // An integer that fits in 64 bits.
  virtual bool Unsigned(uint64_t value) = 0;
  virtual bool Real() = 0;  // Any other number.
  virtual bool Text(const std::string& text) = 0;
  virtual bool BeginObject() = 0;
  virtual bool Key(const std::string& key) = 0;
  virtual bool EndObject() = 0;
  virtual bool BeginList() = 0;
  virtual bool EndList() = 0;
  virtual void NoJson(size_t read) = 0;  // From the last of the `read` bytes on.
};

// Whether all events went on and `text` is JSON.
bool ReadJson(std::string_view text, JsonEvents& events);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_CORE_JSON_READER_H_
