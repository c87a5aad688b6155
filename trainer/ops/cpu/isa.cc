#include "trainer/ops/cpu/isa.h"

#include "trainer/ops/cpu/kinds.h"

namespace fsdp {

bool UseAvx512() {
  static const bool use = ThisIsa().isa >= Isa::kAvx512;
  return use;
}

bool UseAvx512Bf16() {
  static const bool use = ThisIsa().isa >= Isa::kAvx512Bf16;
  return use;
}

}  // namespace fsdp
