// Runs a suite's tests in each of the emulator's orders.
#ifndef FSDP_TRAIN_TESTS_EMULATED_IN_BOTH_ORDERS_H_
#define FSDP_TRAIN_TESTS_EMULATED_IN_BOTH_ORDERS_H_

#include <gtest/gtest.h>

#include "tests/emulated/simt.h"

namespace fsdp {

class InBothOrders : public ::testing::TestWithParam<EmulatedOrder> {
 protected:
  InBothOrders() { SetEmulatedOrder(GetParam()); }
};

}  // namespace fsdp

#define FSDP_IN_BOTH_ORDERS(suite)                                                              \
  INSTANTIATE_TEST_SUITE_P(                                                                     \
      Orders, suite,                                                                            \
      ::testing::Values(::fsdp::EmulatedOrder::kGreedy, ::fsdp::EmulatedOrder::kGreedyReverse), \
      [](const auto& info) {                                                                    \
        return info.param == ::fsdp::EmulatedOrder::kGreedy ? "greedy" : "reverse";             \
      })

#endif  // FSDP_TRAIN_TESTS_EMULATED_IN_BOTH_ORDERS_H_
