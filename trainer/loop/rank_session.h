// What a rank computes with, from the recipe to the session: the part that training and evaluation
// have in common. Its calls come in the order in which they are declared, the same on every rank.
// Tests: tests/trainer/loop/train_test.cc
#ifndef FSDP_TRAIN_TRAINER_LOOP_RANK_SESSION_H_
#define FSDP_TRAIN_TRAINER_LOOP_RANK_SESSION_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "trainer/comm/hosts/host_placement.h"
#include "trainer/comm/mesh.h"
#include "trainer/comm/mesh_communicators.h"
#include "trainer/comm/store.h"
#include "trainer/engine/plan.h"
#include "trainer/engine/session.h"
#include "trainer/fsdp/memory_plan.h"
#include "trainer/loop/attention_choice.h"
#include "trainer/loop/failure_protocol.h"
#include "trainer/loop/gpu_transport.h"
#include "trainer/loop/job.h"
#include "trainer/loop/products.h"
#include "trainer/observe/provenance.h"
#include "trainer/recipe/recipe.h"
#include "trainer/runtime/device.h"

namespace fsdp {

class RankSession {
 public:
  // Decides what can be decided before anything of it exists. `trains`: otherwise the session
  // evaluates alone, and holds neither gradients nor an optimizer's state. The reference is kept.
  // Throws ConfigError, CheckpointError, DeviceError.
  RankSession(const Recipe& recipe, const Job& job, bool trains);

  // Throws MemoryError where it does not fit.
  void Plan();

  // Looks for the transport. What ranks have to agree about, recipe and schedule first.
  Labels FindTransport();
  // Device, algorithms, connections, memory and session. `run` as of OpenProducts(); `say` gets
  // lines for people. Throws DeviceError, MemoryError, CheckpointError, and as Together() does.
  void Open(const ProductsOfRun& run, const std::function<void(std::string_view)>& say);

  // With fsdp.cpu_offload.optimizer_share as a number.
  const Recipe& recipe() const { return recipe_; }
  int threads() const { return threads_; }
  const ModelShape& shape() const { return shape_; }
  const Model& model() const { return *model_; }
  const SessionOptions& options() const { return options_; }
  double FlopsPerTarget() const;  // Of the model, as MFU counts.
  const Mesh& mesh() const { return mesh_; }
  const RunPlan& plan() const { return plan_; }
  const std::string& attention() const { return attention_.name; }
  const std::string& share() const { return share_; }  // How it was found, for people.
  const std::string& transport_note() const { return transport_.note; }
  const RunProducts& products() const { return products_; }
  // Of a GPU's memory: before the run took any, and since.
  std::optional<Provenance::GpuMemory> TakenOfTheGpu() const;

  Device& device() { return *device_; }
  Session& session() { return *session_; }
  Executor& executor() { return session_->executor(); }
  // What the streams are in, as Executor::Where(), or what Open() is in; else empty.
  std::string Where() const { return session_ ? session_->executor().Where() : opening_; }
  void Abort(const std::string& why) {
    if (link_) link_->Abort(why);
  }

 private:
  void OpenDevice();
  void Connect();
  // Contexts, libraries and connections have by now what they take of a GPU: the rest is what there
  // is. No rank allocates before all have looked.
  void Remeasure();
  void Allocate();

  Recipe recipe_;
  const Job& job_;
  const FoundGpuLibrary gemm_;
  const int threads_;
  const ModelShape shape_;
  const std::unique_ptr<Model> model_;
  const HostPlacement hosts_;
  const std::vector<std::string> gpus_;
  PlanTarget target_;
  const FoundAttention attention_;
  SessionOptions options_;
  const std::string share_;
  const Mesh mesh_;
  RunPlan plan_;
  GpuTransport transport_;
  std::string opening_;
  // In the order in which they must outlive one another.
  std::unique_ptr<Device> device_;
  RunProducts products_;
  std::optional<MeshCommunicators> communicators_;
  std::optional<FailureLink> link_;
  std::unique_ptr<PhasedAllocator> allocator_;
  std::optional<Session> session_;
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_LOOP_RANK_SESSION_H_
