// Filters that make texts, as jinja2/filters.py and transformers' tojson do.
// Tests: tests/trainer/data/jinja/jinja_template_test.cc
#ifndef FSDP_TRAIN_TRAINER_DATA_JINJA_TEXT_FILTERS_H_
#define FSDP_TRAIN_TRAINER_DATA_JINJA_TEXT_FILTERS_H_

#include "trainer/data/jinja/value.h"

namespace fsdp::jinja {

Value CapitalizeFilter(Machine& machine, const Value& value, Arguments& arguments);
Value CenterFilter(Machine& machine, const Value& value, Arguments& arguments);
Value EscapeFilter(Machine& machine, const Value& value, Arguments& arguments);
Value FormatFilter(Machine& machine, const Value& value, Arguments& arguments);
Value IndentFilter(Machine& machine, const Value& value, Arguments& arguments);
Value LowerFilter(Machine& machine, const Value& value, Arguments& arguments);
Value ReplaceFilter(Machine& machine, const Value& value, Arguments& arguments);
Value SafeFilter(Machine& machine, const Value& value, Arguments& arguments);
Value StringFilter(Machine& machine, const Value& value, Arguments& arguments);
Value TitleFilter(Machine& machine, const Value& value, Arguments& arguments);
Value TojsonFilter(Machine& machine, const Value& value, Arguments& arguments);
Value TrimFilter(Machine& machine, const Value& value, Arguments& arguments);
Value TruncateFilter(Machine& machine, const Value& value, Arguments& arguments);
Value UpperFilter(Machine& machine, const Value& value, Arguments& arguments);

}  // namespace fsdp::jinja

#endif  // FSDP_TRAIN_TRAINER_DATA_JINJA_TEXT_FILTERS_H_
