// Device, connections, memory and session of a rank: the part that training and evaluation have in
// common.
// Tests: tests/trainer/loop/train_test.cc
#ifndef FSDP_TRAIN_TRAINER_LOOP_RANK_SESSION_H_
#define FSDP_TRAIN_TRAINER_LOOP_RANK_SESSION_H_

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "trainer/comm/mesh_communicators.h"
#include "trainer/engine/session.h"
#include "trainer/fsdp/memory_plan.h"
#include "trainer/loop/failure_protocol.h"
#include "trainer/loop/job.h"
#include "trainer/loop/resolved_run.h"
#include "trainer/loop/run_data.h"
#include "trainer/observe/provenance.h"
#include "trainer/ops/gemm_library.h"
#include "trainer/runtime/device.h"

namespace fsdp {

class RankSession {
 public:
  // `run` is resolved for a place of this job, and has data. Takes no memory and asks nobody. The
  // reference is kept.
  RankSession(ResolvedRun run, const Job& job);

  // The choices that a checkpoint holds.
  struct Held {
    std::string checkpoint{};  // Its directory, for messages. Empty: the run goes on from none.
    std::string algorithms{};  // ChoiceId::kAlgorithms.
  };
  // Device, algorithms, connections, memory and session. All ranks call it; blocks. `say` gets
  // lines for people. Throws DeviceError, MemoryError, CheckpointError, and as Together() does.
  void Open(const Held& held, const std::function<void(std::string_view)>& say);

  const ResolvedRun& run() const { return run_; }
  RunData& data() { return *run_.data; }
  // Bytes taken of the GPU's memory: before the run took any, and since.
  std::optional<Provenance::GpuMemory> TakenOfTheGpu() const;

  Device& device() { return *device_; }
  const GemmLibrary* products() const { return products_.get(); }  // Null on a CPU.
  Session& session() { return *session_; }
  Executor& executor() { return session_->executor(); }
  // The streams' present work, as Executor::Where(), or the stage that Open() is in; else empty.
  std::string Where() const;
  void Abort(const std::string& why) {
    if (link_) link_->Abort(why);
  }

 private:
  void OpenDevice();
  void OpenProducts(const Held& held, const std::function<void(std::string_view)>& say);
  void Connect();
  // Measures the room again, when contexts, libraries and connections have taken their part of the
  // GPU. No rank allocates before all have measured.
  void Remeasure();
  void Allocate();

  ResolvedRun run_;
  const Job& job_;
  std::string opening_;
  // In the order in which they must outlive one another.
  std::unique_ptr<Device> device_;
  std::unique_ptr<GemmLibrary> products_;
  std::optional<MeshCommunicators> communicators_;
  std::optional<FailureLink> link_;
  std::unique_ptr<PhasedAllocator> allocator_;
  std::optional<Session> session_;
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_LOOP_RANK_SESSION_H_
