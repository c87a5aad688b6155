// Kernels that are compiled once for each instruction set, from one source: see kernel_library in
// //tools/bazel:op.bzl. Such a source, x_kernels.cc, defines a table of functions,
//
//   const XKernels FSDP_ISA(kX) = {...};
//
// declared in x_kernels.h as `extern const XKernels kXAvx2, kXAvx512;`. Callers choose the table by
// ForThisCpu(kXAvx2, kXAvx512). A table's functions call only functions that are in unnamed
// namespaces or always inlined: the linker keeps one of several copies of an inline function, and
// that one must run everywhere (tests/trainer/ops/isa_test.py checks).
// Tests: tests/trainer/ops/gemm_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPS_CPU_ISA_H_
#define FSDP_TRAIN_TRAINER_OPS_CPU_ISA_H_

#ifdef __AVX512F__
#define FSDP_ISA(name) name##Avx512
#else
#define FSDP_ISA(name) name##Avx2
#endif

namespace fsdp {

// Whether the processor has AVX-512 (x86-64-v4) and FSDP_TRAIN_ISA is not "avx2".
bool UseAvx512();

// Whether the processor has AVX512_BF16, too, and FSDP_TRAIN_ISA is neither "avx2" nor "avx512". No
// result depends on it.
bool UseAvx512Bf16();

// "avx512" or "avx2": for a run's provenance.
const char* IsaName();

template <typename Kernels>
const Kernels& ForThisCpu(const Kernels& avx2, const Kernels& avx512) {
  return UseAvx512() ? avx512 : avx2;
}

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CPU_ISA_H_
