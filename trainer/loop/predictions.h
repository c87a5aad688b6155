// `fsdp-train eval --predictions FILE`: a line for each sample of the validation sets.
// Tests: tests/trainer/loop/predictions_test.cc
// Tests: tests/e2e/eval_test.cc
#ifndef FSDP_TRAIN_TRAINER_LOOP_PREDICTIONS_H_
#define FSDP_TRAIN_TRAINER_LOOP_PREDICTIONS_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "trainer/comm/store/store.h"
#include "trainer/core/atomic_file.h"
#include "trainer/core/batch.h"
#include "trainer/data/loader.h"
#include "trainer/engine/session.h"

namespace fsdp {

// The area under the curve of true over false positives: the share of pairs of a label 1 and a
// label 0 in which the label 1 has the higher score; equal scores count half. `scored`: score and
// label. Empty where all labels are alike.
std::optional<double> AreaUnderCurve(std::vector<std::pair<double, bool>> scored);

// The samples of a set are judged by all ranks and written by the first, in their order:
//   {"set": "", "sample": 0, "label": 2, "class": 1, "name": "bees", "probabilities": [...]}
//   {"set": "", "sample": 0, "label": 1, "probability": 0.25}      a click
class Predictions {
 public:
  // References are kept. `file`: the first rank's; null on the others. `classes`: names, or none.
  Predictions(Session& session, const BatchSpec& inputs, const std::vector<std::string>& classes,
              Store& store, AtomicFile* file);

  // All ranks call it and block. `progress` hears of each batch. Returns the area under the curve:
  // of clicks, on the first rank.
  std::optional<double> Write(const std::string& set, const EvalLoader& loader,
                              const std::function<void(int64_t batch)>& progress);
  int64_t samples() const { return samples_; }  // All written so far. The first rank's.

 private:
  struct Judged {
    int64_t sample;
    double label, score;  // score: the probability of label 1.
    std::string line;
  };
  // This rank's samples of a batch.
  std::vector<Judged> Judge(const std::string& set, const EvalLoader& loader, int64_t batch);
  std::string LineOf(const std::string& set, int64_t sample, double label,
                     const std::vector<double>& probabilities) const;

  Session& session_;
  const size_t target_;  // The input with the labels.
  const bool is_click_;
  const std::vector<std::string>& classes_;
  Store& store_;
  AtomicFile* const file_;
  int64_t samples_ = 0, batches_ = 0;
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_LOOP_PREDICTIONS_H_
