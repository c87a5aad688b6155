// The keys and values that attention has computed for a sequence during generation, layer by layer,
// and those that its layers computed from an encoder's output.
// Tests: tests/trainer/autograd/tape_test.cc
#ifndef FSDP_TRAIN_TRAINER_AUTOGRAD_KV_CACHE_H_
#define FSDP_TRAIN_TRAINER_AUTOGRAD_KV_CACHE_H_

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "trainer/core/check.h"
#include "trainer/core/view.h"

namespace fsdp {

// A forward pass asks for the layers in order: the order tells them apart.
class KvCache {
 public:
  struct Layer {
    View k, v;  // [rows, capacity, heads of k, head_dim], fp32.
  };
  // Keys and values of an encoder's output, which has its own number of keys: the heads of k, then
  // those of v. One forward pass computes them, all later ones read them.
  struct Encoded {
    View kv;              // [rows x keys, 2 heads of k x head_dim], fp32.
    bool filled = false;  // An earlier pass has computed them.
  };

  // `capacity`: positions of a row, those of the prompt included. Views are borrowed.
  KvCache(int64_t capacity, std::vector<Layer> layers, std::vector<Encoded> encoded = {})
      : capacity_(capacity), layers_(std::move(layers)), encoded_(std::move(encoded)) {}

  int64_t capacity() const { return capacity_; }
  // True when the cache holds everything that layers ask of an encoder's output: a pass then needs
  // no encoder.
  bool has_encoded() const {
    return !encoded_.empty() && std::ranges::all_of(encoded_, &Encoded::filled);
  }

  void Begin() { next_ = next_encoded_ = 0; }  // Before each forward pass.
  const Layer& Next() {
    FSDP_CHECK_LT(next_, layers_.size());
    return layers_[next_++];
  }
  Encoded& NextEncoded() {
    FSDP_CHECK_LT(next_encoded_, encoded_.size());
    return encoded_[next_encoded_++];
  }

 private:
  int64_t capacity_;
  std::vector<Layer> layers_;
  std::vector<Encoded> encoded_;
  size_t next_ = 0, next_encoded_ = 0;
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_AUTOGRAD_KV_CACHE_H_
