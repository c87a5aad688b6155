// Reading JSON (RFC 8259) event by event, without a document: for a format that accepts little of
// it.
// Tests: tests/trainer/checkpoint/safetensors_test.cc
#ifndef FSDP_TRAIN_TRAINER_CORE_JSON_EVENTS_H_
#define FSDP_TRAIN_TRAINER_CORE_JSON_EVENTS_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace fsdp {

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

#endif  // FSDP_TRAIN_TRAINER_CORE_JSON_EVENTS_H_
