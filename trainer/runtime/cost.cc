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

}  // namespace fsdp
