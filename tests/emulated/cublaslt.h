// cuBLASLt without CUDA: its calls, checked as its documentation has them, computed by kernels of
// ours (trainer/ops/cuda/gemm.h) on the emulator.
//
// It refuses: leading dimensions below what they lead; types of which it has no product; a GELU
// whose aux has a leading dimension that is no multiple of 8; a bias or aux that is not given,
// matrices that do not begin at multiples of what the algorithm was chosen for; a workspace that
// is smaller than the algorithm's, or begins at no multiple of 256; an algorithm of another
// product. Whatever is destroyed twice, or used then, ends the program. A workspace holds nothing
// of use, and is overwritten. Not of the real one: its GELU is that of the sum as it was rounded.
#ifndef FSDP_TRAIN_TESTS_EMULATED_CUBLASLT_H_
#define FSDP_TRAIN_TESTS_EMULATED_CUBLASLT_H_

#include <cublasLt.h>

#include <cstdint>
#include <vector>

namespace fsdp {

// Of a matrix as it is stored, column by column, the product being op(A)[m, k] op(B)[k, n].
struct EmulatedMatmul {
  int64_t m, n, k;
  cublasLtEpilogue_t epilogue;
  bool adds;
  int algorithm;  // Of three: without workspace; split along k, through the workspace; in place.
};

// Since the last call, of the whole process.
std::vector<EmulatedMatmul> TakeEmulatedMatmuls();

// Descriptors, layouts and preferences that have not been destroyed, of the whole process.
int64_t LiveEmulatedDescriptors();

// Epilogues other than the default and the bias are refused from now on, as those of some sizes
// are.
void RefuseEmulatedActivations(bool refuse);
// One of the three is refused when it is called, though it was offered. -1: none.
void RefuseEmulatedAlgorithm(int algorithm);
// What the next product returns.
void FailNextEmulatedMatmul(cublasStatus_t status);
// A GPU that has been idle: its next calls take so much longer. From now on the first algorithm is
// the fastest, the others take a third of that longer. 0, 0: as it was.
void CoolEmulatedClock(int calls, int ms);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TESTS_EMULATED_CUBLASLT_H_
