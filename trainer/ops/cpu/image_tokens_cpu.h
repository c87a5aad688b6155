#ifndef FSDP_TRAIN_TRAINER_OPS_CPU_IMAGE_TOKENS_CPU_H_
#define FSDP_TRAIN_TRAINER_OPS_CPU_IMAGE_TOKENS_CPU_H_

#include <cstdint>
#include <optional>

#include "trainer/core/view.h"
#include "trainer/ops/patch_order.h"
#include "trainer/runtime/thread_pool.h"

namespace fsdp {

void CutPatchesCpu(ThreadPool& pool, const ConstView& pixels, int64_t patch, PatchOrder order,
                   const View& patches);
void JoinTokensForwardCpu(ThreadPool& pool, const ConstView& x, const ConstView& first,
                          const ConstView& positions, int64_t samples, const View& y);
void JoinTokensBackwardCpu(ThreadPool& pool, const ConstView& dy, int64_t samples, const View& dx,
                           const std::optional<View>& dfirst,
                           const std::optional<View>& dpositions);
void FirstTokensForwardCpu(ThreadPool& pool, const ConstView& x, const View& y);
void FirstTokensBackwardCpu(ThreadPool& pool, const ConstView& dy, const View& dx);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CPU_IMAGE_TOKENS_CPU_H_
