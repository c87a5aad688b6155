// What a checkpoint's states become in a run that keeps them in other dtypes.
#ifndef FSDP_TRAIN_TRAINER_CHECKPOINT_CONVERSION_H_
#define FSDP_TRAIN_TRAINER_CHECKPOINT_CONVERSION_H_

#include <string>
#include <vector>

#include "trainer/checkpoint/manifest.h"
#include "trainer/checkpoint/state_format.h"
#include "trainer/core/dtype.h"
#include "trainer/fsdp/layout.h"

namespace fsdp {

// Whether values may be read as `wanted`: as they are, bf16 and fp16 widened to fp32, which is
// exact, and fp32 rounded to bf16, to nearest.
bool CanConvert(DType stored, DType wanted);

// One line of what differs, by parameter and tensor, from the states of the run whose layout this
// is: "master and m from fp32 to bf16, rounded to nearest; ema from bf16 to fp32, exactly". A state
// of which a part differs is "some of master". Empty where nothing does. States that the checkpoint
// lacks, or the run, do not count.
std::string DescribeConversion(const Manifest& there, const Layout& layout,
                               const std::vector<StateFormat>& here);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_CHECKPOINT_CONVERSION_H_
