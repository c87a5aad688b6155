// Filters of numbers and of single values, as jinja2/filters.py has them.
// Tests: tests/trainer/data/jinja/jinja_template_test.cc
#ifndef FSDP_TRAIN_TRAINER_DATA_JINJA_NUMBER_FILTERS_H_
#define FSDP_TRAIN_TRAINER_DATA_JINJA_NUMBER_FILTERS_H_

#include "trainer/data/jinja/value.h"

namespace fsdp::jinja {

Value AbsFilter(Machine& machine, const Value& value, Arguments& arguments);
Value AttrFilter(Machine& machine, const Value& value, Arguments& arguments);
Value DefaultFilter(Machine& machine, const Value& value, Arguments& arguments);
Value FloatFilter(Machine& machine, const Value& value, Arguments& arguments);
Value IntFilter(Machine& machine, const Value& value, Arguments& arguments);
Value LengthFilter(Machine& machine, const Value& value, Arguments& arguments);
Value RoundFilter(Machine& machine, const Value& value, Arguments& arguments);

}  // namespace fsdp::jinja

#endif  // FSDP_TRAIN_TRAINER_DATA_JINJA_NUMBER_FILTERS_H_
