#ifndef FSDP_TRAIN_TRAINER_OPS_CPU_CONVOLUTION_CPU_H_
#define FSDP_TRAIN_TRAINER_OPS_CPU_CONVOLUTION_CPU_H_

#include <optional>

#include "trainer/core/view.h"
#include "trainer/ops/convolution_shape.h"
#include "trainer/runtime/thread_pool.h"

namespace fsdp {

void ConvolutionForwardCpu(ThreadPool& pool, const ConvolutionShape& shape, const ConstView& x,
                           const ConstView& w, const View& y, const View& workspace);
void ConvolutionBackwardCpu(ThreadPool& pool, const ConvolutionShape& shape, const ConstView& x,
                            const ConstView& w, const ConstView& dy, const std::optional<View>& dx,
                            const std::optional<View>& dw, const View& workspace);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CPU_CONVOLUTION_CPU_H_
