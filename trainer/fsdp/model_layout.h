// A model's shapes, mesh of ranks and schedule under a job's options. Pure functions, the same on
// every rank.
#ifndef FSDP_TRAIN_TRAINER_FSDP_MODEL_LAYOUT_H_
#define FSDP_TRAIN_TRAINER_FSDP_MODEL_LAYOUT_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <vector>

#include "trainer/autograd/activation_offload.h"
#include "trainer/comm/mesh.h"
#include "trainer/fsdp/layout.h"
#include "trainer/fsdp/moves.h"
#include "trainer/fsdp/options.h"
#include "trainer/fsdp/schedule.h"
#include "trainer/fsdp/storage.h"
#include "trainer/nn/model.h"
#include "trainer/ops/attention_backend.h"
#include "trainer/ops/convolution_backend.h"

namespace fsdp {

// The dtypes in which a parameter is kept, computed and summed. Depends only on what all ranks
// know.
using DTypeRule = std::function<DTypes(const Parameter&)>;

// Options that determine the step's schedule and memory, for one rank of a job.
struct ExecutorOptions : FsdpOptions {
  Recompute recompute = Recompute::kNone;
  ActivationOffload activation_offload = ActivationOffload::kNone;
  DTypeRule dtypes = nullptr;           // Null: from mixed_precision and state_dtype.
  DType state_dtype = DType::kFloat32;  // The optimizer's, except for parameters kept in fp32.

  int64_t micro_batch_size = 1;                         // Rows of a micro-batch.
  int64_t sample_length = 1;                            // Argument of Model::Inputs().
  bool documents = true;                                // Rows of a batch may have several.
  AttentionBackend attention = AttentionBackend::kOwn;  // On a CUDA device.
  ConvolutionBackend convolution = {};                  // The same.
  int micro_batches = 1;                                // Per training step.
  float max_norm = 0;                                   // Clipping; 0 = off.
  bool batch_norm_sync = false;                         // Over all ranks' micro-batches.
  int threads = 1;                                      // The compute stream's.
  std::optional<int64_t> memory_limit = {};             // Most bytes of device memory.
  int64_t spill_part = int64_t{1} << 19;                // Elements that go to a disk at once.
  int inside = 0;       // Neighbours on a host that reduce together first: see Mesh's inside_size.
  bool poison = false;  // Fills freed gather slots with NaN.
  bool averages = false;  // Evaluations are given weights of their own, in fp32 (Step::weights).
  // For tests of other places and forms, may be null.
  Storage::Change change_storage = nullptr;
  std::function<void(Moves& moves)> add_moves = nullptr;

  // Recipes refuse it: memory of a caching allocator stays on the device.
  bool OffloadsFromCache() const {
    return buffers == Buffers::kCaching &&
           (cpu_offload.optimizer || activation_offload != ActivationOffload::kNone);
  }
};

// The units that the host updates: all units that train, in the order of the model, except a share
// of `optimizer_share`, spread evenly. Empty without cpu_offload.optimizer.
std::set<int> UnitsOnHost(const ExecutorOptions& options, const Layout& layout);
// The units whose shards lie in host memory when they are gathered, in a step of `mode`.
std::set<int> UnitsFetched(const ExecutorOptions& options, const Layout& layout, Mode mode);

std::vector<SegmentShape> ShapesOf(const Model& model, const DTypeRule& dtypes = nullptr);

// The model's layout over `shards` ranks, with the options' wrapping and dtypes.
Layout LayoutFor(const ExecutorOptions& options, const Model& model, int shards);

// The mesh of a world's ranks for the strategy. Hybrid strategies need a shard_size. `ranks`: by
// position, as Mesh takes them. Throws std::invalid_argument as Mesh does.
Mesh MeshFor(const ExecutorOptions& options, int rank, int world, std::vector<int> ranks = {});

// The schedule of `mode`, the same for all ranks of the mesh. In kEval there is one micro-batch.
Schedule ScheduleFor(const ExecutorOptions& options, const Model& model, const Mesh& mesh,
                     Mode mode);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_FSDP_MODEL_LAYOUT_H_
