// How a value is laid out in a field: width, alignment, digits. Shared by text % values and
// text.format().
// Tests: tests/trainer/data/jinja/jinja_template_test.cc
#ifndef FSDP_TRAIN_TRAINER_DATA_JINJA_FORMAT_SPEC_H_
#define FSDP_TRAIN_TRAINER_DATA_JINJA_FORMAT_SPEC_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "trainer/data/jinja/value.h"

namespace fsdp::jinja {

struct FormatSpec {
  std::string fill = " ";
  char align = 0;  // < > = ^; 0: as the type has it.
  char sign = '-';
  bool alternate = false;
  char group = 0;  // , or _
  int64_t width = 0;
  int64_t precision = -1;
  char type = 0;
};

// The number that `text` begins with, 0 if there is none. Throws Fault above 1000.
int64_t TakeNumber(std::string_view& text);

// Integers, with a type d x X o b. Each of these functions throws Fault for what it cannot do.
std::string FormatInteger(int64_t value, const FormatSpec& spec, Budget& budget);
std::string FormatFloat(double value, const FormatSpec& spec, Budget& budget);
// Cut to the precision; `standard` is the alignment where none is given.
std::string FormatText(const std::string& text, const FormatSpec& spec, char standard,
                       Budget& budget);

}  // namespace fsdp::jinja

#endif  // FSDP_TRAIN_TRAINER_DATA_JINJA_FORMAT_SPEC_H_
