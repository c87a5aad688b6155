// Tensors of a checkpoint as a safetensors file for others.
// Tests: tests/trainer/weights/hf_export_test.cc
#ifndef FSDP_TRAIN_TRAINER_WEIGHTS_HF_TENSOR_FILE_H_
#define FSDP_TRAIN_TRAINER_WEIGHTS_HF_TENSOR_FILE_H_

#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "trainer/core/dtype.h"
#include "trainer/weights/hf_tensors.h"
#include "trainer/weights/merged_weights.h"

namespace fsdp {

// Writes these tensors, each whole, in their order, to the file `path`, in `dtype`: fp32, bf16 or
// fp16; buffers in their own. Values are rounded to nearest, even; a value too large for the dtype
// is refused. `wrote` is called with bytes of tensors as they are written. Holds 8 MiB of elements.
// Throws CheckpointError.
void WriteHfTensors(const std::string& path, std::span<const HfTensors::Tensor> tensors,
                    DType dtype, MergedWeights& weights,
                    const std::function<void(int64_t bytes)>& wrote);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_WEIGHTS_HF_TENSOR_FILE_H_
