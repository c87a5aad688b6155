// Filters of what can be iterated, as jinja2/filters.py has them. map, select and their like,
// batch, items and unique are generators: they take an element when somebody asks for one.
//
// Tests: tests/trainer/data/jinja/jinja_template_test.cc
#ifndef FSDP_TRAIN_TRAINER_DATA_JINJA_SEQUENCE_FILTERS_H_
#define FSDP_TRAIN_TRAINER_DATA_JINJA_SEQUENCE_FILTERS_H_

#include "trainer/data/jinja/value.h"

namespace fsdp::jinja {

Value BatchFilter(Machine& machine, const Value& value, Arguments& arguments);
Value DictsortFilter(Machine& machine, const Value& value, Arguments& arguments);
Value FirstFilter(Machine& machine, const Value& value, Arguments& arguments);
Value ItemsFilter(Machine& machine, const Value& value, Arguments& arguments);
Value JoinFilter(Machine& machine, const Value& value, Arguments& arguments);
Value LastFilter(Machine& machine, const Value& value, Arguments& arguments);
Value ListFilter(Machine& machine, const Value& value, Arguments& arguments);
Value MapFilter(Machine& machine, const Value& value, Arguments& arguments);
Value MaxFilter(Machine& machine, const Value& value, Arguments& arguments);
Value MinFilter(Machine& machine, const Value& value, Arguments& arguments);
Value RejectFilter(Machine& machine, const Value& value, Arguments& arguments);
Value RejectattrFilter(Machine& machine, const Value& value, Arguments& arguments);
Value ReverseFilter(Machine& machine, const Value& value, Arguments& arguments);
Value SelectFilter(Machine& machine, const Value& value, Arguments& arguments);
Value SelectattrFilter(Machine& machine, const Value& value, Arguments& arguments);
Value SortFilter(Machine& machine, const Value& value, Arguments& arguments);
Value SumFilter(Machine& machine, const Value& value, Arguments& arguments);
Value UniqueFilter(Machine& machine, const Value& value, Arguments& arguments);

}  // namespace fsdp::jinja

#endif  // FSDP_TRAIN_TRAINER_DATA_JINJA_SEQUENCE_FILTERS_H_
