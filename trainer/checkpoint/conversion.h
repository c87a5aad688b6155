// Conversion of a checkpoint's states for a run that keeps them in other dtypes.
#ifndef FSDP_TRAIN_TRAINER_CHECKPOINT_CONVERSION_H_
#define FSDP_TRAIN_TRAINER_CHECKPOINT_CONVERSION_H_

#include <string>
#include <vector>

#include "trainer/checkpoint/manifest.h"
#include "trainer/checkpoint/state_format.h"
#include "trainer/core/dtype.h"
#include "trainer/fsdp/layout.h"

namespace fsdp {

// Whether values may be read as `wanted`: unchanged, widened exactly from bf16 or fp16 to fp32, or
// rounded to nearest from fp32 to bf16.
bool CanConvert(DType stored, DType wanted);

// One line about the states whose dtypes in the checkpoint `there` differ from the run's, `here`:
// "master and m from fp32 to bf16, rounded to nearest; ema from bf16 to fp32, exactly". Compares by
// parameter and tensor; a state that differs in part is "some of master". Empty where nothing
// differs. States that only one side has do not count.
std::string DescribeConversion(const Manifest& there, const Layout& layout,
                               const std::vector<StateFormat>& here);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_CHECKPOINT_CONVERSION_H_
