// How fast a product can be for its shape: tiles that a GPU works on at once, in waves.
#ifndef FSDP_TRAIN_TRAINER_BENCH_PRODUCT_WAVES_H_
#define FSDP_TRAIN_TRAINER_BENCH_PRODUCT_WAVES_H_

#include <cstdint>

#include "trainer/runtime/cost.h"

namespace fsdp {

// FLOP/s of this product on a GPU that reaches `rate` for 8192 x 8192 x 8192, and no more than
// that. A multiprocessor has one tile of 128 x 256 at a time, whichever way round; the last wave
// takes as long as the others, and a tile's begin and end as long as 192 terms of its sums. The 192
// are assumed: [16384, 896] by [896, 896] then comes to 589 of 798 TFLOP/s, where 550 to 680 are
// usual. Where k is long up to 16 multiprocessors may share a tile, each with at least 512 terms.
double ProductRateInWaves(const Product& product, double rate, int64_t multiprocessors);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_BENCH_PRODUCT_WAVES_H_
