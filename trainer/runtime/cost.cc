#include "trainer/runtime/cost.h"

namespace fsdp {

Cost& Cost::operator+=(const Cost& other) {
  flops += other.flops;
  bytes_read += other.bytes_read;
  bytes_written += other.bytes_written;
  link_bytes += other.link_bytes;
  link_messages += other.link_messages;
  return *this;
}

Launches& Launches::operator+=(const Launches& other) {
  kernels += other.kernels;
  copies += other.copies;
  return *this;
}

Cost Sum(const std::vector<KernelCost>& kernels) {
  Cost sum;
  for (const KernelCost& kernel : kernels) sum += kernel.cost;
  return sum;
}

Launches LaunchesOf(const std::vector<KernelCost>& kernels) {
  Launches launches;
  for (const KernelCost& kernel : kernels) {
    (kernel.kind == KernelKind::kCopy ? launches.copies : launches.kernels) += kernel.gpu.launches;
  }
  return launches;
}

int64_t BytesMoved(const std::vector<KernelCost>& kernels) {
  double bytes = 0;
  for (const KernelCost& kernel : kernels) {
    const Cost& cost = kernel.cost;
    bytes +=
        kernel.kind == KernelKind::kLink ? cost.link_bytes : cost.bytes_read + cost.bytes_written;
  }
  return static_cast<int64_t>(bytes);
}

}  // namespace fsdp
