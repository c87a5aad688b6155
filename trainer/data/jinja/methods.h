// Methods and attributes of Python's types.
// Tests: tests/trainer/data/jinja/jinja_template_test.cc
#ifndef FSDP_TRAIN_TRAINER_DATA_JINJA_METHODS_H_
#define FSDP_TRAIN_TRAINER_DATA_JINJA_METHODS_H_

#include <string>
#include <string_view>

#include "trainer/data/jinja/objects.h"
#include "trainer/data/jinja/value.h"

namespace fsdp::jinja {

// getattr(value, name). Missing: Python has none of this name. Undefined: the sandbox refuses it.
// Throws Fault: Python has it, but no chat template uses it.
Value FindAttribute(const Value& value, const std::string& name);

Function::Body FindTextMethod(std::string_view name);  // Null: there is none.

}  // namespace fsdp::jinja

#endif  // FSDP_TRAIN_TRAINER_DATA_JINJA_METHODS_H_
