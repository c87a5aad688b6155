// Files of JSON with some members changed.
#ifndef FSDP_TRAIN_TESTS_TRAINER_WEIGHTS_PATCHED_H_
#define FSDP_TRAIN_TESTS_TRAINER_WEIGHTS_PATCHED_H_

#include "tests/testing/json.h"

namespace fsdp::testing {

// With the members of `patch` in place of its own, and theirs in place of theirs; null removes one
// (RFC 7396).
inline Json Patched(const Json& json, const Json& patch) {
  if (!patch.is_object()) return patch;
  Json patched = json.is_object() ? json : Json::object();
  for (const Json::Item& member : patch.items()) {
    if (member.value().is_null()) {
      patched.erase(member.key());
    } else {
      patched[member.key()] = Patched(patched[member.key()], member.value());
    }
  }
  return patched;
}

}  // namespace fsdp::testing

#endif  // FSDP_TRAIN_TESTS_TRAINER_WEIGHTS_PATCHED_H_
