#include "trainer/ops/class_loss.h"

#include <utility>

#include "trainer/ops/arguments.h"
#include "trainer/ops/cpu/class_loss_cpu.h"
#include "trainer/ops/cuda/class_loss_cuda.h"
#include "trainer/ops/logit_loss.h"

namespace fsdp {
namespace {

void Enqueue(const char* name, Stream& stream, const LogitLoss& loss) {
  const int64_t rows = loss.z.shape.rank() > 0 ? loss.z.shape[0] : 0;
  Operation operation = LogitLossOperation({.name = name,
                                            .rank = 2,
                                            .targets = DType::kInt32,
                                            .workspace_bytes = ClassLossWorkspaceBytes(rows),
                                            .flops = 4,
                                            .reads_again = true},
                                           loss);
  Arguments(name).Require(loss.z.shape[1] > 0, "z has no columns");
  operation.kernels = {.cpu = OnCpu(ClassLossCpu, loss), .cuda = OnCuda(ClassLossCuda, loss)};
  stream.Enqueue(std::move(operation));
}

}  // namespace

int64_t ClassLossWorkspaceBytes(int64_t rows) { return rows * int64_t{sizeof(double)}; }

void ClassLossForward(Stream& stream, ConstView z, ConstView targets, ConstView weights,
                      float scale, View loss, View workspace) {
  Enqueue("class_loss_forward", stream,
          {z, targets, weights, scale, std::nullopt, loss, std::nullopt, workspace});
}

void ClassLossForwardBackward(Stream& stream, ConstView z, ConstView targets, ConstView weights,
                              float scale, const std::optional<ConstView>& loss_scale, View loss,
                              View dz, View workspace) {
  Enqueue("class_loss_forward_backward", stream,
          {z, targets, weights, scale, loss_scale, loss, dz, workspace});
}

}  // namespace fsdp
