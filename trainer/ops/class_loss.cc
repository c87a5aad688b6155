#include "trainer/ops/class_loss.h"

#include <utility>

#include "trainer/ops/arguments.h"
#include "trainer/ops/cpu/class_loss_cpu.h"
#include "trainer/ops/cuda/class_loss_cuda.h"
#include "trainer/ops/logit_loss.h"

namespace fsdp {
namespace {

// `form`: name, FLOPs and sum.
void Enqueue(LogitLossForm form, Stream& stream, const LogitLoss& loss, CpuKernel cpu,
             CudaKernel cuda) {
  form.rank = 2;
  form.targets = DType::kInt32;
  form.workspace_bytes = ClassLossWorkspaceBytes(loss.z.shape.rank() > 0 ? loss.z.shape[0] : 0);
  form.reads_again = true;
  Operation operation = LogitLossOperation(form, loss);
  Arguments(form.name).Require(loss.z.shape[1] > 0, "z has no columns");
  operation.kernels = {.cpu = std::move(cpu), .cuda = std::move(cuda)};
  stream.Enqueue(std::move(operation));
}

void EnqueueLoss(const char* name, Stream& stream, const LogitLoss& loss) {
  Enqueue({.name = name, .flops = 4}, stream, loss, OnCpu(ClassLossCpu, loss),
          OnCuda(ClassLossCuda, loss));
}

}  // namespace

int64_t ClassLossWorkspaceBytes(int64_t rows) { return rows * int64_t{sizeof(double)}; }

void ClassLossForward(Stream& stream, ConstView z, ConstView targets, ConstView weights,
                      float scale, View loss, View workspace) {
  EnqueueLoss("class_loss_forward", stream,
              {z, targets, weights, scale, std::nullopt, loss, std::nullopt, workspace});
}

void ClassLossForwardBackward(Stream& stream, ConstView z, ConstView targets, ConstView weights,
                              float scale, const std::optional<ConstView>& loss_scale, View loss,
                              View dz, View workspace) {
  EnqueueLoss("class_loss_forward_backward", stream,
              {z, targets, weights, scale, loss_scale, loss, dz, workspace});
}

void CountCorrectClasses(Stream& stream, ConstView z, ConstView targets, ConstView weights,
                         View correct, View workspace) {
  const LogitLoss count{z, targets, weights, 1, std::nullopt, correct, std::nullopt, workspace};
  const LogitLossForm form{.name = "count_correct_classes", .flops = 2, .sum = "correct"};
  Enqueue(form, stream, count, OnCpu(CountCorrectClassesCpu, count),
          OnCuda(CountCorrectClassesCuda, count));
}

}  // namespace fsdp
