#ifndef FSDP_TRAIN_TESTS_EMULATED_LIBRARY_KERNELS_H_
#define FSDP_TRAIN_TESTS_EMULATED_LIBRARY_KERNELS_H_

namespace fsdp {

// y[b] = x[b] + x[b]. Each block adds to a __shared__ variable; `clears`: it first sets it to 0, as
// it must.
void TwiceByBlocks(const float* x, int n, bool clears, float* y);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TESTS_EMULATED_LIBRARY_KERNELS_H_
