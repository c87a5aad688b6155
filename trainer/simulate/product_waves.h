// How fast a product can be for its shape: tiles that a GPU works on at once, in waves.
#ifndef FSDP_TRAIN_TRAINER_SIMULATE_PRODUCT_WAVES_H_
#define FSDP_TRAIN_TRAINER_SIMULATE_PRODUCT_WAVES_H_

#include <cstdint>

#include "trainer/runtime/cost.h"

namespace fsdp {

// FLOP/s of this product on a GPU that reaches `rate` for huge ones, and no more than that. A
// multiprocessor has one tile at a time, of whichever size is best of 128 x 256 and smaller ones,
// which are less efficient; the last wave takes as long as the others, and a tile's begin and end
// as long as `tile_terms` terms of its sums. Where k is long up to 16 multiprocessors may share a
// tile, each with at least 256 terms; adding their sums takes as long as two begins more. Whole
// waves of 2,048 terms are as fast as any: there power is the limit.
//
// Held to what OpenXLA has measured: with the numbers of configs/hardware/ and a launch of each,
// half of 375 shapes are within 4 % on an H100, on a B200 too
// (tests/trainer/simulate/published_products_test).
// `at_once`: as many of them, which fill the waves together.
double ProductRateInWaves(const Product& product, double rate, int64_t multiprocessors,
                          int64_t tile_terms, int64_t at_once = 1);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_SIMULATE_PRODUCT_WAVES_H_
