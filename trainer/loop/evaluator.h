// The loss of the validation sets while a run trains, and a sample of what the model says.
// Tests: tests/trainer/loop/evaluator_test.cc
#ifndef FSDP_TRAIN_TRAINER_LOOP_EVALUATOR_H_
#define FSDP_TRAIN_TRAINER_LOOP_EVALUATOR_H_

#include <cstdint>
#include <functional>

#include "trainer/data/loader.h"
#include "trainer/engine/session.h"
#include "trainer/loop/job.h"
#include "trainer/loop/recorder.h"
#include "trainer/loop/run_data.h"
#include "trainer/recipe/recipe.h"

namespace fsdp {

// Means over the targets of all batches of a set.
struct EvalMeans {
  double loss = 0;    // Nats.
  double second = 0;  // Of the second sum of the session's eval_metric(), if it has one.
};
// Called of every rank, which evaluate together; blocks. `progress`, which may be null, hears of
// every batch but the last that it is done.
EvalMeans MeansOf(Session& session, const EvalLoader& loader,
                  const std::function<void(int64_t batch)>& progress = nullptr);

// Of every rank: they evaluate together, with the averaged weights where the session does.
class Evaluator {
 public:
  // References are kept. `seed`: of the draws of samples.
  Evaluator(const Recipe& recipe, const Job& job, uint64_t seed, const RunData& data,
            Session& session, Recorder& recorder);

  // Whether eval.every asks for it after this training step.
  bool IsDue(int64_t step) const;
  // Blocks until all is recorded, as of after `step`, whose result has been read. Returns the mean
  // of the sets' losses.
  double Run(int64_t step);

 private:
  void RecordSample(int64_t step);

  const Recipe& recipe_;
  const Job& job_;
  const uint64_t seed_;
  const RunData& data_;
  Session& session_;
  Recorder& recorder_;
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_LOOP_EVALUATOR_H_
