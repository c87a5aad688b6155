// How a router chooses experts.
// Tests: tests/trainer/ops/router_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPS_ROUTER_OPTIONS_H_
#define FSDP_TRAIN_TRAINER_OPS_ROUTER_OPTIONS_H_

#include <cstdint>

namespace fsdp {

inline constexpr int64_t kMaxExperts = 512;  // A lane of a GPU's warp has 16 scores.

// A token's scores p: the softmax of its logits, or the sigmoid of each logit.
enum class RouterScores : uint8_t { kSoftmax, kSigmoid };

struct RouterOptions {
  int64_t experts_per_token = 1;  // k.
  RouterScores scores = RouterScores::kSoftmax;
  bool normalize = false;  // Divides a token's weights by their sum.
  // The experts form this many equal groups of neighbours. A token chooses among the experts of its
  // best groups_kept.
  int64_t groups = 1, groups_kept = 1;
  double scale = 1;  // All weights'.

  bool operator==(const RouterOptions&) const = default;
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_ROUTER_OPTIONS_H_
