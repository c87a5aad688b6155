#include "trainer/observe/peak_flops.h"

namespace fsdp {
namespace {

// TFLOP/s from NVIDIA's data sheets and whitepapers. Where a sheet has only the number for sparse
// factors, half of that. The first row counts whose name the GPU's begins with.
struct Row {
  std::string_view name;
  double fp32, half;  // half: bf16 and fp16, which are alike on all of these.
};
constexpr Row kRows[] = {
    {"NVIDIA A100", 19.5, 312},                // "NVIDIA A100 Tensor Core GPU", 2021: every form.
    {"NVIDIA H100 PCIe", 51.2, 756.5},         // "NVIDIA H100 Tensor Core GPU", 2022: 1513 sparse.
    {"NVIDIA H100 NVL", 60, 835.5},            // The same, 2024: 1671 sparse.
    {"NVIDIA H100", 66.9, 989.4},              // "NVIDIA H100 Architecture", 2022, table 2: SXM5.
    {"NVIDIA H200 NVL", 60, 835.5},            // "NVIDIA H200 Tensor Core GPU", 2024: 1671 sparse.
    {"NVIDIA H200", 67, 989.5},                // The same: 1979 sparse.
    {"NVIDIA L40S", 91.6, 362.05},             // "NVIDIA L40S", 2023.
    {"NVIDIA GeForce RTX 4090", 82.6, 165.2},  // "NVIDIA Ada GPU Architecture", 2022, table 2.
};

}  // namespace

std::optional<double> PeakFlops(std::string_view gpu, DType dtype) {
  for (const Row& row : kRows) {
    if (!gpu.starts_with(row.name)) continue;
    switch (dtype) {
      case DType::kFloat32:
        return row.fp32 * 1e12;
      case DType::kBFloat16:
      case DType::kFloat16:
        return row.half * 1e12;
      default:
        return std::nullopt;
    }
  }
  return std::nullopt;
}

}  // namespace fsdp
