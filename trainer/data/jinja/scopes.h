// Which variable a name is, as jinja2/idtracking.py decides it before anything runs. A frame is a
// template, a loop's body, a macro, a block that is captured; an if has none of its own. A name
// that a frame assigns to anywhere is a variable of the frame, which begins as the outer frame's.
// Tests: tests/trainer/data/jinja/jinja_template_test.cc
#ifndef FSDP_TRAIN_TRAINER_DATA_JINJA_SCOPES_H_
#define FSDP_TRAIN_TRAINER_DATA_JINJA_SCOPES_H_

#include "trainer/data/jinja/ast.h"

namespace fsdp::jinja {

// Fills in variables and layouts of frames. Throws TemplateError: filters and tests that there are
// not (but under an if, where jinja2 asks for them when it gets there), names with a meaning of
// their own.
void ResolveNames(Program& program);

}  // namespace fsdp::jinja

#endif  // FSDP_TRAIN_TRAINER_DATA_JINJA_SCOPES_H_
