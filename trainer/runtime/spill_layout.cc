#include "trainer/runtime/spill_layout.h"

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <string>

namespace fsdp {

SpillLayout LayOutSpill(std::span<const SpillTensor> tensors) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max() / kSpillAlignment * kSpillAlignment;
  int units = 0;
  std::vector<size_t> order(tensors.size());
  for (size_t t = 0; t < tensors.size(); ++t) {
    if (tensors[t].unit < 0 || tensors[t].bytes < 0) {
      throw std::invalid_argument("[LayOutSpill] tensor " + std::to_string(t) + " is of unit " +
                                  std::to_string(tensors[t].unit) + " and has " +
                                  std::to_string(tensors[t].bytes) + " bytes");
    }
    units = std::max(units, tensors[t].unit + 1);
    order[t] = t;
  }
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return tensors[a].unit < tensors[b].unit; });
  SpillLayout layout;
  layout.offsets.resize(tensors.size());
  layout.units.resize(units);
  auto next = order.begin();
  for (int unit = 0; unit < units; ++unit) {
    layout.units[unit].begin = layout.bytes;
    for (; next != order.end() && tensors[*next].unit == unit; ++next) {
      const int64_t bytes = tensors[*next].bytes;
      if (bytes > kMost - layout.bytes) throw std::invalid_argument("[LayOutSpill] too many bytes");
      layout.offsets[*next] = layout.bytes;
      layout.bytes += (bytes + kSpillAlignment - 1) / kSpillAlignment * kSpillAlignment;
    }
    layout.units[unit].end = layout.bytes;
  }
  return layout;
}

}  // namespace fsdp
