// JSON into values, and values into JSON as Python's json.dumps() writes it.
// Tests: tests/trainer/data/chat/jinja/jinja_template_test.cc
#ifndef FSDP_TRAIN_TRAINER_DATA_CHAT_JINJA_JSON_H_
#define FSDP_TRAIN_TRAINER_DATA_CHAT_JINJA_JSON_H_

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "trainer/data/chat/jinja/value.h"

namespace fsdp::jinja {

// Throws Fault: an integer of more than 64 bits, a text that is no UTF-8, more than kMostDepth
// levels.
Value FromJson(const nlohmann::ordered_json& json);

// `indent` < 0: all in one line. Throws Fault: what has no JSON.
std::string ToJson(const Value& value, bool ensure_ascii, int64_t indent, Budget& budget);

}  // namespace fsdp::jinja

#endif  // FSDP_TRAIN_TRAINER_DATA_CHAT_JINJA_JSON_H_
