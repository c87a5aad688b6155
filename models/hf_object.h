// The object that a config.json is, key by key.
// Tests: tests/trainer/weights/hf_config_test.cc
#ifndef FSDP_TRAIN_MODELS_HF_OBJECT_H_
#define FSDP_TRAIN_MODELS_HF_OBJECT_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "trainer/core/json_reader.h"

namespace fsdp {

// A feature that this program does not compute: its key, and the values that the key may have all
// the same.
struct HfFeature {
  const char* key;
  std::vector<const char*> harmless;  // JSON texts; null always is.
};

// An object key by key: null counts as absent. A reader that asks for no key ignores it.
class HfObject {
 public:
  // Whether the files beside it hold a tensor: empty where there are none.
  using HoldsTensor = std::function<std::optional<bool>(const std::string& name)>;
  explicit HfObject(JsonValue json, HoldsTensor holds_tensor = nullptr)
      : json_(std::move(json)), holds_tensor_(std::move(holds_tensor)) {}

  [[noreturn]] void Refuse(const std::string& key, const std::string& reason) const {
    json_.Refuse(key, reason);
  }

  std::optional<JsonValue> Find(const std::string& key) {
    asked_.insert(key);
    return json_.Find(key);
  }
  bool Holds(const std::string& key) const { return json_.Has(key); }  // Null, too.
  bool WasAsked(const std::string& key) const { return asked_.count(key) > 0; }
  std::optional<bool> HasTensor(const std::string& name) const {
    return holds_tensor_ ? holds_tensor_(name) : std::nullopt;
  }

  std::optional<int64_t> Integer(const std::string& key) {
    const auto value = Find(key);
    return value ? std::optional(value->Integer()) : std::nullopt;
  }
  std::optional<double> Real(const std::string& key) {
    const auto value = Find(key);
    return value ? std::optional(value->Number()) : std::nullopt;
  }
  std::optional<std::string> Text(const std::string& key) {
    const auto value = Find(key);
    return value ? std::optional(value->Text()) : std::nullopt;
  }
  std::optional<bool> Boolean(const std::string& key) {
    const auto value = Find(key);
    return value ? std::optional(value->Boolean()) : std::nullopt;
  }

  // Refuses a key unless it is absent or has one of `values`: JSON texts that ask for nothing that
  // this program cannot compute.
  void WantOneOf(const std::string& key, const std::vector<const char*>& values) {
    const auto value = Find(key);
    if (!value) return;
    std::string list;
    for (const char* v : values) {
      if (value->Is(v)) return;
      list.append(list.empty() ? "" : " and ").append(v);
    }
    value->Refuse(value->Show() + " is not in this version, only " +
                  (list.empty() ? "null" : list));
  }

  std::vector<std::pair<std::string, JsonValue>> Unasked() const {
    auto members = json_.Members();
    std::erase_if(members, [&](const auto& member) { return asked_.count(member.first) > 0; });
    return members;
  }

 private:
  const JsonValue json_;
  const HoldsTensor holds_tensor_;
  std::set<std::string> asked_;
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_MODELS_HF_OBJECT_H_
