// Matrix products by a library that is found when the program runs. Gemm() (cuda/gemm/gemm.h) uses
// it on streams that it has been lent to (Stream::Lend() of GemmResources).
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
#include "trainer/runtime/cuda_stream_handle.h"

namespace fsdp {

// The key of the choice of an algorithm. Strides, a scale and an added matrix do not change it.
struct GemmShape {
  int64_t m = 0, n = 0, k = 0;
  bool a_transposed = false, b_transposed = false;
  DType dtype = DType::kFloat32, result = DType::kFloat32;  // Dtypes of A and B; of C.
  bool bias = false;
  Product::Activation activation = Product::Activation::kNone;

  bool operator==(const GemmShape&) const = default;
  std::string Text() const;  // "8192x4864x896 nt bf16 to bf16, bias, gelu": no two have the same.
};

GemmShape ShapeOf(const Product& product);
GemmShape ShapeOf(int64_t m, int64_t n, int64_t k, const GemmOperand& a, const GemmOperand& b,
                  const GemmResult& c, const GemmEpilogue& epilogue);

// Whether a library leaves this activation to a kernel of ours behind the product, whatever the
// shape. A deterministic library does so with GELU, because its own GELU is that of the unrounded
// sum.
bool LeavesActivation(Product::Activation activation, bool deterministic);
// The GPU part of the cost of a kernel that states `kernel`, where such a library multiplies
// matrices whose rows begin at packs.
OnGpu OnGpuByLibrary(const KernelCost& kernel, bool deterministic);

// Valid for one version of the library, on one kind of GPU.
struct GemmAlgorithm {
  std::array<uint64_t, 8> data{};  // cublasLtMatmulAlgo_t, "trivially serialized" by its header.
  int64_t workspace = 0;           // Bytes.

  bool operator==(const GemmAlgorithm&) const = default;
};

// One thread calls at a time. Throws DeviceError where a call fails unexpectedly.
class GemmLibrary {
 public:
  virtual ~GemmLibrary() = default;

  // Enqueues the product that Gemm() describes and returns true, or enqueues nothing and returns
  // false. False for A and B of two dtypes; a bias of another dtype than C's; a bias or an added
  // matrix beside gelu_of; rows that do not begin at multiples of 16 bytes (with an activation of 8
  // elements); k = 0; and products for which the library has no algorithm, or which it refuses.
  // Sums are fp32, in an order that the algorithm decides, never TF32.
  //   gelu     Computed in one kernel with the product, from the sum before rounding: its bits may
  //            differ from activations.h's. Deterministic libraries do not do that.
  //   gelu_of  Where the library refuses it, the product is rounded before it is multiplied by
  //            gelu'(u), too.
  virtual bool Multiply(const CudaStreamHandle& stream, int64_t m, int64_t n, int64_t k,
                        const GemmOperand& a, const GemmOperand& b, const GemmResult& c,
                        const GemmEpilogue& epilogue) = 0;

  // The product that the library computes for `shape`: itself, or itself without the activation,
  // which is then a kernel of ours. Null: none.
  virtual std::optional<GemmShape> Resolve(const GemmShape& shape) = 0;

  // For a shape that Resolve() gives: at most `most` algorithms, those that the library expects to
  // be fastest first, with workspaces of at most kGemmWorkspaceBytes.
  virtual std::vector<GemmAlgorithm> Candidates(const GemmShape& shape, int most) = 0;
  // Uses this algorithm for this shape from here on; without a call, the first candidate is used.
  // Returns false and changes nothing where the library does not know the algorithm for this shape.
  virtual bool Use(const GemmShape& shape, const GemmAlgorithm& algorithm) = 0;

  // A shape that has been multiplied so far, or that Use() was called for.
  struct Usage {
    GemmShape shape;
    bool chosen = false;
    int64_t calls = 0;
  };
  virtual std::vector<Usage> Usages() const = 0;
  // The shapes that the library has refused and not taken since, with the reasons: a line each, for
  // people.
  virtual std::vector<std::string> Refusals() const = 0;
};

// The means of a stream to multiply matrices. Without a library it uses kernels of ours.
struct GemmResources final : StreamResources {
  GemmResources() = default;
  GemmResources(GemmLibrary* l, std::byte* w) : library(l), workspace(w) {}

  GemmLibrary* library = nullptr;
  // kGemmWorkspaceBytes at a multiple of 256, for this stream alone.
  std::byte* workspace = nullptr;
};
inline constexpr int64_t kGemmWorkspaceBytes = int64_t{32} << 20;

// The stream's GemmResources: nothing else is lent to a stream that multiplies.
inline GemmResources GemmOf(const CudaStreamHandle& stream) {
  const auto* const lent = static_cast<const GemmResources*>(stream.resources);
  return lent == nullptr ? GemmResources() : *lent;
}

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_GEMM_LIBRARY_H_
