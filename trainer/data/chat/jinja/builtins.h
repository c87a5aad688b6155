// Filters, tests and functions that a template finds by name, and attributes of values.
// Tests: tests/trainer/data/chat/jinja/jinja_template_test.cc
#ifndef FSDP_TRAIN_TRAINER_DATA_CHAT_JINJA_BUILTINS_H_
#define FSDP_TRAIN_TRAINER_DATA_CHAT_JINJA_BUILTINS_H_

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>

#include "trainer/data/chat/jinja/date.h"
#include "trainer/data/chat/jinja/objects.h"

namespace fsdp::jinja {

template <size_t size>
const Builtin* FindIn(const Builtin (&table)[size], std::string_view name) {
  const auto named = [&](const Builtin& one) { return one.name == name; };
  const Builtin* const found = std::find_if(table, table + size, named);
  return found == table + size ? nullptr : found;
}

const Builtin* FindFilter(std::string_view name);  // Null: there is none.
const Builtin* FindTest(std::string_view name);
const Builtin* FindTextMethod(std::string_view name);
// Those of jinja2, and methods of Python's str, list and dict, that no chat template uses.
bool IsForeignFilter(std::string_view name);
bool IsForeignTest(std::string_view name);
bool IsForeignGlobal(std::string_view name);
bool IsForeignMethod(std::string_view name);

// Missing: none of this name. Without a date there is no `strftime_now`.
Value FindGlobal(const std::string& name, const std::optional<JinjaDate>& date);

// As the sandbox of jinja2 finds them: whole.name and whole[key].
Value Attribute(const Value& whole, const std::string& name);
Value Element(const Value& whole, const Value& key, Budget& budget);

}  // namespace fsdp::jinja

#endif  // FSDP_TRAIN_TRAINER_DATA_CHAT_JINJA_BUILTINS_H_
