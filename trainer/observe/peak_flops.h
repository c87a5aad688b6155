// The most FLOP/s of a GPU: the divisor of MFU.
#ifndef FSDP_TRAIN_TRAINER_OBSERVE_PEAK_FLOPS_H_
#define FSDP_TRAIN_TRAINER_OBSERVE_PEAK_FLOPS_H_

#include <optional>
#include <string_view>

#include "trainer/core/dtype.h"

namespace fsdp {

// FLOP/s of dense matrix products with factors of this dtype and sums in fp32, as the vendor states
// it for the GPU of this name (cudaDeviceProp::name). fp32 is that of FMAs: no TF32. Empty where
// the table does not have the GPU, or not the dtype.
std::optional<double> PeakFlops(std::string_view gpu, DType dtype);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OBSERVE_PEAK_FLOPS_H_
