// Kernels that are compiled once for each instruction set, from one source: see kernel_library in
// //tools/bazel:kernels.bzl. Such a source, x_kernels.cc, defines a table of functions,
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

// Whether this process's kind of kernels (kinds.h) has AVX-512 (x86-64-v4).
bool UseAvx512();

// Whether it has AVX512_BF16, too. No result depends on it.
bool UseAvx512Bf16();

template <typename Kernels>
const Kernels& ForThisCpu(const Kernels& avx2, const Kernels& avx512) {
  return UseAvx512() ? avx512 : avx2;
}

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_CPU_ISA_H_
