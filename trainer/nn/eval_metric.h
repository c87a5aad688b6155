// A number that an evaluation reports beside the loss. A model names one of these (model.h);
// records and tables print its value under its name.
// Tests: tests/trainer/nn/eval_metric_test.cc
#ifndef FSDP_TRAIN_TRAINER_NN_EVAL_METRIC_H_
#define FSDP_TRAIN_TRAINER_NN_EVAL_METRIC_H_

#include <optional>

namespace fsdp {

struct EvalMetric {
  const char* name;  // A key of records, and a label for people.
  // Whether it needs a second sum over targets, each times its weight. Model::Loss() then gets loss
  // [2] in evaluations: the place where training has the gradient's squares. The sum is not scaled
  // as the loss is, so a count is exact on any number of ranks.
  bool has_sum;
  // The value, from the means over targets of the loss and of the second sum. Empty: there is none.
  std::optional<double> (*value)(double loss, double mean);
};

// exp(loss), for a loss in nats of one choice, such as a token's.
extern const EvalMetric kPerplexity;

// The share of targets whose class has the highest score. Second sum: 1 for each of them.
extern const EvalMetric kAccuracy;

// The loss, divided by the loss of a constant prediction: the mean label p of the evaluated
// targets.
//   loss / -(p log p + (1 - p) log(1 - p))
// Second sum: the labels. There is no value where all labels are 0, or all are 1. Source: He et al.
// 2014, "Practical Lessons from Predicting Clicks on Ads at Facebook", section 3.
extern const EvalMetric kNormalizedEntropy;

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_NN_EVAL_METRIC_H_
