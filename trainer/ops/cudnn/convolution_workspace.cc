#include "trainer/ops/cudnn/convolution_workspace.h"

#include <algorithm>
#include <bit>

#include "trainer/core/round_up.h"

namespace fsdp {
namespace {

constexpr int64_t kBlock = 256;

// Channels of a group in the copies that cuDNN's kernels make.
int64_t Padded(int64_t channels, int64_t groups) {
  if (groups == 1) return RoundUp(channels, 8);
  if (channels > 128) return RoundUp(channels, 128);
  return std::max<int64_t>(8, static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(channels))));
}

int64_t PlanBytes(const ConvolutionCall& call) {
  constexpr int64_t kFixed = int64_t{64} << 10, kMostForSums = int64_t{32} << 20, kParts = 32;
  const ConvolutionShape& s = call.shape;
  const int64_t groups = s.window.groups;
  const int64_t in = Padded(s.group_in(), groups), out = Padded(s.group_out(), groups);
  const int64_t weights = groups * out * in * s.taps();
  const int64_t copies = groups * (s.in_pixels() * in + s.out_pixels() * out) + 2 * weights;
  const int64_t sums = call.pass == ConvolutionCall::Pass::kDw
                           ? std::min(kMostForSums, kParts * weights * int64_t{sizeof(float)})
                           : 0;
  return RoundUp(kFixed + copies * SizeOf(call.x) + sums, kBlock);
}

}  // namespace

bool TakenByCudnn(const ConvolutionBackend& backend, const ConvolutionCall& call) {
  const ConvolutionShape& s = call.shape;
  if (!backend.cudnn || s.is_pointwise() || call.x != call.w) return false;
  if (s.in_pixels() == 0 || s.in == 0 || s.out == 0) return false;
  if (backend.asked != nullptr) backend.asked->insert(call);
  return !backend.Refused(call);
}

CudnnConvolutionWorkspace CudnnWorkspaceOf(const ConvolutionCall& call) {
  return {.plan = PlanBytes(call),
          .weights = RoundUp(call.shape.weights() * SizeOf(call.w), kBlock)};
}

}  // namespace fsdp
