#include "trainer/nn/flops.h"

namespace fsdp {

double DecoderFlopsPerToken(const std::vector<ModelSegment>& segments, const Shape& head,
                            int64_t query_size, int64_t seq) {
  double weights = static_cast<double>(head.NumElements());
  int64_t layers = 0;
  for (const ModelSegment& segment : segments) {
    if (!segment.is_block) continue;
    ++layers;
    for (const Parameter* p : segment.parameters) {
      if (p->shape().rank() == 2) weights += static_cast<double>(p->shape().NumElements());
    }
  }
  return 6 * weights + 6.0 * static_cast<double>(layers * query_size * seq);
}

}  // namespace fsdp
