// Frequencies against transformers 5.23.0: the numbers are what its functions in
// modeling_rope_utils.py give when their torch.float is replaced by torch.float64.
#include "models/llama/rope.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "models/shape.h"

namespace fsdp {
namespace {

LlamaConfig Config(int64_t head_dim, double theta, int64_t positions, const RopeScaling& scaling) {
  LlamaConfig config;
  config.head_dim = head_dim;
  config.rope_theta = theta;
  config.max_position_embeddings = positions;
  config.rope_scaling = scaling;
  EXPECT_TRUE(Validate(ModelShape(config)).empty());
  return config;
}

// A few operations of float64 on either side.
void ExpectFrequencies(const LlamaConfig& config, int64_t seq_len, const std::vector<double>& want,
                       double factor) {
  const RopeFrequencies got = RopeFrequenciesOf(config, seq_len);
  ASSERT_EQ(got.inverse.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) {
    EXPECT_NEAR(got.inverse[i] / want[i], 1, 1e-14) << i;
  }
  EXPECT_NEAR(got.attention_factor / factor, 1, 1e-15);
}

using Type = RopeScaling::Type;

TEST(Rope, Default) { ExpectFrequencies(Config(8, 10000, 64, {}), 64, {1, 0.1, 0.01, 0.001}, 1); }

TEST(Rope, Linear) {
  ExpectFrequencies(Config(8, 10000, 64, {.type = Type::kLinear, .factor = 2.5}), 64,
                    {0.4, 0.04, 0.004, 0.0004}, 1);
}

TEST(Rope, DynamicStretchesLongerSequencesAlone) {
  const LlamaConfig config = Config(8, 10000, 64, {.type = Type::kDynamic, .factor = 2.5});
  ExpectFrequencies(config, 40, {1, 0.1, 0.01, 0.001}, 1);
  ExpectFrequencies(config, 64, {1, 0.1, 0.01, 0.001}, 1);
  ExpectFrequencies(config, 100,
                    {1, 0.07462535630467956, 0.005568943803600377, 0.0004155844155844156}, 1);
}

TEST(Rope, Llama3) {
  ExpectFrequencies(
      Config(16, 500000, 131072,
             {.type = Type::kLlama3,
              .factor = 8,
              .original_max_position_embeddings = 8192,
              .low_freq_factor = 1,
              .high_freq_factor = 4}),
      64,
      {1, 0.19392274474868576, 0.03760603093086393, 0.0072926647372171085, 0.0005248461609929547,
       3.428102195952591e-05, 6.647869871181236e-06, 1.2891731721515574e-06},
      1);
}

TEST(Rope, Yarn) {
  RopeScaling yarn{.type = Type::kYarn, .factor = 4, .original_max_position_embeddings = 64};
  const std::vector<double> want = {1,      0.23717082451262847,   0.05,    0.007905694150420948,
                                    0.0025, 0.0007905694150420947, 0.00025, 7.905694150420948e-05};
  ExpectFrequencies(Config(16, 10000, 256, yarn), 64, want, 1.138629436111989);
  yarn.attention_factor = 1.5;
  ExpectFrequencies(Config(16, 10000, 256, yarn), 64, want, 1.5);
  yarn.attention_factor.reset();
  yarn.mscale = 0.7;
  ExpectFrequencies(Config(16, 10000, 256, yarn), 64, want, 1.138629436111989);
  yarn.mscale_all_dim = 0.9;
  ExpectFrequencies(Config(16, 10000, 256, yarn), 64, want, 0.9753496504321066);
}

TEST(Rope, YarnWithoutTruncation) {
  ExpectFrequencies(Config(16, 10000, 256,
                           {.type = Type::kYarn,
                            .factor = 4,
                            .original_max_position_embeddings = 64,
                            .beta_fast = 8,
                            .beta_slow = 0.5,
                            .truncate = false}),
                    64,
                    {1, 0.23840845044204842, 0.04424829579325597, 0.007905694150420948, 0.0025,
                     0.0007905694150420947, 0.00025, 7.905694150420948e-05},
                    1.138629436111989);
}

// A ramp that ends behind the last frequency: at a dimension of the head, of which there are twice
// as many, and not behind the last of those. Worked out with the formula alone.
TEST(Rope, YarnsRampMayEndBehindTheLastFrequency) {
  ExpectFrequencies(
      Config(16, 10000, 131072,
             {.type = Type::kYarn, .factor = 4, .original_max_position_embeddings = 32768}),
      64,
      {1, 0.31622776601683794, 0.1, 0.03162277660168379, 0.01, 0.0025693505988868075, 0.000625,
       0.00013834964763236658},
      1.138629436111989);
  ExpectFrequencies(
      Config(16, 10, 16384,
             {.type = Type::kYarn,
              .factor = 4,
              .original_max_position_embeddings = 4096,
              .beta_fast = 200}),
      64,
      {1, 0.7498942093324559, 0.5623413251903491, 0.4216965034285823, 0.31622776601683794,
       0.22096891348210881, 0.15357867632154332, 0.10607556846753714},
      1.138629436111989);
}

// Both ends of the ramp are the same dimension: it is made a step.
TEST(Rope, YarnWithoutARamp) {
  ExpectFrequencies(Config(4, 10000, 256,
                           {.type = Type::kYarn,
                            .factor = 4,
                            .original_max_position_embeddings = 6,
                            .beta_fast = 1,
                            .beta_slow = 1}),
                    64, {1, 0.0025}, 1.138629436111989);
}

}  // namespace
}  // namespace fsdp
