#include "trainer/engine/step_operations.h"

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>

#include "models/regnet/config.h"
#include "models/shape.h"
#include "models/t5/config.h"
#include "models/vit/config.h"
#include "tests/testing/tiny_run.h"
#include "trainer/runtime/operation.h"

namespace fsdp::testing {
namespace {

// By hand for one block: 6 FLOPs for each weight of a matrix, and attention's two products.
TEST(StepOperations, FlopsOfASample) {
  const std::shared_ptr<Model> model = MakeModel(TinyRun::TinyLlama());
  const double block = 24 * (60 + 30 + 30) + 60 * 24 + 3 * 24 * 40;
  EXPECT_EQ(FlopsPerSample(*model, 7), 7 * (6 * (2 * block + 101 * 24) + 6 * 2 * 60 * 7));
}

T5Config TinyT5() {
  return {.hidden_size = 24,
          .intermediate_size = 52,
          .num_hidden_layers = 2,
          .num_decoder_layers = 3,
          .num_attention_heads = 3,
          .head_dim = 10,
          .vocab_size = 101,
          .target_length = 5};
}

// 7 tokens in, 5 out, and the products that turn the tables of biases round: 3 heads' 32 buckets.
TEST(StepOperations, FlopsOfAPair) {
  const std::shared_ptr<Model> model = MakeModel(TinyT5());
  const double in = 7, out = 5, attention = 2 * 24 * 30, mlp = 2 * 24 * 52;
  const double weights = 2 * in * (2 * attention + mlp) + 3 * out * (3 * attention + mlp) +
                         3 * in * attention + out * 101 * 24;
  const double scores = 12 * 30 * (2 * in * in + 3 * out * out / 2 + 3 * out * in);
  const double tables = (2 + 3) * 4 * 3 * 3 * 32;
  EXPECT_EQ(FlopsPerSample(*model, 7), 6 * weights + scores + tables);
}

// An image has 9 patches, which have no gradient, and the learned token.
TEST(StepOperations, FlopsOfAnImage) {
  VitConfig config{.image_size = 6,
                   .patch_size = 2,
                   .num_labels = 11,
                   .hidden_size = 24,
                   .intermediate_size = 52,
                   .num_hidden_layers = 2,
                   .num_attention_heads = 3,
                   .head_dim = 8};
  const double tokens = 10, layer = tokens * (4 * 24 * 24 + 2 * 24 * 52);
  const double weights = 9 * 12 * 24 + 2 * layer + 24 * 11;
  const double scores = 2 * 12 * 24 * tokens * tokens;
  EXPECT_EQ(FlopsPerSample(*MakeModel(config), 1), 6 * weights + scores - 2 * 9 * 12 * 24);
  config.qkv_bias = false;
  config.reattention = Reattention::kLayerNorm;
  const double mixing = 2 * 6 * 3 * 3 * tokens * tokens;
  EXPECT_EQ(FlopsPerSample(*MakeModel(config), 1), 6 * weights + scores + mixing - 2 * 9 * 12 * 24);
}

// One block with a convolution beside it, of 4 x 4 images; those have no gradient.
TEST(StepOperations, FlopsOfConvolutions) {
  const RegNetConfig config{.image_size = 8,
                            .num_labels = 11,
                            .embedding_size = 6,
                            .hidden_sizes = {16},
                            .depths = {1},
                            .groups_width = 8};
  const double stem = 16 * 27 * 6, narrow = 16 * 6 * 16, grouped = 4 * 9 * 8 * 16;
  const double wide = 4 * 16 * 16, beside = 4 * 6 * 16, squeeze = 2 * 16 * 2, head = 16 * 11;
  EXPECT_EQ(FlopsPerSample(*MakeModel(config), 1),
            6 * (stem + narrow + grouped + wide + beside + squeeze + head) - 2 * stem);
}

// Embeddings and outputs of both stacks, three places of an encoder's block, four of a decoder's,
// there and back; probabilities are dropped in attention itself.
TEST(StepOperations, DropoutIsInEachPlace) {
  for (const bool gated : {false, true}) {
    T5Config config = TinyT5();
    config.gated_mlp = gated;
    config.dropout_rate = 0.2;
    const std::shared_ptr<Model> model = MakeModel(config);
    std::map<std::string, int> operations;
    ObserveStep(*model, TinyRun::TinyOptions(), 1, DeviceType::kCpu,
                [&](const Operation& operation, StepResource) { ++operations[operation.name]; });
    const int micro_batches = TinyRun::TinyOptions().executor.micro_batches;
    EXPECT_EQ(operations["dropout"], 2 * micro_batches * (4 + 2 * 3 + 3 * 4));
  }
}

}  // namespace
}  // namespace fsdp::testing
