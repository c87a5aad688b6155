// The filters and tests of jinja2 that chat templates use, by name.
// Tests: tests/trainer/data/jinja/jinja_template_test.cc
#ifndef FSDP_TRAIN_TRAINER_DATA_JINJA_FILTERS_H_
#define FSDP_TRAIN_TRAINER_DATA_JINJA_FILTERS_H_

#include <string_view>

#include "trainer/data/jinja/value.h"

namespace fsdp::jinja {

struct Filter {
  const char* name;
  Value (*apply)(Machine& machine, const Value& value, Arguments& arguments);
};
struct Test {
  const char* name;
  bool (*holds)(Machine& machine, const Value& value, Arguments& arguments);
};

const Filter* FindFilter(std::string_view name);  // Null: there is none.
const Test* FindTest(std::string_view name);
// Whether jinja2 has a filter of this name that is not among these.
bool IsForeignFilter(std::string_view name);

}  // namespace fsdp::jinja

#endif  // FSDP_TRAIN_TRAINER_DATA_JINJA_FILTERS_H_
