// The loss of the validation sets while a run trains, and a sample of what the model says.
// Tests: tests/trainer/loop/evaluator_test.cc
#ifndef FSDP_TRAIN_TRAINER_LOOP_EVALUATOR_H_
#define FSDP_TRAIN_TRAINER_LOOP_EVALUATOR_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "trainer/data/loader.h"
#include "trainer/engine/session.h"
#include "trainer/loop/data_watch.h"
#include "trainer/loop/recorder.h"

namespace fsdp {

struct Recipe;
struct RunData;

// Means over the targets of all batches of a set.
struct EvalMeans {
  double loss = 0;    // Nats.
  double second = 0;  // Mean of the second sum of the session's eval_metric(), if it has one.
};
// Whether the next micro-batch, or token of a sample, may begin: alike on all ranks.
using MayBegin = std::function<bool()>;
// All ranks call it and evaluate together; blocks. Where `may_begin` says no, it ends, and returns
// empty. `progress` hears of every batch but the last when it is done. Both functions may be null.
// `loads` loads the batches; null: data that fails fails the streams.
std::optional<EvalMeans> MeansOf(Session& session, const EvalLoader& loader,
                                 const MayBegin& may_begin,
                                 const std::function<void(int64_t batch)>& progress = nullptr,
                                 DataWatch* loads = nullptr);

// Every rank has one, and they evaluate together, with the averaged weights where the session does.
class Evaluator {
 public:
  // References are kept. `seed` is for the draws of samples.
  Evaluator(const Recipe& recipe, uint64_t seed, const RunData& data, DataWatch& loads,
            Session& session, Recorder& recorder);

  // Whether eval.every asks for an evaluation after this training step.
  bool IsDue(int64_t step) const;
  // Blocks until all is recorded, as of after `step`, whose result has been read. Returns the mean
  // of the sets' losses. Empty where `may_begin` says no, or data of a rank failed: then no loss
  // and no sample is recorded.
  std::optional<double> Run(int64_t step, const MayBegin& may_begin);

 private:
  // Draws one sample; none where the prompt has no tokens. Empty where `may_begin` says no.
  std::optional<std::vector<SampleRecord>> Draw(int64_t step, const MayBegin& may_begin);

  const Recipe& recipe_;
  const uint64_t seed_;
  const RunData& data_;
  DataWatch& loads_;
  Session& session_;
  Recorder& recorder_;
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_LOOP_EVALUATOR_H_
