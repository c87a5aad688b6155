// What a forward pass is fed.
#ifndef FSDP_TRAIN_TRAINER_DATA_BATCH_H_
#define FSDP_TRAIN_TRAINER_DATA_BATCH_H_

#include "trainer/core/view.h"

namespace fsdp {

// A micro-batch. All [rows, seq_len].
struct Batch {
  View tokens;     // int32.
  View targets;    // int32: the token after each token.
  View weights;    // fp32: 1 for a target that counts; 0 in rows left over, and across documents.
  View positions;  // int32, of each token in its document: rises by one, or is 0 again (loader.h).
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_DATA_BATCH_H_
