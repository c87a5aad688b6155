#ifndef FSDP_TRAIN_TRAINER_OPS_CUDA_ROW_ADAGRAD_CUDA_H_
#define FSDP_TRAIN_TRAINER_OPS_CUDA_ROW_ADAGRAD_CUDA_H_

#include "trainer/ops/row_adagrad_operands.h"
#include "trainer/runtime/cuda_stream_handle.h"

namespace fsdp {

[[gnu::weak]] void RowAdagradCuda(CudaStreamHandle stream, const RowAdagradOptions& options,
                                  const RowAdagradOperands& operands);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CUDA_ROW_ADAGRAD_CUDA_H_
