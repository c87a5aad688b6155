// The text around a plan for people. Above the plan: the model, its steps and the machine. Below
// it: the time of a step there.
// Tests: tests/trainer/loop/plan_heading_test.cc
#ifndef FSDP_TRAIN_TRAINER_LOOP_PLAN_HEADING_H_
#define FSDP_TRAIN_TRAINER_LOOP_PLAN_HEADING_H_

#include <optional>
#include <string>

#include "models/family.h"
#include "trainer/core/dtype.h"
#include "trainer/engine/plan.h"
#include "trainer/recipe/hardware.h"
#include "trainer/runtime/device.h"

namespace fsdp {

class Model;
struct Recipe;

// "family, 12 layers x 768, 124,439,808 parameters, in steps of 512 x 1,024 = 524,288 tokens
//  on cuda, 8 ranks, 4 to a host: an H100 with 80 GB", two lines, each ended. Where some parameters
// are frozen the first line says how many train. Without `hardware` the machine is this one.
std::string PlanHeading(const Recipe& recipe, const ModelShape& shape, const Model& model,
                        int world, int local_world, DeviceType device,
                        const std::optional<Hardware>& hardware);

// Where rates of a CPU are of another kind of kernels than this process has, and a recipe that
// computes in this dtype takes another time for it here: "note: ...", a line, ended. Otherwise "".
std::string NoteOnKernels(const Hardware& hardware, DType param_dtype);

// Lines, ended: seconds of a step and of its parts, rates, the run. Numbers have the style of
// units.h.
std::string EstimateToText(const StepEstimate& step, const RunPlan& plan);
std::string EstimateTerms();  // Explains the words of that text, a line each.

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_LOOP_PLAN_HEADING_H_
