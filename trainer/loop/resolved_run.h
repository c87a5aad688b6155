// A recipe as one machine and so many ranks run it: a value that Resolve() (resolve.h) makes once,
// for training, evaluation, a dry run, `plan` and `bench` alike.
// Tests: tests/trainer/loop/resolved_run_test.cc
#ifndef FSDP_TRAIN_TRAINER_LOOP_RESOLVED_RUN_H_
#define FSDP_TRAIN_TRAINER_LOOP_RESOLVED_RUN_H_

#include <memory>
#include <optional>
#include <string>

#include "models/shape.h"
#include "trainer/comm/hosts/host_placement.h"
#include "trainer/comm/mesh.h"
#include "trainer/engine/plan.h"
#include "trainer/engine/session.h"
#include "trainer/loop/gpu_transport.h"
#include "trainer/loop/place.h"
#include "trainer/loop/run_data.h"
#include "trainer/nn/model.h"
#include "trainer/ops/cudnn/attention_cudnn.h"
#include "trainer/recipe/recipe.h"
#include "trainer/runtime/gpu_libraries.h"

namespace fsdp {

struct ResolvedRun {
  Place place;
  // The recipe as it is run: with the dropouts of the run that it goes on with, the model's shape,
  // the number of steps where data was opened, and fsdp.cpu_offload.optimizer_share as a number.
  Recipe recipe;
  ModelShape shape;
  std::unique_ptr<Model> model;  // With adapters, and with what is frozen.
  int threads = 1;               // CPU compute threads of a rank.
  HostPlacement hosts = HostPlacement::InOrder(1, 1);
  SessionOptions options;
  Mesh mesh{/*world_rank=*/0, /*world_size=*/1, /*shard_size=*/1};

  // The machine was asked for these.
  PlanTarget target;
  FoundGpuLibrary library = {};   // cuBLASLt, for a GPU.
  int sharers = 1;                // Ranks that compute on this rank's GPU.
  GpuTransport transport = {};    // What collectives go over.
  FoundAttention attention = {};  // Whose kernels attention takes.
  std::string share = {};         // How fsdp.cpu_offload.optimizer_share was found, for people.

  std::optional<RunData> data = std::nullopt;  // Empty where the place opens none.
  RunPlan plan;
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_LOOP_RESOLVED_RUN_H_
