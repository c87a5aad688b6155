#include "trainer/ops/binary_loss.h"

#include <utility>

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

}  // namespace fsdp
