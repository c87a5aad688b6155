#include "trainer/ops/cpu/isa.h"

#include <cstdlib>
#include <cstring>

namespace fsdp {

namespace {

bool Wanted(const char* isa) {
  const char* wanted = std::getenv("FSDP_TRAIN_ISA");
  return wanted != nullptr && std::strcmp(wanted, isa) == 0;
}

}  // namespace

bool UseAvx512() {
  static const bool use = [] {
    if (Wanted("avx2")) return false;
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512cd");
  }();
  return use;
}

bool UseAvx512Bf16() {
  static const bool use = UseAvx512() && !Wanted("avx512") && __builtin_cpu_supports("avx512bf16");
  return use;
}

const char* IsaName() { return UseAvx512() ? "avx512" : "avx2"; }

}  // namespace fsdp
