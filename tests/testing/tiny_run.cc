#include "tests/testing/tiny_run.h"

#include <algorithm>
#include <bit>
#include <memory>

#include "models/shape.h"
#include "tests/testing/tiny_rank.h"
#include "trainer/core/philox.h"
#include "trainer/engine/plan_memory.h"
#include "trainer/nn/initial_values.h"
#include "trainer/nn/model.h"

namespace fsdp::testing {

Gpt2Config TinyRun::TinyConfig() {
  Gpt2Config config;
  config.hidden_size = 24;
  config.intermediate_size = 52;
  config.num_hidden_layers = 3;
  config.num_attention_heads = 3;
  config.vocab_size = 101;
  config.max_position_embeddings = 16;
  return config;
}

LlamaConfig TinyRun::TinyLlama() {
  LlamaConfig config;
  config.hidden_size = 24;
  config.intermediate_size = 40;
  config.num_hidden_layers = 2;
  config.num_attention_heads = 6;
  config.num_key_value_heads = 3;
  config.head_dim = 10;
  config.vocab_size = 101;
  config.max_position_embeddings = 16;
  config.rope_scaling = {.type = RopeScaling::Type::kYarn,
                         .factor = 4,
                         .original_max_position_embeddings = 4,
                         .beta_fast = 1,
                         .beta_slow = 0.1};
  config.attention_bias = config.attention_output_bias = config.mlp_bias = config.qk_norm = true;
  return config;
}

MoeConfig TinyRun::TinyMoe() {
  MoeConfig config;
  static_cast<LlamaConfig&>(config) = TinyLlama();
  config.num_hidden_layers = 3;
  config.attention_bias = config.attention_output_bias = config.mlp_bias = config.qk_norm = false;
  config.qk_norm_all_heads = true;
  config.num_experts = 5;
  config.moe_intermediate_size = 14;
  config.shared_expert_intermediate_size = 18;
  config.shared_expert_gate = true;
  config.dense_layers = {0};
  return config;
}

SessionOptions TinyRun::TinyOptions() {
  SessionOptions options;
  options.global_batch_size = 6;
  options.executor.sample_length = 11;
  options.executor.micro_batch_size = 2;
  options.executor.max_norm = 1;
  options.executor.poison = true;
  options.optimizer.kind = OptimizerOptions::Kind::kSgd;
  options.optimizer.momentum = 0.9;
  options.lr = {LrShape::kConstant, 0.1, 0, 100, 0.1};
  return options;
}

namespace {

void RandomInitial(uint64_t seed, const Parameter& p, int64_t begin, std::span<float> values) {
  FillInitial(p, seed, begin, values);
  // Norms and biases away from 1 and 0, where mistakes would not show.
  const RandomStream random(seed, p.name(), 1);
  for (size_t i = 0; i < values.size(); ++i) values[i] += 0.05f * random.Normal(begin + i);
}

}  // namespace

TinyRun::Sample SampleOf(const TinyRun& run) {
  if (run.sample) return run.sample;
  return [seed = run.seed, used = VocabSize(run.shape()) / 2](
             int64_t step, int64_t sample, std::span<int32_t> tokens, std::span<float> weights) {
    const RandomStream random(seed, "tokens", static_cast<uint64_t>(step));
    const auto n = static_cast<int64_t>(tokens.size());
    for (int64_t i = 0; i < n; ++i) {
      tokens[i] = static_cast<int32_t>(random.Below(sample * n + i, used));
    }
    std::fill(weights.begin(), weights.end(), 1.0f);
  };
}

std::string FirstDifference(const TinyResult& a, const TinyResult& b) {
  const auto compare = [](const std::string& name, const std::vector<float>& x,
                          const std::vector<float>& y) -> std::string {
    if (x.size() != y.size()) return name + ": another size";
    for (size_t i = 0; i < x.size(); ++i) {
      if (std::bit_cast<uint32_t>(x[i]) == std::bit_cast<uint32_t>(y[i])) continue;
      return name + "[" + std::to_string(i) + "]: " + std::to_string(x[i]) + " and " +
             std::to_string(y[i]);
    }
    return "";
  };
  std::vector<std::string> found{
      compare("loss", a.losses, b.losses),
      compare("grad_norm", a.grad_norms, b.grad_norms),
      compare("loss_scale", a.loss_scales, b.loss_scales),
      compare("eval_loss", {a.eval_loss}, {b.eval_loss}),
      compare("eval_second_sum", {a.eval_second_sum}, {b.eval_second_sum}),
      compare("logits", a.logits, b.logits)};
  const auto tensors = [&](const std::string& kind, const Tensors& x, const Tensors& y) {
    if (x.size() != y.size()) found.push_back(kind + ": another number");
    for (const auto& [name, values] : x) {
      const auto other = y.find(name);
      found.push_back(
          compare(kind + name, values, other == y.end() ? std::vector<float>{} : other->second));
    }
  };
  tensors("gradient ", a.gradients, b.gradients);
  tensors("parameter ", a.parameters, b.parameters);
  tensors("state ", a.state, b.state);
  tensors("buffer ", a.buffers, b.buffers);
  for (const std::string& difference : found) {
    if (!difference.empty()) return difference;
  }
  return "";
}

int64_t PlannedActivations(const TinyRun& run) {
  const std::shared_ptr<Model> model = MakeModel(run.shape());
  return PlanMemory(*model, run.options, run.world).bytes(MemoryKind::kActivations);
}

TinyResult Train(const TinyRun& given) {
  TinyRun run = given;
  const int64_t wave = run.options.executor.micro_batch_size * run.world;
  run.options.executor.micro_batches =
      static_cast<int>((run.options.global_batch_size + wave - 1) / wave);
  run.options.generate = !run.logits.empty();
  if (!run.initial) {
    run.initial = [seed = run.seed](const Parameter& p, int64_t begin, std::span<float> values) {
      RandomInitial(seed, p, begin, values);
    };
  }
  if (!run.initial_rows) {
    run.initial_rows = [seed = run.seed](const EmbeddingTable& table, int64_t begin,
                                         std::span<float> values) {
      FillInitial(table, seed, begin, values);
    };
  }
  run.sample = SampleOf(run);
  Collected all;
  const std::vector<Outcome> outcomes =
      run.ranks(run.world, [&](Rank& rank) { return RunTinyRank(run, rank); });
  for (int r = 0; r < run.world; ++r) {
    Require(outcomes[r].error.empty(), "rank " + std::to_string(r) + ": " + outcomes[r].error);
    all.Read(outcomes[r].result);
  }
  TinyResult result;
  result.losses = all.Values("loss");
  result.grad_norms = all.Values("grad_norm");
  result.loss_scales = all.Values("loss_scale");
  result.coded = all.Values("coded");
  result.eval_loss = all.Values("eval").at(0);
  result.eval_second_sum = all.Values("eval").at(1);
  result.logits = all.Values("logits");
  result.initial = all.WithPrefix("initial/");
  result.parameters = all.WithPrefix("parameter/");
  result.gradients = all.WithPrefix("gradient/");
  result.state = all.WithPrefix("state/");
  result.buffers = all.WithPrefix("buffer/");
  return result;
}

}  // namespace fsdp::testing
