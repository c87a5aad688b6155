#include "trainer/ops/element_ranges.h"

#include <string>

namespace fsdp {

void CheckRanges(const Arguments& args, const std::vector<ElementRange>& ranges, int64_t n) {
  int64_t last = 0;
  for (const ElementRange& range : ranges) {
    if (range.begin < last || range.end < range.begin || range.end > n) {
      args.Fail("decay range [" + std::to_string(range.begin) + ", " + std::to_string(range.end) +
                ") is not in order inside [" + std::to_string(last) + ", " + std::to_string(n) +
                ")");
    }
    last = range.end;
  }
}

}  // namespace fsdp
