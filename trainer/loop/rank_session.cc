#include "trainer/loop/rank_session.h"

#include "trainer/comm/store/together.h"
#include "trainer/fsdp/executor.h"
#include "trainer/fsdp/try_collectives.h"
#include "trainer/loop/choice.h"
#include "trainer/loop/gemm_choice.h"
#include "trainer/loop/gpu_room.h"
#include "trainer/loop/gpu_transport.h"
#include "trainer/loop/kernel_choice.h"
#include "trainer/loop/resolve.h"
#include "trainer/ops/cudnn/convolution_cudnn.h"
#include "trainer/recipe/recipe.h"
#include "trainer/runtime/choose_device.h"

namespace fsdp {

RankSession::RankSession(ResolvedRun run, const Job& job) : run_(std::move(run)), job_(job) {}

std::string RankSession::Where() const {
  return session_ ? session_->executor().Where() : opening_;
}

void RankSession::Open(const Held& held, const std::function<void(std::string_view)>& say) {
  opening_ = "the device";
  OpenDevice();
  opening_ = "the choice of algorithms";
  OpenProducts(held, say);
  opening_ = "the connection of the ranks";
  Connect();
  opening_ = "the check of what is free";
  Remeasure();
  Allocate();
  opening_.clear();
}

void RankSession::OpenDevice() {
  const int cores = static_cast<int>(DescribeHost().cores);
  device_ = CreateDevice(job_.device.type, {.spin = run_.ranks_on_cores * run_.threads <= cores,
                                            .checker = job_.checker,
                                            .gpu = job_.device.gpu});
}

void RankSession::OpenProducts(const Held& held, const std::function<void(std::string_view)>& say) {
  products_ = OpenGemmLibrary(run_);
  Choosing choosing{run_};
  choosing.device = device_.get();
  choosing.products = products_.get();
  choosing.checkpoint = held.checkpoint;
  choosing.algorithms = held.algorithms;
  choosing.say = say;
  MakeAll(Choice::When::kOnTheDevice, choosing);
}

void RankSession::Connect() {
  communicators_.emplace(run_.mesh, run_.options.executor.communicators,
                         ConnectOver(run_, job_, *device_));
  TryCollectives(*device_, *run_.model, run_.options.executor, *communicators_,
                 run_.options.optimizer.muon.ns_dtype);
  if (job_.world > 1) link_.emplace(*job_.store, communicators_->all());
}

void RankSession::Remeasure() {
  PrepareAttention(*run_.recipe, run_.shape, run_.options.executor.attention);
  PrepareConvolutionsCudnn(run_.convolutions);
  if (job_.device.type != DeviceType::kCuda) return;
  const auto look = [this] {
    run_.target = RoomNow(job_.device, run_.sharers);
    run_.plan.device_available = run_.target.room;
    run_.plan.device_outside = run_.target.outside;
    RequireFit(run_);
    return std::string();
  };
  if (job_.world == 1) return (void)look();
  Together(*job_.store, "train/free", job_.rank, job_.world, look);
}

void RankSession::Allocate() {
  const SessionOptions& options = run_.options;
  const auto allocate = [&] {
    try {
      allocator_ = MakeAllocator(*device_, options.executor, run_.plan.memory, *job_.spill_disk);
    } catch (const MemoryError& error) {
      throw WithWhatItNeeds(error, *run_.model, options, job_.device, job_.world, job_.local_world);
    }
  };
  // Ranks whose state is to be spilled find the directory alike.
  const bool spills = job_.world > 1 && run_.plan.memory.bytes(MemoryPlace::kDisk) > 0;
  spills ? EveryRank(job_, "allocate", allocate) : allocate();
  session_.emplace(*device_, *allocator_, *run_.model, options, *communicators_);
  if (products_) executor().UseForProducts(*products_);
}

std::optional<Provenance::GpuMemory> RankSession::TakenOfTheGpu() const {
  if (!run_.target.outside) return std::nullopt;
  const int64_t now = *RoomNow(job_.device, run_.sharers).outside;
  return Provenance::GpuMemory{*run_.target.outside, now - *run_.target.outside};
}

}  // namespace fsdp
