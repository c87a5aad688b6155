// A recipe as one machine and so many ranks run it: a value that Resolve() (resolve.h) makes once,
// for training, evaluation, a dry run, `plan` and `bench` alike.
// Tests: tests/trainer/loop/resolved_run_test.cc
#ifndef FSDP_TRAIN_TRAINER_LOOP_RESOLVED_RUN_H_
#define FSDP_TRAIN_TRAINER_LOOP_RESOLVED_RUN_H_

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "models/family.h"
#include "trainer/comm/hosts/host_placement.h"
#include "trainer/comm/mesh.h"
#include "trainer/comm/store/store.h"
#include "trainer/engine/plan.h"
#include "trainer/engine/session.h"
#include "trainer/loop/multiprocessors.h"
#include "trainer/loop/place.h"
#include "trainer/loop/run_data.h"
#include "trainer/ops/convolution_shape.h"
#include "trainer/runtime/gpu_libraries.h"

namespace fsdp {

class Model;
class NcclLibrary;  // trainer/comm/nccl/nccl_link.h
struct Recipe;

// A run takes these by asking its machine (choice.h).
enum class ChoiceId {
  kLibrary,      // cuBLASLt, which multiplies on a GPU.
  kTransport,    // The way of collectives: NCCL, or the host's memory.
  kBlocks,       // Multiprocessors for NCCL's collectives.
  kAttention,    // cuDNN, or kernels of our own.
  kConvolution,  // The same.
  kAlgorithms,   // The library's, for the step's products.
};

struct Chosen {
  ChoiceId id = ChoiceId::kLibrary;
  std::string value{};  // The text that the run's files hold. Empty: there was nothing to choose.
  std::string line{};   // How it came about, for people. Empty: there is nothing to say.
  Labels labels{};      // All ranks must have these alike: compared before the first step.
};

struct ResolvedRun {
  // In resolved_run.cc, so that readers of this header need not know a model.
  ResolvedRun();
  ResolvedRun(ResolvedRun&&) noexcept;
  ResolvedRun& operator=(ResolvedRun&&) noexcept;
  ~ResolvedRun();

  Place place;
  // The recipe as it is run: with the dropouts of the run that it goes on with, the model's shape,
  // and the number of steps where data was opened.
  std::unique_ptr<Recipe> recipe;  // Not null.
  ModelShape shape;
  std::shared_ptr<Model> model;  // With adapters, and with what is frozen.
  int threads = 1;               // CPU compute threads of a rank.
  int ranks_on_cores = 1;        // Ranks of this host that may run on this rank's cores.
  HostPlacement hosts = HostPlacement::InOrder(1, 1);
  SessionOptions options;
  Mesh mesh{/*world_rank=*/0, /*world_size=*/1, /*shard_size=*/1};

  // The machine was asked for these.
  PlanTarget target;
  int sharers = 1;                                    // Ranks that compute on this rank's GPU.
  FoundGpuLibrary library = {};                       // cuBLASLt, for a GPU.
  std::shared_ptr<const NcclLibrary> nccl = nullptr;  // Null: the host's memory.
  Multiprocessors multiprocessors = {};
  std::set<ConvolutionCall> convolutions = {};  // By cuDNN.
  std::vector<Chosen> chosen = {};              // In the order of AllChoices().

  std::optional<RunData> data = std::nullopt;  // Empty where the place opens none.
  RunPlan plan;

  // A choice that has not been made is empty.
  Chosen Of(ChoiceId id) const;
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_LOOP_RESOLVED_RUN_H_
