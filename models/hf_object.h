// The object that a config.json is, key by key.
// Tests: tests/trainer/weights/hf_config_test.cc
#ifndef FSDP_TRAIN_MODELS_HF_OBJECT_H_
#define FSDP_TRAIN_MODELS_HF_OBJECT_H_

#include <cstdint>
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

// The tensors in the files beside a config.json, by names with or without the trunk's.
class HfFiles {
 public:
  virtual ~HfFiles() = default;
  virtual bool Holds(const std::string& tensor) const = 0;
  // Both are there. Reads them as far as they are equal.
  virtual bool AreEqual(const std::string& a, const std::string& b) const = 0;
};

// An object key by key: null counts as absent. A reader that asks for no key ignores it.
class HfObject {
 public:
  explicit HfObject(JsonValue json, const HfFiles* files = nullptr)
      : json_(std::move(json)), files_(files) {}

  [[noreturn]] void Refuse(const std::string& key, const std::string& reason) const {
    json_.Refuse(key, reason);
  }

  std::optional<JsonValue> Find(const std::string& key) {
    asked_.insert(key);
    return json_.Find(key);
  }
  bool Holds(const std::string& key) const { return json_.Has(key); }  // Null, too.
  bool WasAsked(const std::string& key) const { return asked_.count(key) > 0; }
  // Empty where there are no files.
  std::optional<bool> HasTensor(const std::string& name) const {
    return files_ != nullptr ? std::optional(files_->Holds(name)) : std::nullopt;
  }
  // Whether the files hold both tensors, and they differ.
  bool Differ(const std::string& a, const std::string& b) const {
    return files_ != nullptr && files_->Holds(a) && files_->Holds(b) && !files_->AreEqual(a, b);
  }
  // As config.json says, unless the files hold a head that is no copy of the embedding:
  // it is kept, as by transformers.
  bool TiesHead(bool says, const std::string& embedding) {
    if (!says || !Differ("lm_head.weight", embedding)) return says;
    Note("lm_head.weight is no copy of " + embedding +
         ", to which tie_word_embeddings of config.json ties it: it is kept, and the head is not "
         "tied");
    return false;
  }

  // Notes tell the user about the files, once.
  void Note(const std::string& note) { notes_.push_back(note); }
  const std::vector<std::string>& notes() const { return notes_; }

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
  const HfFiles* const files_;
  std::set<std::string> asked_;
  std::vector<std::string> notes_;
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_MODELS_HF_OBJECT_H_
