// A small GPT-2 trained by thread ranks: the whole path from schedule to bits, in milliseconds.
#ifndef FSDP_TRAIN_TESTS_TESTING_TINY_RUN_H_
#define FSDP_TRAIN_TESTS_TESTING_TINY_RUN_H_

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "models/gpt2/config.h"
#include "trainer/loop/session.h"

namespace fsdp::testing {

// Runs body(rank) on `world` threads and rethrows the first exception. The body must not return
// while a peer may still wait for it, so checks throw.
void RunRanks(int world, const std::function<void(int rank)>& body);

struct TinyRun {
  Gpt2Config config = TinyConfig();
  SessionOptions options = TinyOptions();
  int world = 1;
  int steps = 3;
  uint64_t seed = 7;
  bool check = true;  // Under the stream checker.
  bool park = false;  // Streams start parked: see CpuDevice::Park.

  static Gpt2Config TinyConfig();       // 3 blocks, odd sizes.
  static SessionOptions TinyOptions();  // SGD, a global batch of 6 x 11 tokens.
};

struct TinyResult {
  std::vector<float> losses, grad_norms;                 // By step.
  float eval_loss = 0;                                   // After the last step.
  std::map<std::string, std::vector<float>> parameters;  // Whole, after the last step.
  std::map<std::string, std::vector<float>> gradients;   // Of the last step, mean over targets.
};

// The tokens of step `step` (from 1) are a function of step and global sample alone.
TinyResult Train(const TinyRun& run);

}  // namespace fsdp::testing

#endif  // FSDP_TRAIN_TESTS_TESTING_TINY_RUN_H_
