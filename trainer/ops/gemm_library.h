// Matrix products by a library found when the program runs: behind Gemm() (cuda/gemm.h), on streams
// that have been given one (Stream::Lend() of GemmResources).
// Tests: tests/trainer/engine/launches_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPS_GEMM_LIBRARY_H_
#define FSDP_TRAIN_TRAINER_OPS_GEMM_LIBRARY_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "trainer/core/dtype.h"
#include "trainer/ops/gemm_operand.h"
#include "trainer/runtime/cost.h"
#include "trainer/runtime/cuda_stream.h"

namespace fsdp {

// What an algorithm is chosen for. Strides, a scale and what is added choose no other.
struct GemmShape {
  int64_t m = 0, n = 0, k = 0;
  bool a_transposed = false, b_transposed = false;
  DType dtype = DType::kFloat32, result = DType::kFloat32;  // Of A and B; of C.
  bool bias = false;
  Product::Activation activation = Product::Activation::kNone;

  bool operator==(const GemmShape&) const = default;
  std::string Text() const;  // "8192x4864x896 nt bf16 to bf16, bias, gelu": no two have the same.
};

GemmShape ShapeOf(const Product& product);
GemmShape ShapeOf(int64_t m, int64_t n, int64_t k, const GemmOperand& a, const GemmOperand& b,
                  const GemmResult& c, const GemmEpilogue& epilogue);

// Whether a library leaves this activation to a kernel of ours behind the product, whatever the
// shape: so does a deterministic one with GELU, of which its own would be that of the unrounded
// sum.
bool LeavesActivation(Product::Activation activation, bool deterministic);
// What a kernel that states `kernel` comes to where such a library multiplies, of matrices whose
// rows begin at packs.
OnGpu OnGpuByLibrary(const KernelCost& kernel, bool deterministic);

// Of one version of the library, on one kind of GPU.
struct GemmAlgorithm {
  std::array<uint64_t, 8> data{};  // cublasLtMatmulAlgo_t, "trivially serialized" by its header.
  int64_t workspace = 0;           // Bytes.

  bool operator==(const GemmAlgorithm&) const = default;
};

// One thread calls at a time. Throws DeviceError where a call fails that should not.
class GemmLibrary {
 public:
  virtual ~GemmLibrary() = default;

  // Enqueues what Gemm() says and returns true, or nothing and false: A and B of two dtypes, a bias
  // of another dtype than C's, a bias or what is added beside gelu_of, rows that do not begin at
  // multiples of 16 bytes (with an activation of 8 elements), k = 0, and what the library has no
  // algorithm for, or refuses when it comes to it. Sums are fp32, in an order that the algorithm
  // decides; TF32 is not asked for.
  //   gelu     In one kernel with the product it is that of the sum as it was before rounding: not
  //            to the bit what gelu.h makes of u. Deterministic libraries do not do that.
  //   gelu_of  Where the library refuses it, the product is rounded before it is multiplied by
  //            gelu'(u), too.
  virtual bool Multiply(const CudaStreamHandle& stream, int64_t m, int64_t n, int64_t k,
                        const GemmOperand& a, const GemmOperand& b, const GemmResult& c,
                        const GemmEpilogue& epilogue) = 0;

  // The product of the library that such a one is computed by: itself, or without its activation,
  // which is then a kernel of ours. Null: none.
  virtual std::optional<GemmShape> Resolve(const GemmShape& shape) = 0;

  // For a shape that Resolve() gives: what the library expects to be the fastest, the best first,
  // `most` at most, with workspaces of at most kGemmWorkspaceBytes.
  virtual std::vector<GemmAlgorithm> Candidates(const GemmShape& shape, int most) = 0;
  // From here on for this shape; without, the first candidate. False, and nothing is changed, where
  // the library does not know it as one for this shape.
  virtual bool Use(const GemmShape& shape, const GemmAlgorithm& algorithm) = 0;

  // What it has multiplied so far, and what Use() was called for.
  struct Usage {
    GemmShape shape;
    bool chosen = false;
    int64_t calls = 0;
  };
  virtual std::vector<Usage> Usages() const = 0;
  // The shapes that it has refused and not taken since, and why: for people, a line each.
  virtual std::vector<std::string> Refusals() const = 0;
};

// A stream's means of matrix products. Without a library they are kernels of ours.
struct GemmResources final : StreamResources {
  GemmResources() = default;
  GemmResources(GemmLibrary* l, std::byte* w) : library(l), workspace(w) {}

  GemmLibrary* library = nullptr;
  // kGemmWorkspaceBytes, of the stream alone, at a multiple of 256.
  std::byte* workspace = nullptr;
};
inline constexpr int64_t kGemmWorkspaceBytes = int64_t{32} << 20;

// Those of the stream: nothing else is lent to one that multiplies.
inline GemmResources GemmOf(const CudaStreamHandle& stream) {
  const auto* const lent = static_cast<const GemmResources*>(stream.resources);
  return lent == nullptr ? GemmResources() : *lent;
}

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_GEMM_LIBRARY_H_
