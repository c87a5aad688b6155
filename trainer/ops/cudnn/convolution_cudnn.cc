#include "trainer/ops/cudnn/convolution_cudnn.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <map>
#include <utility>

#include "trainer/core/errors.h"
#include "trainer/core/round_up.h"
#include "trainer/ops/convolution_backends.h"
#include "trainer/ops/cudnn/convolution_plan.h"
#include "trainer/ops/cudnn/execution_plan.h"
#include "trainer/runtime/gpu_libraries.h"

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

namespace {

using cudnn::ConvolutionPlan;
using Pass = ConvolutionCall::Pass;

// A thread's plans, for its handle.
class Plans {
 public:
  static Plans& OfThisThread() {
    thread_local Plans plans;
    return plans;
  }

  const ConvolutionPlan& Of(const ConvolutionCall& call) {
    auto plan = plans_.find(call);
    if (plan == plans_.end()) {
      plan = plans_.try_emplace(call, handle_.api(), handle_.gpu(), call).first;
    }
    return plan->second;
  }

  void Run(CudaStreamHandle stream, const ConvolutionCall& call, const std::byte* x,
           const std::byte* weights, const std::byte* results, std::byte* workspace) {
    const ConvolutionPlan& plan = Of(call);
    plan.Execute(handle_.On(stream), x, weights, results, workspace);
  }

 private:
  Plans() : handle_(cudnn::ThreadHandle::Get()) {}

  const cudnn::ThreadHandle& handle_;
  std::map<ConvolutionCall, ConvolutionPlan> plans_;
};

// The weights lie behind the memory of the plan.
std::byte* WeightsIn(const View& workspace, const ConvolutionCall& call) {
  return workspace.data + CudnnWorkspaceOf(call).plan;
}

}  // namespace

void ConvolutionForwardCudnn(CudaStreamHandle stream, const ConvolutionShape& shape,
                             const ConstView& x, const ConstView& w, const View& y,
                             const View& workspace) {
  const ConvolutionCall call{Pass::kForward, shape, x.dtype, w.dtype};
  std::byte* const weights = WeightsIn(workspace, call);
  FoldWeightsCuda(stream, shape, w, weights);
  Plans::OfThisThread().Run(stream, call, x.data, weights, y.data, workspace.data);
}

void ConvolutionDxCudnn(CudaStreamHandle stream, const ConvolutionShape& shape, const ConstView& w,
                        const ConstView& dy, const View& dx, const View& workspace) {
  const ConvolutionCall call{Pass::kDx, shape, dx.dtype, w.dtype};
  std::byte* const weights = WeightsIn(workspace, call);
  FoldWeightsCuda(stream, shape, w, weights);
  Plans::OfThisThread().Run(stream, call, dx.data, weights, dy.data, workspace.data);
}

void ConvolutionDwCudnn(CudaStreamHandle stream, const ConvolutionShape& shape, const ConstView& x,
                        const ConstView& dy, const View& dw, const View& workspace) {
  const ConvolutionCall call{Pass::kDw, shape, x.dtype, x.dtype};
  std::byte* const sums = WeightsIn(workspace, call);
  Plans::OfThisThread().Run(stream, call, x.data, sums, dy.data, workspace.data);
  AddFoldedWeightsCuda(stream, shape, ConstView(sums, x.dtype, Shape{shape.weights()}), dw);
}

void PrepareConvolutionsCudnn(const std::set<ConvolutionCall>& calls) {
  for (const ConvolutionCall& call : calls) (void)Plans::OfThisThread().Of(call);
}

FoundConvolutions FindConvolutions(int gpu, const std::set<ConvolutionCall>& calls) {
  if (calls.empty()) return {};
  const auto own = [](const std::string& why) {
    return FoundConvolutions{{}, "own kernels (" + why + ")"};
  };
  const cudnn::FoundApi& found = cudnn::FindApi();
  if (found.api == nullptr) return own("no cuDNN: " + found.why_not);
  ConvolutionBackend backend{.cudnn = true};
  std::string why;
  try {
    const cudnn::Descriptor properties = cudnn::DevicePropertiesOf(*found.api, gpu);
    for (const ConvolutionCall& call : calls) {
      try {
        (void)ConvolutionPlan(*found.api, properties, call);
      } catch (const DeviceError& error) {
        if (why.empty()) why = error.what();
        backend.refused.push_back(call);
      }
    }
  } catch (const DeviceError& error) {
    return own(error.what());
  }
  if (backend.refused.size() == calls.size()) return own(why);
  std::string name = "cuDNN " + GpuLibraryVersionText(found.api->version);
  if (!backend.refused.empty()) {
    name += ", " + std::to_string(backend.refused.size()) + " of " + std::to_string(calls.size()) +
            " products by own kernels (" + why + ")";
  }
  return {std::move(backend), std::move(name)};
}

}  // namespace fsdp
