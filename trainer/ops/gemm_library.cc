#include "trainer/ops/gemm_library.h"

namespace fsdp {

std::string GemmShape::Text() const {
  std::string text = std::to_string(m) + "x" + std::to_string(n) + "x" + std::to_string(k) + " " +
                     (a_transposed ? "t" : "n") + (b_transposed ? "t" : "n") + " " +
                     std::string(Name(dtype)) + " to " + std::string(Name(result));
  if (bias) text += ", bias";
  if (activation == Product::Activation::kGelu) text += ", gelu";
  if (activation == Product::Activation::kGeluBackward) text += ", gelu backward";
  return text;
}

GemmShape ShapeOf(const Product& p) {
  return {p.m, p.n, p.k, p.a_transposed, p.b_transposed, p.dtype, p.result, p.bias, p.activation};
}

GemmShape ShapeOf(int64_t m, int64_t n, int64_t k, const GemmOperand& a, const GemmOperand& b,
                  const GemmResult& c, const GemmEpilogue& epilogue) {
  GemmShape shape{m, n, k, a.transposed, b.transposed, a.dtype, c.dtype, epilogue.bias.has_value()};
  if (epilogue.gelu != nullptr) shape.activation = Product::Activation::kGelu;
  if (epilogue.gelu_of != nullptr) shape.activation = Product::Activation::kGeluBackward;
  return shape;
}

bool LeavesActivation(Product::Activation activation, bool deterministic) {
  return deterministic && activation == Product::Activation::kGelu;
}

OnGpu OnGpuByLibrary(const KernelCost& kernel, bool deterministic) {
  OnGpu gpu = kernel.gpu;
  const Product& p = kernel.product;
  if (kernel.kind == KernelKind::kProduct && LeavesActivation(p.activation, deterministic)) {
    gpu.launches += p.count;
    gpu.extra_bytes += static_cast<double>(p.count * p.m * p.n * SizeOf(p.result));
  }
  return gpu;
}

}  // namespace fsdp
