#include "trainer/ops/cpu/isa.h"

#include <cstdlib>
#include <cstring>

namespace fsdp {

bool UseAvx512() {
  static const bool use = [] {
    const char* wanted = std::getenv("FSDP_TRAIN_ISA");
    if (wanted != nullptr && std::strcmp(wanted, "avx2") == 0) return false;
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512cd");
  }();
  return use;
}

const char* IsaName() { return UseAvx512() ? "avx512" : "avx2"; }

}  // namespace fsdp
