#include "trainer/ops/binary_loss.h"

#include <utility>

#include "trainer/ops/arguments.h"
#include "trainer/ops/cpu/binary_loss_cpu.h"
#include "trainer/ops/cuda/binary_loss_cuda.h"
#include "trainer/ops/logit_loss.h"
#include "trainer/ops/loss_groups.h"

namespace fsdp {
namespace {

void Enqueue(const char* name, Stream& stream, const LogitLoss& loss) {
  const int64_t rows = loss.z.shape.rank() > 0 ? loss.z.shape[0] : 0;
  Operation operation = LogitLossOperation({.name = name,
                                            .rank = 1,
                                            .targets = DType::kFloat32,
                                            .workspace_bytes = BinaryLossWorkspaceBytes(rows),
                                            .flops = 40,
                                            .reads_again = false},
                                           loss);
  operation.kernels = {.cpu = OnCpu(BinaryLossCpu, loss), .cuda = OnCuda(BinaryLossCuda, loss)};
  stream.Enqueue(std::move(operation));
}

}  // namespace

int64_t BinaryLossWorkspaceBytes(int64_t rows) {
  return LossGroups(rows) * int64_t{sizeof(double)};
}

void BinaryLossForward(Stream& stream, ConstView z, ConstView targets, ConstView weights,
                       float scale, View loss, View workspace) {
  Enqueue("binary_loss_forward", stream,
          {z, targets, weights, scale, std::nullopt, loss, std::nullopt, workspace});
}

void BinaryLossForwardBackward(Stream& stream, ConstView z, ConstView targets, ConstView weights,
                               float scale, const std::optional<ConstView>& loss_scale, View loss,
                               View dz, View workspace) {
  Enqueue("binary_loss_forward_backward", stream,
          {z, targets, weights, scale, loss_scale, loss, dz, workspace});
}

void SumOfTargets(Stream& stream, ConstView targets, ConstView weights, View sum, View workspace) {
  constexpr const char* kOp = "sum_of_targets";
  const Arguments args(kOp);
  args.CheckRank("targets", targets, DType::kFloat32, 1);
  const int64_t rows = targets.shape[0], bytes = BinaryLossWorkspaceBytes(rows);
  args.Check("weights", weights, DType::kFloat32, {rows});
  args.Check("sum", sum, DType::kFloat32, {1});
  args.CheckWorkspace(workspace, bytes);
  args.Require(reinterpret_cast<uintptr_t>(workspace.data) % alignof(double) == 0,
               "workspace does not start at a multiple of 8");
  args.CheckDisjoint("sum", sum, "targets", targets);
  args.CheckDisjoint("sum", sum, "weights", weights);
  args.CheckDisjoint("workspace", workspace, "targets", targets);
  args.CheckDisjoint("workspace", workspace, "weights", weights);
  args.CheckDisjoint("workspace", workspace, "sum", sum);
  const Cost cost{
      .flops = 2 * static_cast<double>(rows),
      .bytes_read = static_cast<double>(targets.bytes() + weights.bytes() + sum.bytes()),
      .bytes_written = static_cast<double>(sum.bytes())};
  const OnGpu on_gpu{.launches = (rows > 0 ? 1 : 0) + 1,
                     .extra_bytes = 2 * static_cast<double>(bytes)};
  DeviceKernels kernels{.cpu = OnCpu(SumOfTargetsCpu, targets, weights, sum, workspace),
                        .cuda = OnCuda(SumOfTargetsCuda, targets, weights, sum, workspace)};
  stream.Enqueue({kOp, {targets, weights}, {sum, workspace}, {{cost, on_gpu}}, std::move(kernels)});
}

}  // namespace fsdp
