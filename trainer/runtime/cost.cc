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

Cost Sum(const std::vector<KernelCost>& kernels) {
  Cost sum;
  for (const KernelCost& kernel : kernels) sum += kernel.cost;
  return sum;
}

int64_t BytesMoved(const std::vector<KernelCost>& kernels) {
  double bytes = 0;
  for (const auto& [kind, cost, product] : kernels) {
    bytes += kind == KernelKind::kLink ? cost.link_bytes : cost.bytes_read + cost.bytes_written;
  }
  return static_cast<int64_t>(bytes);
}

}  // namespace fsdp
