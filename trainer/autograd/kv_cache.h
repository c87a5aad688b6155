// What attention has seen of a sequence: keys and values of each layer (generation).
// Tests: tests/trainer/autograd/tape_test.cc
#ifndef FSDP_TRAIN_TRAINER_AUTOGRAD_KV_CACHE_H_
#define FSDP_TRAIN_TRAINER_AUTOGRAD_KV_CACHE_H_

#include <cstdint>
#include <vector>

#include "trainer/core/check.h"
#include "trainer/core/view.h"

namespace fsdp {

// Layers are told apart by the order in which a forward pass asks for them.
class KvCache {
 public:
  struct Layer {
    View k, v;  // [rows, capacity, heads of k, head_dim], fp32.
  };

  // `capacity`: tokens of a row, those of the prompt included. Views are borrowed.
  KvCache(int64_t capacity, std::vector<Layer> layers)
      : capacity_(capacity), layers_(std::move(layers)) {}

  int64_t capacity() const { return capacity_; }

  void Begin() { next_ = 0; }  // Before each forward pass.
  const Layer& Next() {
    FSDP_CHECK_LT(next_, layers_.size());
    return layers_[next_++];
  }

 private:
  int64_t capacity_;
  std::vector<Layer> layers_;
  size_t next_ = 0;
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_AUTOGRAD_KV_CACHE_H_
