// Which build this is. Depend on it narrowly: it changes with every commit.
#ifndef FSDP_TRAIN_TRAINER_OBSERVE_BUILD_INFO_H_
#define FSDP_TRAIN_TRAINER_OBSERVE_BUILD_INFO_H_

#include <string_view>

namespace fsdp {

std::string_view BuildVersion();   // "0.1.0".
std::string_view BuildGitHash();   // 40 hex digits, "-dirty" behind them for a changed tree; or
                                   // "unknown" for a build outside a git checkout.
std::string_view BuildCompiler();  // "gcc 12.2.0".
std::string_view BuildCuda();      // "CUDA 13.0.88: sm_80 sm_90a", by and for what its
                                   // kernels were compiled; empty where it has none.

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OBSERVE_BUILD_INFO_H_
