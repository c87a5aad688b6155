#ifndef FSDP_TRAIN_TRAINER_OPS_CUDA_TABLE_ROWS_CUDA_H_
#define FSDP_TRAIN_TRAINER_OPS_CUDA_TABLE_ROWS_CUDA_H_

#include "trainer/core/view.h"
#include "trainer/ops/row_order.h"
#include "trainer/runtime/cuda_stream_handle.h"

namespace fsdp {

[[gnu::weak]] void TakeRowsCuda(CudaStreamHandle stream, const ConstView& from,
                                const ConstView& places, const View& to);
[[gnu::weak]] void PutRowsCuda(CudaStreamHandle stream, const ConstView& from,
                               const ConstView& places, const View& to);
[[gnu::weak]] void PlacesOfRoundCuda(CudaStreamHandle stream, const ExchangeRound& round,
                                     const ConstView& rows, const ConstView& owners,
                                     const View& places, const View& ids);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CUDA_TABLE_ROWS_CUDA_H_
