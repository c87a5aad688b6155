// Writing JSON (RFC 8259): the few shapes that our files need. Reading is json_reader.h.
#ifndef FSDP_TRAIN_TRAINER_CORE_JSON_H_
#define FSDP_TRAIN_TRAINER_CORE_JSON_H_

#include <concepts>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace fsdp {

// The shortest decimal that reads back as the same double, always with a point or an exponent (so
// that -0.0 keeps its sign in readers that tell integers apart); null for NaN and infinities.
std::string JsonNumber(double value);

// In quotes. Bytes that are no UTF-8 become U+FFFD, as in Python's decode("utf-8", "replace"): the
// file stays JSON whatever a path holds.
std::string JsonString(std::string_view text);

// An object that keeps the order of its keys. Keys are literals of ours: written once each, ASCII.
//   JsonObject().Add("kind", "eval").Add("loss", 2.5).Text() == R"({"kind": "eval", "loss": 2.5})"
class JsonObject {
 public:
  JsonObject& Add(std::string_view key, std::string_view text) {
    return AddRaw(key, JsonString(text));
  }
  JsonObject& Add(std::string_view key, const char* text) {  // Not as a bool.
    return Add(key, std::string_view(text));
  }
  JsonObject& Add(std::string_view key, double value) { return AddRaw(key, JsonNumber(value)); }
  JsonObject& Add(std::string_view key, bool value) {
    return AddRaw(key, value ? "true" : "false");
  }
  template <std::integral T>
  JsonObject& Add(std::string_view key, T value) {
    return AddRaw(key, std::to_string(value));
  }
  template <typename T>
  JsonObject& Add(std::string_view key, const std::optional<T>& value) {  // Absent: null.
    return value ? Add(key, *value) : AddRaw(key, "null");
  }
  JsonObject& Add(std::string_view key, const JsonObject& value) {
    return AddRaw(key, value.Text());
  }
  JsonObject& AddRaw(std::string_view key, std::string_view json);  // Any JSON text.

  std::string Text() const { return "{" + members_ + "}"; }

 private:
  std::string members_;
};

std::string JsonArray(const std::vector<std::string>& elements);  // Elements are JSON texts.

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_CORE_JSON_H_
