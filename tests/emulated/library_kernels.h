#ifndef FSDP_TRAIN_TESTS_EMULATED_LIBRARY_KERNELS_H_
#define FSDP_TRAIN_TESTS_EMULATED_LIBRARY_KERNELS_H_

namespace fsdp {

// y[b] = x[b] + x[b], by blocks that add to a __shared__ variable; `clears`: to 0, as they must.
void TwiceByBlocks(const float* x, int n, bool clears, float* y);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TESTS_EMULATED_LIBRARY_KERNELS_H_
