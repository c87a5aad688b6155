#include "trainer/ops/update.h"

#include <utility>
#include <vector>

#include "trainer/ops/element_rules.h"
#include "trainer/ops/step_blocks.h"
#include "trainer/ops/step_parameters.h"

namespace fsdp {
namespace {

constexpr std::initializer_list<DType> kKept = {DType::kFloat32, DType::kBFloat16};

}  // namespace

void CheckUpdate(const Arguments& args, const UpdateOperands& o,
                 std::initializer_list<const char*> states) {
  args.CheckDType("p", o.p.dtype, kKept);
  args.CheckRank("p", o.p, o.p.dtype, 1);
  const Shape& shape = o.p.shape;
  args.Check("coefficient", o.coefficient, DType::kFloat32, {1});
  args.CheckGradient("g", o.g, shape);
  std::vector<std::pair<const char*, ConstView>> tensors = {{"p", o.p}};
  const View* state = o.states;
  for (const char* name : states) {
    args.CheckDType(name, state->dtype, kKept);
    args.Check(name, *state, o.states[0].dtype, shape);
    tensors.emplace_back(name, *state++);
  }
  tensors.emplace_back("g", o.g);
  const UpdateExtras& extras = o.extras;
  if (extras.copy.data != nullptr) {
    args.CheckDType("copy", extras.copy.dtype, kFloatDTypes);
    args.Check("copy", extras.copy, extras.copy.dtype, shape);
    tensors.emplace_back("copy", extras.copy);
  }
  if (extras.average.data != nullptr) {
    args.Check("average", extras.average, DType::kFloat32, shape);
    args.Require(extras.decay >= 0 && extras.decay < 1, "decay, want in [0, 1)");
    tensors.emplace_back("average", extras.average);
  }
  for (size_t a = 0; a < tensors.size(); ++a) {
    for (size_t b = a + 1; b < tensors.size(); ++b) {
      args.CheckDisjoint(tensors[a].first, tensors[a].second, tensors[b].first, tensors[b].second);
    }
  }
  CheckRuleTable(args, o.rules);
  args.Check("factors", o.factors, DType::kUInt8, BlockShape<UpdateFactors>());
}

Operation UpdateOperation(const char* op, const UpdateOperands& o, double flops) {
  Operation operation{op, {o.rules, o.factors, o.coefficient, o.g}, {o.p}, {}};
  if (o.extras.average.data != nullptr) flops += 3;
  Cost cost{.flops = flops * static_cast<double>(o.p.NumElements())};
  for (const ConstView& view : {o.rules, o.factors, o.coefficient, o.g}) {
    cost.bytes_read += static_cast<double>(view.bytes());
  }
  for (const View& view : {o.p, o.states[0], o.states[1], o.extras.average, o.extras.copy}) {
    if (view.data == nullptr) continue;
    const double bytes = static_cast<double>(view.bytes());
    if (view.data != o.extras.copy.data) cost.bytes_read += bytes;
    cost.bytes_written += bytes;
    if (view.data != o.p.data) operation.writes.push_back(view);
  }
  operation.costs = {{cost, {.launches = o.p.NumElements() > 0}}};
  return operation;
}

}  // namespace fsdp
