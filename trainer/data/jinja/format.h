// Python's `text % values` and `text.format(...)`.
// Tests: tests/trainer/data/jinja/jinja_template_test.cc
#ifndef FSDP_TRAIN_TRAINER_DATA_JINJA_FORMAT_H_
#define FSDP_TRAIN_TRAINER_DATA_JINJA_FORMAT_H_

#include "trainer/data/jinja/value.h"

namespace fsdp::jinja {

// Conversions s r d i u x X o e E f F g G c a %; widths and precisions, `*` not among them.
// `values`: a tuple, a dict for `%(name)s`, or one value.
Value PercentFormat(const Value& format, const Value& values, Budget& budget);
// Fields `{}`, `{0}`, `{name}` with attributes, elements and `!r`, `!s`; specifications of fill,
// alignment, sign, width, comma, precision and s d x X o b e f g %. Throws Fault for others.
Value BraceFormat(Machine& machine, const Value& format, const Arguments& arguments);

}  // namespace fsdp::jinja

#endif  // FSDP_TRAIN_TRAINER_DATA_JINJA_FORMAT_H_
