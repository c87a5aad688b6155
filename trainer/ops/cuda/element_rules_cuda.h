#ifndef FSDP_TRAIN_TRAINER_OPS_CUDA_ELEMENT_RULES_CUDA_H_
#define FSDP_TRAIN_TRAINER_OPS_CUDA_ELEMENT_RULES_CUDA_H_

#include <vector>

#include "trainer/core/view.h"
#include "trainer/ops/element_rule.h"
#include "trainer/runtime/cuda_stream_handle.h"

namespace fsdp {

// The most rules of one launch, which are among its arguments.
inline constexpr int kRulesOfLaunch = 64;

[[gnu::weak]] void WriteRulesCuda(CudaStreamHandle stream, const std::vector<ElementRule>& rules,
                                  const View& table);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CUDA_ELEMENT_RULES_CUDA_H_
