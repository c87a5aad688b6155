// The weights of a checkpoint as the start of another run.
#ifndef FSDP_TRAIN_TRAINER_CHECKPOINT_CHECKPOINT_WEIGHTS_H_
#define FSDP_TRAIN_TRAINER_CHECKPOINT_CHECKPOINT_WEIGHTS_H_

#include <cstdint>
#include <span>
#include <string>

#include "trainer/checkpoint/checkpoint_reader.h"

namespace fsdp {

// Used by one thread; reads byte ranges when asked, and holds no parameter.
class CheckpointWeights {
 public:
  explicit CheckpointWeights(const std::string& directory) : reader_(directory) {}

  // Fills `out` with elements [begin, begin + out.size()) of the parameter's master weights. Throws
  // CheckpointError where there is no such parameter, it has another shape, or it is damaged.
  void Fill(const std::string& parameter, const Shape& shape, int64_t begin, std::span<float> out) {
    reader_.Read("master", parameter, shape, begin, out);
  }

 private:
  CheckpointReader reader_;
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_CHECKPOINT_CHECKPOINT_WEIGHTS_H_
