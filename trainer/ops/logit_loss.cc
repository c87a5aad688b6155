#include "trainer/ops/logit_loss.h"

#include "trainer/ops/arguments.h"

namespace fsdp {

Operation LogitLossOperation(const LogitLossForm& form, const LogitLoss& l) {
  const Arguments args(form.name);
  args.CheckDType("z", l.z.dtype, kFloatDTypes);
  args.CheckRank("z", l.z, l.z.dtype, form.rank);
  const int64_t rows = l.z.shape[0];
  args.Check("targets", l.targets, form.targets, {rows});
  args.Check("weights", l.weights, DType::kFloat32, {rows});
  args.Check(form.sum, l.loss, DType::kFloat32, {1});
  args.CheckWorkspace(l.workspace, form.workspace_bytes);
  args.Require(reinterpret_cast<uintptr_t>(l.workspace.data) % alignof(double) == 0,
               "workspace does not start at a multiple of 8");
  Operation operation{.name = form.name,
                      .reads = {l.z, l.targets, l.weights},
                      .writes = {l.loss, l.workspace},
                      .costs = {}};
  if (l.loss_scale) {
    args.Check("loss_scale", *l.loss_scale, DType::kFloat32, {1});
    operation.reads.push_back(*l.loss_scale);
  }
  const auto check_result = [&](const char* name, const View& result) {
    args.CheckDisjoint(name, result, "targets", l.targets);
    args.CheckDisjoint(name, result, "weights", l.weights);
    if (l.loss_scale) args.CheckDisjoint(name, result, "loss_scale", *l.loss_scale);
  };
  check_result(form.sum, l.loss);
  check_result("workspace", l.workspace);
  args.CheckDisjoint(form.sum, l.loss, "z", l.z);
  args.CheckDisjoint("workspace", l.workspace, "z", l.z);
  args.CheckDisjoint("workspace", l.workspace, form.sum, l.loss);
  if (l.dz) {
    args.Check("dz", *l.dz, l.z.dtype, l.z.shape);
    check_result("dz", *l.dz);
    args.CheckSameOrDisjoint("dz", *l.dz, "z", l.z);
    args.CheckDisjoint("dz", *l.dz, form.sum, l.loss);
    args.CheckDisjoint("dz", *l.dz, "workspace", l.workspace);
    operation.writes.push_back(*l.dz);
  }
  const int64_t read = l.z.bytes() + l.targets.bytes() + l.weights.bytes() + l.loss.bytes();
  const Cost cost{
      .flops = form.flops * static_cast<double>(l.z.NumElements()),
      .bytes_read = static_cast<double>(read),
      .bytes_written = static_cast<double>(l.loss.bytes() + (l.dz ? l.dz->bytes() : 0))};
  const int64_t extra = 2 * form.workspace_bytes + (l.dz && form.reads_again ? l.z.bytes() : 0);
  operation.costs.emplace_back(
      cost, OnGpu{.launches = (rows > 0 ? 1 : 0) + 1, .extra_bytes = static_cast<double>(extra)});
  return operation;
}

}  // namespace fsdp
