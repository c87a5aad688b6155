// The kernel that comm/nccl, a room below, declares: a program that connects ranks by NCCL links
// it.
// Tests: tests/trainer/ops/cuda_sum_in_order_test.cc
#ifndef FSDP_TRAIN_TRAINER_OPS_CUDA_SUM_IN_ORDER_CUDA_H_
#define FSDP_TRAIN_TRAINER_OPS_CUDA_SUM_IN_ORDER_CUDA_H_

#include "trainer/comm/nccl/sum_in_order.h"  // IWYU pragma: export

#endif  // FSDP_TRAIN_TRAINER_OPS_CUDA_SUM_IN_ORDER_CUDA_H_
