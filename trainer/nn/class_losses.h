// Losses of logits as functions on the tape. On a tape that records, the loss runs in Backward()
// and makes the gradient in the same pass; otherwise it runs at once.
#ifndef FSDP_TRAIN_TRAINER_NN_CLASS_LOSSES_H_
#define FSDP_TRAIN_TRAINER_NN_CLASS_LOSSES_H_

#include "trainer/autograd/var.h"
#include "trainer/core/view.h"

namespace fsdp {

class Tape;

// loss[0] += scale * sum of weights x cross-entropy of logits [rows, classes]. `targets`, int32,
// and `weights`, fp32, have `rows` elements, in any shape, and must live until the tape has run. On
// a tape that does not record, loss may be [2], for kAccuracy (eval_metric.h): loss[1] += sum of
// weights of the rows whose target has the highest logit.
void ClassLoss(Tape& tape, const Var& logits, const View& targets, const View& weights, float scale,
               View loss);

// The same with the binary cross-entropy of logits [rows] or [rows, 1], and with targets in fp32.
// For kNormalizedEntropy: loss[1] += sum of weights x targets.
void BinaryLoss(Tape& tape, const Var& logits, const View& targets, const View& weights,
                float scale, View loss);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_NN_CLASS_LOSSES_H_
