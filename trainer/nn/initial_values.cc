#include "trainer/nn/initial_values.h"

#include <algorithm>

#include "trainer/core/philox.h"

namespace fsdp {

void FillInitial(const Parameter& parameter, uint64_t seed, int64_t begin,
                 std::span<float> values) {
  for (const SlicePiece& piece :
       SlicePieces(parameter, begin, static_cast<int64_t>(values.size()))) {
    const Init& init = piece.slice->init;
    const std::span<float> part = values.subspan(piece.at, piece.count);
    if (init.stddev == 0) {
      std::fill(part.begin(), part.end(), init.constant);
      continue;
    }
    const RandomStream random(seed, piece.slice->name);
    for (int64_t i = 0; i < piece.count; ++i) {
      part[i] = init.constant + init.stddev * random.Normal(piece.begin + i);
    }
  }
}

}  // namespace fsdp
