#include "trainer/loop/rank_session.h"

#include "trainer/comm/together.h"
#include "trainer/engine/step_operations.h"
#include "trainer/fsdp/try_collectives.h"
#include "trainer/loop/gpu_room.h"
#include "trainer/loop/setup.h"
#include "trainer/loop/share_choice.h"
#include "trainer/observe/build_info.h"
#include "trainer/ops/cpu/isa.h"
#include "trainer/recipe/resume.h"
#include "trainer/runtime/device_factory.h"
#include "trainer/runtime/gpu_libraries.h"

namespace fsdp {
namespace {

// Whatever the strategy: ranks that disagree about it all come here, and then find out.
HostPlacement HostsOf(const Job& job) {
  const bool ask = job.world > 1 && job.find_hosts != nullptr;
  return ask ? job.find_hosts() : HostPlacement::InOrder(job.world, job.world);
}

std::unique_ptr<Model> ModelFor(const Recipe& recipe, const ModelShape& shape, bool trains) {
  std::unique_ptr<Model> model = BuildModel(recipe, shape);
  if (trains) return model;
  for (const ModelSegment& segment : model->segments()) {
    for (Parameter* const parameter : segment.parameters) parameter->Freeze();
  }
  return model;
}

SessionOptions OptionsFor(const Recipe& recipe, const HostPlacement& hosts, int threads,
                          AttentionBackend attention, bool trains) {
  SessionOptions options = SessionOptionsFor(recipe, hosts, threads, attention);
  options.train = trains;
  return options;
}

}  // namespace

RankSession::RankSession(const Recipe& recipe, const Job& job, bool trains)
    : recipe_(recipe),
      job_(job),
      gemm_(FindGemmLibrary(job.device.type)),
      threads_(ThreadsFor(recipe, job.local_world)),
      shape_(ShapeFor(recipe_)),
      model_(ModelFor(recipe_, shape_, trains)),
      hosts_(HostsOf(job)),
      gpus_(ExchangeGpus(job)),
      target_(RoomToBegin(job.device, SharersOf(gpus_, job))),
      attention_(AttentionOf(recipe_, shape_, job.device)),
      options_(OptionsFor(recipe, hosts_, threads_, attention_.backend, trains)),
      share_(ResolveShare(job, target_, *model_, recipe_, options_)),
      mesh_(MeshFor(options_.executor, job.rank, job.world, hosts_.ByHost())) {}

void RankSession::Plan() {
  plan_ = PlanRun(*model_, options_, job_.world, job_.local_world, target_);
  RequireFit(*model_, options_, plan_, target_);
}

Labels RankSession::FindTransport() {
  transport_ = FindGpuTransport(gpus_, job_);
  Labels labels;
  for (const auto& [key, value] : SharedSettings(recipe_)) {
    labels.emplace_back("recipe: " + key, value);
  }
  labels.insert(labels.end(),
                {{"schedule", std::to_string(plan_.schedule_hash)},
                 {"build", std::string(BuildVersion()) + " " + std::string(BuildGitHash())},
                 {"device", Name(job_.device.type)},
                 {"kernels", job_.device.type == DeviceType::kCpu ? IsaName() : "cuda"},
                 {"cuBLASLt", GpuLibraryVersionText(gemm_.version)},
                 {"NCCL", transport_.nccl ? VersionText(*transport_.nccl) : "none"},
                 {"attention",
                  attention_.backend == AttentionBackend::kOwn ? "own kernels" : attention_.name}});
  return labels;
}

void RankSession::Open(const ProductsOfRun& run, const std::function<void(std::string_view)>& say) {
  opening_ = "the device";
  OpenDevice();
  opening_ = "the choice of algorithms";
  products_ = OpenProducts(gemm_, *device_, job_, *model_, options_, run, say);
  opening_ = "the connection of the ranks";
  Connect();
  opening_ = "the check of what is free";
  Remeasure();
  Allocate();
  opening_.clear();
}

void RankSession::OpenDevice() {
  const int cores = static_cast<int>(DescribeHost().cores);
  device_ = CreateDevice(job_.device.type, {.spin = job_.local_world * threads_ <= cores,
                                            .checker = job_.checker,
                                            .gpu = job_.device.gpu});
}

void RankSession::Connect() {
  communicators_.emplace(mesh_, options_.executor.communicators,
                         ConnectOver(transport_, recipe_, job_, *device_));
  TryCollectives(*device_, *model_, options_.executor, *communicators_);
  if (job_.world > 1) link_.emplace(*job_.store, communicators_->all());
}

void RankSession::Remeasure() {
  PrepareAttention(recipe_, shape_, attention_.backend);
  if (job_.device.type != DeviceType::kCuda) return;
  const auto look = [this] {
    target_ = RoomNow(job_.device, SharersOf(gpus_, job_));
    plan_.device_available = target_.room;
    plan_.device_outside = target_.outside;
    RequireFit(*model_, options_, plan_, target_);
    return std::string();
  };
  if (job_.world == 1) return (void)look();
  Together(*job_.store, "train/free", job_.rank, job_.world, look);
}

void RankSession::Allocate() {
  const auto allocate = [this] {
    try {
      allocator_ = MakeAllocator(*device_, options_.executor, plan_.memory, *job_.spill_disk);
    } catch (const MemoryError& error) {
      throw WithWhatItNeeds(error, *model_, options_, job_.device, job_.world, job_.local_world);
    }
  };
  // Ranks whose state is to be spilled find the directory alike.
  const bool spills = job_.world > 1 && plan_.memory.bytes(MemoryPlace::kDisk) > 0;
  spills ? EveryRank(job_, "allocate", allocate) : allocate();
  session_.emplace(*device_, *allocator_, *model_, options_, *communicators_);
  if (products_.library) executor().UseForProducts(*products_.library);
}

double RankSession::FlopsPerTarget() const {
  const int64_t length = options_.executor.sample_length;
  return FlopsPerSample(*model_, length) / static_cast<double>(model_->Inputs(length).targets);
}

std::optional<Provenance::GpuMemory> RankSession::TakenOfTheGpu() const {
  if (!target_.outside) return std::nullopt;
  const int64_t now = *RoomNow(job_.device, SharersOf(gpus_, job_)).outside;
  return Provenance::GpuMemory{*target_.outside, now - *target_.outside};
}

}  // namespace fsdp
