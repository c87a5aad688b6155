// Which elements of a flat shard an optimizer decays: host data, fixed by the layout.
#ifndef FSDP_TRAIN_TRAINER_OPS_ELEMENT_RANGES_H_
#define FSDP_TRAIN_TRAINER_OPS_ELEMENT_RANGES_H_

#include <cstdint>
#include <vector>

#include "trainer/ops/arguments.h"

namespace fsdp {

struct ElementRange {  // [begin, end).
  int64_t begin = 0, end = 0;
};

// Throws unless the ranges are ascending, apart (touching is fine) and inside [0, n).
void CheckRanges(const Arguments& args, const std::vector<ElementRange>& ranges, int64_t n);

// Calls body(begin, end, inside) for the runs of [begin, end) inside and outside the ranges, in
// order; no run is empty.
template <typename Body>
void ForEachRun(const std::vector<ElementRange>& ranges, int64_t begin, int64_t end,
                const Body& body) {
  for (const ElementRange& range : ranges) {
    if (range.end <= begin || range.begin == range.end) continue;
    if (range.begin >= end) break;
    if (begin < range.begin) body(begin, range.begin, false);
    begin = begin < range.begin ? range.begin : begin;
    const int64_t stop = range.end < end ? range.end : end;
    body(begin, stop, true);
    begin = stop;
  }
  if (begin < end) body(begin, end, false);
}

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_ELEMENT_RANGES_H_
