#include "trainer/ops/cpu/quantized_layout_cpu.h"

#include <algorithm>

namespace fsdp {

void WriteQuantizedRowsCpu(ThreadPool&, const std::vector<QuantizedRow>& rows, const View& table) {
  std::ranges::copy(rows, table.As<QuantizedRow>());
}

}  // namespace fsdp
