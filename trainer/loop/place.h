// The caller that asks for a run, and the machine it asks: callers of Resolve() (resolve.h) differ
// in this alone.
//
//                 asks its peers   asks its device   opens data   threads          trains
//   training      yes              yes               yes          the recipe's     yes
//   evaluation    yes              yes               yes          the recipe's     no
//   a dry run     no               yes               yes          the recipe's     yes
//   plan          no               no                no           the recipe's     yes
//   bench         no               no                no           one              yes
// Tests: tests/trainer/loop/resolved_run_test.cc
#ifndef FSDP_TRAIN_TRAINER_LOOP_PLACE_H_
#define FSDP_TRAIN_TRAINER_LOOP_PLACE_H_

#include <optional>
#include <string>

#include "trainer/engine/plan.h"
#include "trainer/loop/job.h"
#include "trainer/loop/multiprocessors.h"
#include "trainer/recipe/hardware.h"
#include "trainer/recipe/open_progress.h"
#include "trainer/runtime/choose_device.h"

namespace fsdp {

struct Recipe;

struct Place {
  int rank = 0, world = 1;
  int local_world = 1;  // Ranks of a host.
  // The job whose ranks are asked. It outlives the run. Null: no rank is asked, and each host has
  // local_world ranks.
  const Job* job = nullptr;
  // This rank's device, which is asked. Empty: no machine is asked, and the machine is taken to
  // have all that a run can make use of.
  std::optional<ChosenDevice> device = std::nullopt;
  std::string described = {};  // The name of a machine that a file describes. Empty: this machine.
  // The room that the plan is held against. With a job it is measured, as soon as ranks know who
  // shares a GPU.
  PlanTarget target = {};
  Multiprocessors multiprocessors = {};             // GPUs that nobody asks have these.
  std::optional<OpenProgress> data = std::nullopt;  // Hears of data. Empty: no data is opened.
  int threads = 0;                                  // CPU threads of a rank. 0: ThreadsFor().
  bool trains = true;     // False: every parameter is frozen, for a run that evaluates alone.
  bool predicts = false;  // Numbers of each sample are asked for, too.
  // For prices: the rows of a layer's busiest expert over the mean. All others share the rest
  // evenly.
  double expert_load = 1;

  bool has_peers() const { return job != nullptr && world > 1; }
};

// These two keep a reference to the job. `silent`: nothing is said of data that is opened.
Place PlaceToTrain(const Job& job);
Place PlaceToEvaluate(const Job& job, bool silent);

// `device`: the rank would compute on it. The plan is held against all memory of a GPU: a dry run
// takes none of it, not for a context either.
Place PlaceOfDryRun(const Recipe& recipe, int rank, int world, int local_world,
                    const ChosenDevice& device);

// `hardware` decides what computes. Without it hosts are like this one.
Place PlaceToPlan(const Recipe& recipe, int world, int local_world,
                  const std::optional<Hardware>& hardware, double expert_load = 1);

// The first is for any machine with kernels for `kernels`.
Place PlaceToBench(int world, DeviceType kernels);
Place PlaceToBench(int world, const Hardware& hardware);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_LOOP_PLACE_H_
