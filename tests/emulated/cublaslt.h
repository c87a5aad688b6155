// cuBLASLt without CUDA: its calls, checked as its documentation says, and computed by kernels of
// ours (trainer/ops/cuda/gemm/gemm.h) on the emulator.
//
// It refuses leading dimensions below what they lead; types of which it has no product; a GELU
// whose aux has a leading dimension that is no multiple of 8; a missing bias or aux; matrices that
// do not begin at the multiples that the algorithm was chosen for; a workspace that is smaller than
// the algorithm's, or begins at no multiple of 256; an algorithm of another product or of another
// number of multiprocessors, and more of these than the GPU has. Destroying
// an object twice, or using a destroyed one, ends the program. A workspace's contents are
// overwritten. GELU is that of the unrounded sum, as in the real library.
#ifndef FSDP_TRAIN_TESTS_EMULATED_CUBLASLT_H_
#define FSDP_TRAIN_TESTS_EMULATED_CUBLASLT_H_

#include <cublasLt.h>

#include <cstdint>
#include <vector>

namespace fsdp {

// A product as matrices are stored, column by column: op(A)[m, k] op(B)[k, n].
struct EmulatedMatmul {
  int64_t m, n, k;
  cublasLtEpilogue_t epilogue;
  bool adds;
  int algorithm;  // Three: without workspace; split along k, through the workspace; in place.
  int multiprocessors = 0;  // Those that it was told to run on; 0: all.
};

// Products since the last call, in the whole process.
std::vector<EmulatedMatmul> TakeEmulatedMatmuls();

// Descriptors, layouts and preferences of the whole process that have not been destroyed.
int64_t LiveEmulatedDescriptors();

// From now on refuses epilogues other than the default and the bias, as the library does at some
// sizes.
void RefuseEmulatedActivations(bool refuse);
// Offers one of the three algorithms, but refuses it when it is called. -1: none.
void RefuseEmulatedAlgorithm(int algorithm);
// The next product returns this status.
void FailNextEmulatedMatmul(cublasStatus_t status);
// Simulates a GPU that has been idle: its next `calls` calls take `ms` longer. From now on the
// first algorithm is the fastest, and the others take a third of `ms` longer. 0, 0: undoes it.
void CoolEmulatedClock(int calls, int ms);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TESTS_EMULATED_CUBLASLT_H_
