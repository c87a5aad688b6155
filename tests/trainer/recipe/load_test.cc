#include "trainer/recipe/load.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <utility>

#include "models/gpt2/config.h"
#include "models/llama/config.h"
#include "models/regnet/config.h"
#include "models/shape.h"
#include "models/vit/config.h"
#include "tests/testing/error_of.h"
#include "trainer/core/errors.h"
#include "trainer/recipe/print.h"
#include "trainer/recipe/recipe.h"

namespace fsdp {
namespace {

constexpr const char* kGood =
    "model: {family: gpt2, hidden_size: 64, num_attention_heads: 4}\n"
    "data: {train: {paths: [corpus.txt]}}\n";

Recipe Parse(const std::string& text, const std::vector<std::string>& overrides = {}) {
  return ParseRecipe({{"r.yaml", text}}, overrides);
}

std::string MistakesOf(const std::vector<RecipeText>& texts,
                       const std::vector<std::string>& overrides = {}) {
  try {
    ParseRecipe(texts, overrides);
  } catch (const ConfigError& error) {
    EXPECT_EQ(error.code(), ExitCode::kUsage);
    return error.what();
  }
  return "";
}

std::string MistakesOf(const std::string& text, const std::vector<std::string>& overrides = {}) {
  return MistakesOf({{"r.yaml", text}}, overrides);
}

TEST(LoadRecipe, FillsInTheDefaults) {
  const Recipe recipe = Parse(kGood);
  EXPECT_EQ(recipe.train.steps, 100);
  EXPECT_EQ(recipe.optimizer.lr, 3e-4);
  EXPECT_EQ(recipe.fsdp.sharding_strategy, Strategy::kFullShard);
  EXPECT_EQ(recipe.run.Directory(), "runs/run");
  EXPECT_EQ(std::get<HeldOut>(recipe.data.valid).fraction, 0.05);
  const auto shape = *ShapeOf(recipe.model).As<Gpt2Config>();
  EXPECT_EQ(shape.hidden_size, 64);
  EXPECT_EQ(shape.intermediate_size, 256);
  EXPECT_EQ(shape.num_hidden_layers, 12);
  EXPECT_EQ(shape.vocab_size, 256);  // Bytes.
  EXPECT_EQ(shape.max_position_embeddings, 1024);
}

TEST(LoadRecipe, ReadsEveryKindOfValue) {
  const Recipe recipe = Parse(R"(
run: {name: "5", dir: /tmp/x, seed: 0x10, device: sim, timeout_s: 1, store_port: 29501}
model: {family: gpt2, preset: gpt2-350m, vocab_size: 300}
data:
  train: {source: text, paths: [a.txt, 'b c.txt', "*.txt"], tokenizer: bytes}
  valid: {source: text, paths: [v.txt]}
  shuffle: False
train: {activation_checkpointing: selective, attention: math, grad_clip: 0}
eval: {every: 10, sample: {prompt: "Once\n", max_tokens: 7}}
optimizer: {name: sgd, lr: 1e-1, momentum: .9, betas: [0, 0.5]}
schedule: {name: constant, warmup_steps: 3}
fsdp: {sharding_strategy: no_shard, shard_size: 1, backward_prefetch: none, limit_all_gathers: 0}
checkpoint: {resume: 40, keep_last: 0}
log: {tensorboard: false, trace_steps: [1, 5], spike_z: 4}
)");
  EXPECT_EQ(recipe.run.name, "5");
  EXPECT_EQ(recipe.run.Directory(), "/tmp/x");
  EXPECT_EQ(recipe.run.seed, 16);
  EXPECT_EQ(recipe.run.device, RunRecipe::Device::kSim);
  EXPECT_EQ(recipe.run.timeout_s, 1.0);
  EXPECT_EQ(recipe.run.store_port, 29501);
  EXPECT_EQ(recipe.model.Get<int64_t>("hidden_size"), 1024);
  EXPECT_EQ(recipe.model.Get<int64_t>("vocab_size"), 300);
  ASSERT_EQ(recipe.data.TrainSources().size(), 1u);
  EXPECT_EQ(recipe.data.TrainSources()[0].paths,
            (std::vector<std::string>{"a.txt", "b c.txt", "*.txt"}));
  EXPECT_EQ(std::get<SourceRecipe>(recipe.data.valid).paths, std::vector<std::string>{"v.txt"});
  EXPECT_FALSE(recipe.data.shuffle);
  EXPECT_EQ(recipe.train.activation_checkpointing, Recompute::kSelective);
  EXPECT_EQ(recipe.train.attention, TrainRecipe::Attention::kMath);
  EXPECT_EQ(recipe.train.grad_clip, 0);
  ASSERT_TRUE(recipe.eval.sample);
  EXPECT_EQ(recipe.eval.sample->prompt, "Once\n");
  EXPECT_EQ(recipe.eval.sample->max_tokens, 7);
  EXPECT_EQ(recipe.eval.sample->temperature, 0.8);
  EXPECT_EQ(recipe.optimizer.name, OptimizerRecipe::Kind::kSgd);
  EXPECT_EQ(recipe.optimizer.lr, 0.1);
  EXPECT_EQ(recipe.optimizer.momentum, 0.9);
  EXPECT_EQ(recipe.optimizer.betas, (std::array<double, 2>{0, 0.5}));
  EXPECT_EQ(recipe.schedule.name, ScheduleRecipe::Kind::kConstant);
  EXPECT_EQ(recipe.fsdp.backward_prefetch, BackwardPrefetch::kNone);
  EXPECT_EQ(recipe.checkpoint.resume.kind, ResumeRecipe::Kind::kStep);
  EXPECT_EQ(recipe.checkpoint.resume.step, 40);
  EXPECT_FALSE(recipe.log.tensorboard);
  EXPECT_EQ(recipe.log.trace_steps, (std::vector<int64_t>{1, 5}));
  EXPECT_EQ(recipe.log.spike_z, 4.0);
  EXPECT_EQ(Parse(kGood, {"checkpoint.resume='40'"}).checkpoint.resume.directory, "40");
  EXPECT_EQ(Parse(kGood, {"checkpoint.resume=none"}).checkpoint.resume.kind,
            ResumeRecipe::Kind::kNone);
}

TEST(Recipe, SavesAtTheEndUnlessWeightsMeanNothing) {
  EXPECT_EQ(Parse(kGood, {}).checkpoint.every, 0);
  EXPECT_EQ(Parse(kGood, {"fsdp.fake_reduce=true"}).checkpoint.every, std::nullopt);
  EXPECT_EQ(Parse(kGood, {"checkpoint.every=null"}).checkpoint.every, std::nullopt);
}

struct Case {
  const char* name;
  const char* text;  // Follows kGood, so its first line is 3.
  const char* mistakes;
};

class MistakeTest : public ::testing::TestWithParam<Case> {};

TEST_P(MistakeTest, IsNamedWithItsPlace) {
  EXPECT_EQ(MistakesOf(kGood + std::string(GetParam().text)), GetParam().mistakes);
}

INSTANTIATE_TEST_SUITE_P(
    Each, MistakeTest,
    ::testing::ValuesIn(std::vector<Case>{
        // Keys.
        {"UnknownKey", "train: {stepz: 5}",
         "r.yaml:3:9: train.stepz: unknown key; did you mean "
         "`steps`?"},
        {"UnknownSection", "optimiser: {lr: 1}",
         "r.yaml:3:1: optimiser: unknown key; did you mean `optimizer`?"},
        {"OtherProgramsKey", "optimizer: {learning_rate: 1}",
         "r.yaml:3:13: optimizer.learning_rate: unknown key; did you mean `lr`?"},
        {"OtherProgramsAccumulation", "train: {gradient_accumulation_steps: 4}",
         "r.yaml:3:9: train.gradient_accumulation_steps: unknown key; did you mean "
         "`global_batch_size`? (micro_batch_size x ranks x accumulated steps)"},
        {"KeyOfAnotherSection", "train: {weight_decay: 0}",
         "r.yaml:3:9: train.weight_decay: unknown key; did you mean `optimizer.weight_decay`?"},
        {"NothingNear", "log: {nothing: 0}",
         "r.yaml:3:7: log.nothing: unknown key; known here: every, tensorboard, "
         "expert_loads_every, trace_steps and spike_z"},
        {"DuplicateKey", "log:\n  every: 1\n  every: 2",
         "r.yaml:5:3: log.every: duplicate key, first on line 4"},
        {"DuplicateSection", "model: {family: gpt2}",
         "r.yaml:3:1: model: duplicate key, first on line 1"},
        // Types.
        {"TextForInteger", "train: {steps: many}",
         "r.yaml:3:16: train.steps: want an integer of at least 1, got the text `many`"},
        {"QuotedInteger", "train: {steps: '5'}",
         "r.yaml:3:16: train.steps: want an integer of at least 1, got the text `5`"},
        {"NumberForInteger", "train: {steps: 1e3}",
         "r.yaml:3:16: train.steps: want an integer of at least 1, got 1e3"},
        {"BooleanForInteger", "train: {steps: true}",
         "r.yaml:3:16: train.steps: want an integer of at least 1, got true"},
        {"NullForInteger", "train: {micro_batch_size: }",
         "r.yaml:3:27: train.micro_batch_size: want an integer of at least 1, got null"},
        {"NoEnd", "train: {steps: }",
         "r.yaml:3:16: train.steps: train.steps is null, and so is train.epochs: how long is the "
         "run?"},
        {"TwoEnds", "train: {steps: 5, epochs: 2}",
         "r.yaml:3:27: train.epochs: train.epochs stands in place of train.steps, which is 5: set "
         "that to null, or this one"},
        {"FakeIsNotSavedByTheClock", "fsdp: {fake_reduce: true}\ncheckpoint: {every_minutes: 5}",
         "r.yaml:4:29: checkpoint.every_minutes: saves with fsdp.fake_reduce, whose weights mean "
         "nothing: set it to null"},
        {"ListForInteger", "train: {steps: [1, 2]}",
         "r.yaml:3:16: train.steps: want an integer of at least 1, got a list of 2"},
        {"GarbageAfterInteger", "train: {steps: 10k}",
         "r.yaml:3:16: train.steps: want an integer of at least 1, got the text `10k`"},
        {"HugeInteger", "run: {seed: 9223372036854775808}",
         "r.yaml:3:13: run.seed: want an integer of at most 9223372036854775807, got "
         "9223372036854775808"},
        {"InfiniteNumber", "optimizer: {lr: .inf}",
         "r.yaml:3:17: optimizer.lr: want a finite number that fits in 64 bits, got .inf"},
        {"NotANumber", "optimizer: {lr: .nan}",
         "r.yaml:3:17: optimizer.lr: want a finite number that fits in 64 bits, got .nan"},
        {"OverflowingNumber", "optimizer: {lr: 1e999}",
         "r.yaml:3:17: optimizer.lr: want a finite number that fits in 64 bits, got 1e999"},
        {"BooleanForNumber", "optimizer: {lr: false}",
         "r.yaml:3:17: optimizer.lr: want a number of at least 0, got false"},
        {"YesForBoolean", "data.x: 1\nfsdp: {forward_prefetch: yes}",
         "r.yaml:3:1: data.x: unknown key; did you mean `data`?\n"
         "r.yaml:4:26: fsdp.forward_prefetch: want true or false, got the text `yes`"},
        {"IntegerForBoolean", "fsdp: {forward_prefetch: 1}",
         "r.yaml:3:26: fsdp.forward_prefetch: want true or false, got 1"},
        {"IntegerForText", "run: {name: 5}",
         "r.yaml:3:13: run.name: want text (in quotes, where it looks like something else), got 5"},
        {"EmptyText", "run: {name: ''}",
         "r.yaml:3:13: run.name: want text that is not empty, got the text ``"},
        {"ValueForSection", "train: 5", "r.yaml:3:8: train: want a map as in `{steps: 5}`, got 5"},
        {"NullForSection", "train:", "r.yaml:3:1: train: want a map, got null"},
        {"WordForSection", "optimizer: adamw",
         "r.yaml:3:12: optimizer: want a map as in `{name: adamw}`, got the text `adamw`"},
        {"OtherWordForSection", "optimizer: lion",
         "r.yaml:3:12: optimizer: want a map as in `{name: adamw}`, got the text `lion`"},
        {"WordForFormats", "fsdp: {mixed_precision: bf16}",
         "r.yaml:3:25: fsdp.mixed_precision: want a map as in `{param_dtype: bf16}`, got the text "
         "`bf16`"},
        {"BooleanForOffload", "fsdp: {cpu_offload: true}",
         "r.yaml:3:21: fsdp.cpu_offload: want a map as in `{optimizer: true, params: true}`, got "
         "true"},
        {"ListForSection", "fsdp: [full_shard, auto_wrap]",
         "r.yaml:3:7: fsdp: want a map as in `{sharding_strategy: full_shard}`, got a list of 2"},
        {"NothingNearAgain", "log: {nothing: 0, z: 0}\nstuff: 1",
         "r.yaml:3:7: log.nothing: unknown key; known here: every, tensorboard, "
         "expert_loads_every, trace_steps and spike_z\nr.yaml:3:19: log.z: unknown "
         "key\nr.yaml:4:1: stuff: unknown key; known here: "
         "run, model, data, train, eval, optimizer, schedule, fsdp, checkpoint and log"},
        {"NameOfASectionInIt", "my_data_checkpoint: 1",
         "r.yaml:3:1: my_data_checkpoint: unknown key; known here: run, model, data, train, eval, "
         "optimizer, schedule, fsdp, checkpoint and log"},
        {"TextForList", "log: {trace_steps: 5}",
         "r.yaml:3:20: log.trace_steps: want a list, got 5"},
        {"ItemOfList", "log: {trace_steps: [5, x]}",
         "r.yaml:3:24: log.trace_steps[1]: want an integer of at least 1, got the text `x`"},
        {"LengthOfList", "optimizer: {betas: [0.9]}",
         "r.yaml:3:20: optimizer.betas: want a list of 2, got a list of 1"},
        {"Resume", "checkpoint: {resume: 1.5}",
         "r.yaml:3:22: checkpoint.resume: want `auto`, `none`, a step or a directory, got 1.5"},
        {"ResumeBeforeTheStart", "checkpoint: {resume: -1}",
         "r.yaml:3:22: checkpoint.resume: want an integer of at least 0, got -1"},
        // Ranges and names.
        {"BelowRange", "fsdp: {reduce_buffers: 0}",
         "r.yaml:3:24: fsdp.reduce_buffers: want an integer of at least 1, got 0"},
        {"OutOfRange", "fsdp: {communicators: 3}",
         "r.yaml:3:23: fsdp.communicators: want an integer from 1 to 2, got 3"},
        {"OpenEnd", "optimizer: {betas: [0.9, 1]}",
         "r.yaml:3:26: optimizer.betas[1]: want a number of at least 0 and below 1, got 1"},
        {"Name", "optimizer: {name: adam}",
         "r.yaml:3:19: optimizer.name: want `adamw`, `sgd`, `muon` or `adafactor`, got the text "
         "`adam`; did you mean "
         "`adamw`?"},
        {"NameOfAnotherType", "optimizer: {name: 3}",
         "r.yaml:3:19: optimizer.name: want `adamw`, `sgd`, `muon` or `adafactor`, got 3"},
        {"PathForName", "run: {name: a/b}",
         "r.yaml:3:13: run.name: a name, not a path; run.dir takes a path"},
        {"CodesOfSgd", "optimizer: {name: sgd, state_dtype: 8bit}",
         "r.yaml:3:37: optimizer.state_dtype: optimizer.state_dtype is `8bit`, which is for "
         "`adamw` and `muon`, but optimizer.name is `sgd`: set optimizer.state_dtype to fp32 or "
         "bf16"},
        {"CodesOfAGroupOfSgd", "optimizer: {name: sgd, groups: [{match: '*', state_dtype: 8bit}]}",
         "r.yaml:3:59: optimizer.groups[0].state_dtype: optimizer.groups[0].state_dtype is `8bit`, "
         "which is for `adamw` and `muon`, but optimizer.name is `sgd`: set "
         "optimizer.groups[0].state_dtype to fp32 or bf16"},
        {"StateOfFrozen", "optimizer: {groups: [{match: '*', frozen: true, state_dtype: bf16}]}",
         "r.yaml:3:62: optimizer.groups[0].state_dtype: optimizer.groups[0].state_dtype is given, "
         "but the group is frozen and has no state: leave it out"},
        // The paper's runtime.
        {"DeviceLimitsSlots", "fsdp: {buffers: caching, limiter: device}",
         "r.yaml:3:35: fsdp.limiter: `device` limits gathers by slots, and with fsdp.buffers "
         "`caching` there are none: set fsdp.limiter to `host`"},
        {"CachingUpdatesOnTheDevice",
         "fsdp: {buffers: caching, limiter: host, cpu_offload: {optimizer: true}}",
         "r.yaml:3:17: fsdp.buffers: `caching` leaves all memory on the device, but "
         "fsdp.cpu_offload.optimizer moves some to the host: set fsdp.buffers to `slots`, or "
         "fsdp.cpu_offload.optimizer to `false`"},
        {"CachingKeepsActivations",
         "fsdp: {buffers: caching, limiter: host}\ntrain: {activation_offload: host}",
         "r.yaml:3:17: fsdp.buffers: `caching` leaves all memory on the device, but "
         "train.activation_offload moves some to the host: set fsdp.buffers to `slots`, or "
         "train.activation_offload to `none`"},
        {"SlotsAreNotConcatenated", "fsdp: {concat_gradients: true}",
         "r.yaml:3:26: fsdp.concat_gradients: `slots` have no place for what "
         "fsdp.concat_gradients copies: set fsdp.buffers to `caching`, or this to false"},
        {"FakeGatherIsNotSaved", "fsdp: {fake_all_gather: true}\ncheckpoint: {every: 5}",
         "r.yaml:4:21: checkpoint.every: checkpoint.every is 5 with fsdp.fake_all_gather, whose "
         "weights mean nothing: set it to null"},
        {"FakeReduceIsNotResumed", "fsdp: {fake_reduce: true}\ncheckpoint: {resume: 5}",
         "r.yaml:4:22: checkpoint.resume: nothing can be resumed with fsdp.fake_reduce, whose "
         "weights mean nothing: set checkpoint.resume to none"},
        {"LimitOfNothing", "run: {memory_limit: 0}",
         "r.yaml:3:21: run.memory_limit: want bytes, at least 1, as in 10000000000, 10GB or "
         "1.5GiB, got 0"},
        {"LimitOfAnotherUnit", "run: {memory_limit: 10 apples}",
         "r.yaml:3:21: run.memory_limit: want bytes, at least 1, as in 10000000000, 10GB or "
         "1.5GiB, got the text `10 apples`"},
        {"GradDtypeOfFp32", "fsdp: {mixed_precision: {grad_dtype: bf16}}",
         "r.yaml:3:38: fsdp.mixed_precision.grad_dtype: fsdp.mixed_precision.grad_dtype is `bf16`, "
         "but with param_dtype `fp32` it can be `fp32` alone"},
        {"ReduceDtypeOfBf16",
         "fsdp: {mixed_precision: {param_dtype: bf16, grad_dtype: bf16, reduce_dtype: fp16}}",
         "r.yaml:3:77: fsdp.mixed_precision.reduce_dtype: fsdp.mixed_precision.reduce_dtype is "
         "`fp16`, but with param_dtype `bf16` it can be `fp32` or `bf16`"},
        {"ScaleBelowItsFloor", "fsdp: {mixed_precision: {scaler: {init_scale: 0.5}}}",
         "r.yaml:3:47: fsdp.mixed_precision.scaler.init_scale: the smallest scale is above the "
         "first"},
        {"SumsInNoOrder",
         "run: {deterministic: true}\nfsdp: {mixed_precision: {param_dtype: bf16, reduce_dtype: "
         "bf16, sum: nccl}}",
         "r.yaml:4:70: fsdp.mixed_precision.sum: NCCL adds in an order of its own, but "
         "run.deterministic wants one order: leave sum out, or set it to `exact`"},
        {"Fp16Master", "fsdp: {mixed_precision: {master_dtype: fp16}}",
         "r.yaml:3:40: fsdp.mixed_precision.master_dtype: want `fp32` or `bf16`, got the text "
         "`fp16`"},
        {"Bf16MasterOfFp32", "fsdp: {mixed_precision: {master_dtype: bf16}}",
         "r.yaml:3:40: fsdp.mixed_precision.master_dtype: fsdp.mixed_precision.master_dtype is "
         "`bf16`, but with param_dtype `fp32` it can be `fp32` alone"},
        {"ParamsWithoutOptimizer", "fsdp: {cpu_offload: {params: true}}",
         "r.yaml:3:30: fsdp.cpu_offload.params: fsdp.cpu_offload.params is true, but "
         "fsdp.cpu_offload.optimizer is false: parameters are updated where their masters are, so "
         "set that, too"},
        {"ActivationsOnNoDisk", "train: {activation_offload: spill}",
         "r.yaml:3:29: train.activation_offload: train.activation_offload is `spill`, but "
         "fsdp.cpu_offload.spill is null: name a directory there"},
        {"SpillWithoutOptimizer", "fsdp: {cpu_offload: {spill: d}}",
         "r.yaml:3:29: fsdp.cpu_offload.spill: fsdp.cpu_offload.spill takes what the host updates "
         "to a disk, but fsdp.cpu_offload.optimizer is false: set that, too"},
        {"ShareOfNothing", "fsdp: {cpu_offload: {optimizer_share: 0.5}}",
         "r.yaml:3:39: fsdp.cpu_offload.optimizer_share: fsdp.cpu_offload.optimizer_share divides "
         "the updates of fsdp.cpu_offload.optimizer, which is false: set that, too"},
        {"ShareOfAWord", "fsdp: {cpu_offload: {optimizer: true, optimizer_share: auto}}",
         "r.yaml:3:56: fsdp.cpu_offload.optimizer_share: want a number of at least 0 and of at "
         "most 1, got the text `auto`"},
        {"ShareAboveAll", "fsdp: {cpu_offload: {optimizer: true, optimizer_share: 1.5}}",
         "r.yaml:3:56: fsdp.cpu_offload.optimizer_share: want a number of at least 0 and of at "
         "most 1, got 1.5"},
        // Settings against each other.
        {"DecayStepsOfCosine", "schedule: {decay_steps: 5}",
         "r.yaml:3:25: schedule.decay_steps: schedule.decay_steps belongs to `wsd`, but "
         "schedule.name is `cosine`"},
        {"WarmupAndDecayPastTheEnd",
         "train: {steps: 10}\nschedule: {name: wsd, warmup_steps: 6, decay_steps: 5}",
         "r.yaml:4:53: schedule.decay_steps: warm-up and decay are 6 + 5 steps, but train.steps is "
         "10"},
        {"EmaOfNothing", "eval: {ema: true}",
         "r.yaml:3:13: eval.ema: eval.ema is true, but train.ema is null: there is no average to "
         "evaluate"},
        {"EmaWithoutEnd", "train: {ema: {decay: 1}}",
         "r.yaml:3:22: train.ema.decay: want a number of at least 0 and below 1, got 1"},
        {"MomentumOfSgdWithMuon", "optimizer: {name: muon, momentum: 0.9}",
         "r.yaml:3:35: optimizer.momentum: optimizer.momentum belongs to `sgd`, but optimizer.name "
         "is `muon`: set optimizer.muon.momentum"},
        {"MuonsFirstCoefficient", "optimizer: {name: muon, muon: {ns_coefficients: [0, 1, 1]}}",
         "r.yaml:3:49: optimizer.muon.ns_coefficients: the first coefficient is 0, want above 0: "
         "the iteration multiplies a small matrix by it"},
        {"MuonInTwoPlaces",
         "optimizer: {name: muon}\nfsdp: {cpu_offload: {optimizer: true, optimizer_share: 0.5}}",
         "r.yaml:4:56: fsdp.cpu_offload.optimizer_share: fsdp.cpu_offload.optimizer_share is 0.5, "
         "but `muon` updates all matrices in one place: set that to 0 or 1, or optimizer.name to "
         "adamw"},
        {"AdafactorOnADisk",
         "optimizer: {name: adafactor}\nfsdp: {cpu_offload: {optimizer: true, spill: /tmp}}",
         "r.yaml:4:46: fsdp.cpu_offload.spill: fsdp.cpu_offload.spill takes state to a disk, but "
         "`adafactor` reads a matrix's more than once in an update: set that to null, or "
         "optimizer.name to adamw"},
        {"CodesOfAdafactor", "optimizer: {name: adafactor, state_dtype: 8bit}",
         "r.yaml:3:43: optimizer.state_dtype: optimizer.state_dtype is `8bit`, but `adafactor` "
         "keeps a value a row and a column, in fp32: set optimizer.state_dtype to fp32, or "
         "optimizer.name to adamw"},
        {"Bf16OfAGroupOfAdafactor",
         "optimizer: {name: adafactor, groups: [{match: '*', state_dtype: bf16}]}",
         "r.yaml:3:65: optimizer.groups[0].state_dtype: optimizer.groups[0].state_dtype is `bf16`, "
         "but `adafactor` keeps a value a row and a column, in fp32: set "
         "optimizer.groups[0].state_dtype to fp32, or optimizer.name to adamw"},
        {"AdafactorsFirstEps", "optimizer: {name: adafactor, adafactor: {eps: [0, 0.1]}}",
         "r.yaml:3:47: optimizer.adafactor.eps: the first is 0, want at least 1.1e-19: updates are "
         "divided by it where a moment is 0, and fp32 has no square of less"},
        {"AdafactorsClip", "optimizer: {name: adafactor, adafactor: {d: 0.5}}",
         "r.yaml:3:45: optimizer.adafactor.d: want a number of at least 1, got 0.5"},
        {"AdafactorGrows", "optimizer: {name: adafactor, adafactor: {beta2_decay: 0.5}}",
         "r.yaml:3:55: optimizer.adafactor.beta2_decay: want a number of at least -100 and of at "
         "most 0, got 0.5"},
        {"MomentumOfAdamW", "optimizer: {momentum: 0.9}",
         "r.yaml:3:23: optimizer.momentum: optimizer.momentum belongs to `sgd`, but optimizer.name "
         "is `adamw`"},
        {"QuantizedGatherOfNothing",
         "fsdp: {sharding_strategy: no_shard, quantize: {gather: int8}}",
         "r.yaml:3:56: fsdp.quantize.gather: `no_shard` gathers nothing that could be quantised: "
         "set fsdp.quantize.gather to none, or another fsdp.sharding_strategy"},
        {"QuantizedReductionOfNoShards",
         "fsdp: {sharding_strategy: no_shard, quantize: {reduce: int4}}",
         "r.yaml:3:56: fsdp.quantize.reduce: `no_shard` sums no shards that could be quantised: "
         "set fsdp.quantize.reduce to none, or another fsdp.sharding_strategy"},
        {"QuantizedReductionInADtype",
         "fsdp: {mixed_precision: {reduce_dtype: bf16}, quantize: {reduce: int8}}",
         "r.yaml:3:66: fsdp.quantize.reduce: quantised reductions replace reduce_dtype, which is "
         "`bf16`: leave it out, or set fsdp.quantize.reduce to none"},
        {"QuantizedReductionOfAnotherForm", "fsdp: {quantize: {reduce: fp8}}",
         "r.yaml:3:27: fsdp.quantize.reduce: want `none`, `int8` or `int4`, got the text `fp8`"},
        {"BlockOfAnotherSize", "fsdp: {quantize: {block: 100}}",
         "r.yaml:3:26: fsdp.quantize.block: want 64, 128 or 256, got 100"},
        {"BlockOfTooManyElements", "fsdp: {quantize: {block: 512}}",
         "r.yaml:3:26: fsdp.quantize.block: want 64, 128 or 256, got 512"},
        {"BlockOfFewElements", "fsdp: {quantize: {block: 0}}",
         "r.yaml:3:26: fsdp.quantize.block: want 64, 128 or 256, got 0"},
        {"BlockOfNoNumber", "fsdp: {quantize: {block: row}}",
         "r.yaml:3:26: fsdp.quantize.block: want 64, 128 or 256, got the text `row`"},
        {"ReshardOfWhatIsKept",
         "fsdp: {sharding_strategy: shard_grad_op, reshard_after_forward: 2}",
         "r.yaml:3:65: fsdp.reshard_after_forward: only `full_shard` and `hybrid_shard` free "
         "parameters after forward, so with others fsdp.reshard_after_forward can only be null"},
        {"ShardsOfNoShard", "fsdp: {sharding_strategy: no_shard, shard_size: 2}",
         "r.yaml:3:49: fsdp.shard_size: `no_shard` keeps a full copy on every rank, so "
         "fsdp.shard_size can only be 1"},
        {"SampleWithoutPrompt", "eval: {sample: {max_tokens: 5}}",
         "r.yaml:3:8: eval.sample.prompt: required"},
    }),
    [](const auto& info) { return info.param.name; });

// Mistakes about model and data, which kGood has already.
TEST(LoadRecipe, ModelAndDataMistakes) {
  const auto model = [](const std::string& fields) {
    return MistakesOf("model: {family: gpt2, " + fields + "}\ndata: {train: {paths: [x]}}\n");
  };
  EXPECT_EQ(model("hidden_size: 100, num_attention_heads: 3"),
            "r.yaml:1:62: model.num_attention_heads: 3 heads do not divide hidden_size 100");
  EXPECT_EQ(model("hidden_size: 100"),  // 12 heads are the default, so it is hidden_size's line.
            "r.yaml:1:36: model.hidden_size: 12 heads do not divide hidden_size 100");
  const std::string preset = model("preset: gpt2-125m");
  EXPECT_EQ(preset,  // Without all the others.
            "r.yaml:1:31: model.preset: got the text `gpt2-125m`; did you mean `gpt2-124m`?");
  EXPECT_EQ(
      model("preset: none").find("r.yaml:1:31: model.preset: want `gpt2-124m`, `gpt2-350m`, "), 0u);
  EXPECT_EQ(model("vocab_size: 255"),
            "r.yaml:1:35: model.vocab_size: text in bytes needs a vocabulary of at least 256, got "
            "255");
  EXPECT_EQ(model("max_position_embeddings: 255"),
            "r.yaml:1:48: model.max_position_embeddings: data.seq_len is 256, but "
            "model.max_position_embeddings is 255");
  EXPECT_EQ(model("n_embd: 64"),
            "r.yaml:1:23: model.n_embd: unknown key; did you mean `hidden_size`?");
  EXPECT_EQ(model("head_dim: 64"), "r.yaml:1:33: model.head_dim: a `gpt2` has no such field");
  EXPECT_EQ(model("qk_norm: true"), "r.yaml:1:32: model.qk_norm: a `gpt2` has no such field");
  EXPECT_EQ(model("tie_word_embeddings: false"), "");
  EXPECT_EQ(model("preset: llama3-8b"),
            "r.yaml:1:31: model.preset: `llama3-8b` is a llama, but model.family is `gpt2`");
  EXPECT_EQ(model("hidden_size: 48}\nfsdp: {auto_wrap: {policy: branch}"),
            "r.yaml:2:28: fsdp.auto_wrap.policy: a `gpt2` is not split into branches: "
            "`transformer_block` makes a unit of each block");
  EXPECT_EQ(model("hidden_size: 48}\nfsdp: {auto_wrap: {policy: experts}"),
            "r.yaml:2:28: fsdp.auto_wrap.policy: this model has no experts: `transformer_block` "
            "makes a unit of each block");

  const auto experts = [](const std::string& wrap) {
    return MistakesOf(
        "model: {family: moe, num_experts: 6, num_experts_per_tok: 2}\nfsdp: {auto_wrap: {" + wrap +
        "}}\ndata: {train: {paths: [x]}}\n");
  };
  EXPECT_EQ(experts("policy: experts"), "");
  EXPECT_EQ(experts("policy: experts, expert_pieces: 3"), "");
  EXPECT_EQ(experts("policy: experts, expert_pieces: 4"),
            "r.yaml:2:52: fsdp.auto_wrap.expert_pieces: want a divisor of the 6 experts: 1, 2, 3 "
            "or 6; got 4");
  EXPECT_EQ(experts("expert_pieces: 3"),
            "r.yaml:2:35: fsdp.auto_wrap.expert_pieces: experts are in pieces with `policy: "
            "experts` alone: leave it out, or set the policy");

  const auto llama = [](const std::string& fields) {
    return MistakesOf("model: {family: llama, " + fields + "}\ndata: {train: {paths: [x]}}\n");
  };
  EXPECT_EQ(llama("preset: llama3-8b, qk_norm: true"), "");
  EXPECT_EQ(llama("layer_norm_epsilon: 1e-5"),
            "r.yaml:1:44: model.layer_norm_epsilon: a `llama` has no such field");
  EXPECT_EQ(llama("residual_dropout: 0.1"),
            "r.yaml:1:42: model.residual_dropout: a `llama` has no such dropout");
  EXPECT_EQ(llama("attention_dropout: 0.1"), "");
  EXPECT_EQ(llama("attn_pdrop: 0.1"),
            "r.yaml:1:24: model.attn_pdrop: unknown key; did you mean `attention_dropout`?");
  EXPECT_EQ(llama("num_key_value_heads: 5"),
            "r.yaml:1:45: model.num_key_value_heads: 5 key and value heads do not divide 32 heads");
  EXPECT_EQ(llama("head_dim: 7"),
            "r.yaml:1:34: model.head_dim: 7 cannot be rotated in pairs: it is odd");
  EXPECT_EQ(llama("rope_scaling: {type: linear}"),
            "r.yaml:1:45: model.rope_scaling.type: `linear` needs `factor`");
  EXPECT_EQ(llama("rope_scaling: {type: linear, factor: 2, beta_fast: 3}"),
            "r.yaml:1:75: model.rope_scaling.beta_fast: does not belong to `linear`");
  EXPECT_EQ(llama("rope_scaling: {type: longrope, factor: 2}"),
            "r.yaml:1:45: model.rope_scaling.type: `longrope`: not in this version (want "
            "`default`, `linear`, `dynamic`, `llama3` or `yarn`)");

  const auto data = [](const std::string& fields) {
    return MistakesOf("model: {family: gpt2}\ndata: {" + fields + "}\n");
  };
  EXPECT_EQ(data("train: {}"), "r.yaml:2:8: data.train: source `text` needs at least one path");
  EXPECT_EQ(data("train: {paths: []}"),
            "r.yaml:2:23: data.train.paths: source `text` needs at least one path");
  EXPECT_EQ(data("train: {paths: x}"), "");
  EXPECT_EQ(data("train: {paths: {a: b}}"),
            "r.yaml:2:23: data.train.paths: want a path or a list of paths, got a map");
  EXPECT_EQ(data("train: {paths: ~}"),  // YAML's null.
            "r.yaml:2:23: data.train.paths: want a path or a list of paths, got null");
  EXPECT_EQ(data("train: {paths: 3}"),
            "r.yaml:2:23: data.train.paths: want text (in quotes, where it looks like something "
            "else), got 3");
  EXPECT_EQ(data("train: {source: synthetic, paths: [x]}"),
            "r.yaml:2:42: data.train.paths: source `synthetic` has no files");
  EXPECT_EQ(data("train: {source: images, paths: [x]}"),
            "r.yaml:2:24: data.train.source: `images` gives images, but a `gpt2` asks for tokens");
  EXPECT_EQ(data("train: {source: clicks, paths: [x]}"),
            "r.yaml:2:24: data.train.source: `clicks` gives clicks, but a `gpt2` asks for tokens");
  EXPECT_NE(data("train: {source: clicks, paths: [x], planted: 5}")
                .find("data.train.planted: source `clicks` has paths, or clicks that are drawn "
                      "(planted), and not both"),
            std::string::npos);
  EXPECT_NE(data("train: {source: clicks, paths: [x], dense: [a, label]}")
                .find("data.train.dense: names column `label`, which is named before: a column is "
                      "the label, a number or ids, once"),
            std::string::npos);
  EXPECT_EQ(
      data("train: {paths: [x], categorical: [a]}"),
      "r.yaml:2:41: data.train.categorical: belongs to source `clicks`, not to source `text`");
  EXPECT_EQ(data("train: {source: tokens}"),
            "r.yaml:2:24: data.train.source: source `tokens` needs at least one path");
  EXPECT_EQ(data("train: {paths: [x], dtype: uint16}"),
            "r.yaml:2:35: data.train.dtype: belongs to source `tokens`, not to source `text`");
  EXPECT_EQ(
      data("train: {source: tokens, paths: [x], eot: 50257}"),
      "r.yaml:2:49: data.train.eot: data.train.eot is 50257, outside the vocabulary of 50257");
  EXPECT_EQ(data("train: {paths: [x], weight: 1}"),
            "r.yaml:2:28: data.train.weight: unknown key; known here: source, paths, tokenizer, "
            "column, dtype, eot, template, train_on, date, prompt, completion, labels, size, crop, "
            "flip, mean, std, label, dense, categorical and planted");
  EXPECT_EQ(
      data("train: x"),
      "r.yaml:2:15: data.train: want a map as in `{paths: FILES}`, or a list of maps, got the "
      "text `x`");
  EXPECT_EQ(data("train: {paths: [x], tokenizer: gpt2/tokenizer.json}"), "");
  EXPECT_EQ(data("train: {paths: [x], tokenizer: byte}"),
            "r.yaml:2:39: data.train.tokenizer: want `bytes`, a path that ends in .json or .model, "
            "or a directory with a tokenizer.json, tokenizer.model or spiece.model, got the text "
            "`byte`");
  EXPECT_EQ(data("train: {paths: [x], tokenizer: a.json}, valid: {paths: [v]}"),
            "r.yaml:2:39: data.train.tokenizer: data.valid.tokenizer is `bytes`, but "
            "data.train.tokenizer is `a.json`: a model has one");
  EXPECT_EQ(data("train: {paths: [x]}, valid: {fraction: 1}"),
            "r.yaml:2:47: data.valid.fraction: want a number above 0 and below 1, got 1");
  EXPECT_EQ(data("train: {paths: [x]}, valid: {fraction: 0.1, paths: [y]}"),
            "r.yaml:2:37: data.valid.fraction: a share of data.train and a source of its own "
            "exclude each other");
  EXPECT_EQ(
      data("train: {paths: [x]}, valid: 0.05"),
      "r.yaml:2:36: data.valid: want null, {fraction: ...}, a map like data.train or a list of "
      "such maps, each with a name, got 0.05");
  EXPECT_EQ(data("train: {paths: [x]}, valid: {source: text}"),
            "r.yaml:2:45: data.valid.source: source `text` needs at least one path");
  EXPECT_EQ(data("train: {paths: [x]}, seq_len: 2048"),
            "r.yaml:2:38: data.seq_len: data.seq_len is 2048, but model.max_position_embeddings is "
            "1024");
  EXPECT_EQ(data("train: {paths: [x]}, valid: null}\neval: {every: 5"),
            "r.yaml:3:15: eval.every: eval.every is 5, but data.valid is null");
  EXPECT_EQ(
      data("train: {source: synthetic}}\neval: {sample: {prompt: x}"),
      "r.yaml:3:8: eval.sample: eval.sample is text, but data.train is not: no source of it has "
      "a tokenizer (for source `tokens`, name the tokenizer.json or .model that made them)");
  EXPECT_EQ(data("train: {paths: [x]}, documents: true"),
            "r.yaml:2:40: data.documents: data.documents needs an end-of-text token, and tokenizer "
            "`bytes` has none: give data.train.eot");
  EXPECT_EQ(data("train: {paths: [x], eot: 0}, documents: true"), "");
  EXPECT_EQ(data("train: {source: tokens, paths: [x]}, documents: true"), "");  // tokens.json may.
  EXPECT_EQ(data("train: {paths: [x], eot: 0}, documents: true}\ntrain: {attention: math"),
            "r.yaml:3:20: train.attention: `math` attends across documents, which data.documents "
            "keeps apart: set train.attention to `flash`, or data.documents to `false`");
  EXPECT_EQ(data("train: {paths: [x], eot: 0}, packing: samples}\ntrain: {attention: math"),
            "r.yaml:3:20: train.attention: `math` attends across documents, which data.packing "
            "keeps apart: set train.attention to `flash`, or data.packing to `windows`");
  EXPECT_EQ(data("train: {paths: [x]}}\ntrain: {attention: math"), "");
}

TEST(LoadRecipe, Packing) {
  const auto data = [](const std::string& fields) {
    return MistakesOf("model: {family: gpt2}\ndata: {" + fields + "}\n");
  };
  for (const std::string packing : {"samples", "none"}) {
    EXPECT_EQ(data("train: {paths: [x], eot: 0}, too_long: drop, packing: " + packing), "");
    EXPECT_EQ(data("train: {source: tokens, paths: [x]}, packing: " + packing), "");
    EXPECT_EQ(data("train: {paths: [x]}, packing: " + packing),
              "r.yaml:2:38: data.packing: data.packing `" + packing +
                  "` needs an end-of-text token, and tokenizer `bytes` has none: give "
                  "data.train.eot");
    EXPECT_EQ(data("train: {source: synthetic}, packing: " + packing),
              "r.yaml:2:45: data.packing: data.packing `" + packing +
                  "` needs an end-of-text token, and source `synthetic` has none: give "
                  "data.train.eot");
    EXPECT_EQ(data("train: {paths: [x], eot: 0}, documents: true, packing: " + packing),
              "r.yaml:2:48: data.documents: data.documents belongs to `windows`, but data.packing "
              "is `" +
                  packing + "`, which always keeps documents apart: leave data.documents out");
  }
  EXPECT_EQ(data("train: {paths: [x]}, packing: windows, too_long: error"), "");
  EXPECT_EQ(data("train: {paths: [x]}, too_long: cut"),
            "r.yaml:2:39: data.too_long: data.too_long belongs to `samples` and `none`, but "
            "data.packing is `windows`, which cuts documents anywhere: leave data.too_long out");
  EXPECT_EQ(data("train: {paths: [x]}, packing: sample"),
            "r.yaml:2:38: data.packing: want `windows`, `samples` or `none`, got the text "
            "`sample`; did you mean `samples`?");
}

TEST(LoadRecipe, Objectives) {
  const auto of = [](const std::string& model, const std::string& fields) {
    return MistakesOf("model: {" + model + "}\ndata: {" + fields + "}\n");
  };
  const auto data = [&](const std::string& fields) {
    return of("family: t5, vocab_size: 300", fields);
  };
  const std::string text = "train: {paths: [x], eot: 256}, seq_len: 64, ";
  const std::string pairs = "train: {source: pairs, paths: [x], eot: 256}, ";
  EXPECT_EQ(data("train: {source: synthetic}"), "");
  EXPECT_EQ(data(text + "objective: span_corruption"), "");
  EXPECT_EQ(data(text + "objective: span_corruption, target_len: 14"), "");
  EXPECT_EQ(data(pairs + "objective: seq2seq, target_len: 14, too_long: cut"), "");
  EXPECT_EQ(data(pairs + "objective: seq2seq, noise_density: 0.2"),
            "r.yaml:2:89: data.noise_density: data.noise_density belongs to `span_corruption`, but "
            "data.objective is `seq2seq`");
  EXPECT_EQ(data("train: {source: synthetic}, target_len: 14"),
            "r.yaml:2:48: data.target_len: data.target_len belongs to `seq2seq` and "
            "`span_corruption`, but data.objective is `causal`");
  EXPECT_EQ(data(text + "objective: span_corruption, target_len: 13"),
            "r.yaml:2:92: data.target_len: data.target_len is 13, but what 70 tokens lose takes "
            "14: raise it, or leave it out");
  EXPECT_EQ(data("train: {paths: [x], eot: 256}, seq_len: 2, objective: span_corruption"),
            "r.yaml:2:48: data.seq_len: an input of `span_corruption` takes at least 3 tokens: one "
            "that stays, a sentinel and end-of-text");
  EXPECT_EQ(data("train: {paths: [x]}, objective: span_corruption"),
            "r.yaml:2:40: data.objective: data.objective `span_corruption` needs an end-of-text "
            "token, and tokenizer `bytes` has none: give data.train.eot");
  EXPECT_EQ(data(text + "objective: seq2seq"),
            "r.yaml:2:8: data.train: data.objective is `seq2seq`, which is of pairs, not of "
            "`text`");
  EXPECT_EQ(data(pairs + "objective: span_corruption"),
            "r.yaml:2:24: data.train.source: data.objective is `span_corruption`, which is of text "
            "and tokens, not of `pairs`");
  EXPECT_EQ(data(text + "documents: true, objective: span_corruption"),
            "r.yaml:2:63: data.documents: data.documents belongs to `causal`, but data.objective "
            "is `span_corruption`");
  EXPECT_EQ(of("family: gpt2", "train: {paths: [x], eot: 0}, objective: span_corruption"),
            "r.yaml:2:48: data.objective: `span_corruption` is for models with an encoder and a "
            "decoder, and a `gpt2` is none: leave it out");
  EXPECT_EQ(of("family: t5, vocab_size: 259", text + "objective: span_corruption"),
            "r.yaml:2:33: data.train.eot: data.train.eot is 256, one of the last 3 of 259, which "
            "are sentinels");
  EXPECT_EQ(of("family: t5, vocab_size: 260", text + "objective: span_corruption"), "");
  EXPECT_EQ(of("family: t5, vocab_size: 258",
               "train: {paths: [x], eot: 9}, seq_len: 64, objective: span_corruption"),
            "r.yaml:1:33: model.vocab_size: text in bytes needs a vocabulary of at least 256 and 3 "
            "sentinels, got 258");
  const auto fields = [](const std::string& more) {
    const Recipe recipe =
        ParseRecipe({{"r.yaml",
                      "model: {family: t5, vocab_size: 300}\ndata: {train: [{source: pairs, paths: "
                      "[x], eot: 256" +
                          more + "}], objective: seq2seq}\n"}});
    EXPECT_EQ(recipe.data.packing, Packing::kWindows);
    const std::string text = PrintRecipe(recipe);
    const auto value = [&](const std::string& key) {
      const size_t at = text.find(key + ": ") + key.size() + 2;
      return text.substr(at, text.find('\n', at) - at);
    };
    return value("prompt") + " " + value("completion");
  };
  EXPECT_EQ(fields(""), "input target");
  EXPECT_EQ(fields(", prompt: a"), "a target");
}

TEST(LoadRecipe, ChatAndPairs) {
  const auto data = [](const std::string& fields) {
    return MistakesOf("model: {family: gpt2}\ndata: {" + fields + "}\n");
  };
  const auto packing = [](const std::string& fields) {
    return ParseRecipe({{"r.yaml", "model: {family: gpt2}\ndata: {" + fields + "}\n"}})
        .data.packing;
  };
  EXPECT_EQ(packing("train: {source: chat, paths: [x]}"), Packing::kSamples);
  EXPECT_EQ(packing("train: {source: pairs, paths: [x], eot: 0}"), Packing::kSamples);
  EXPECT_EQ(packing("train: {source: chat, paths: [x]}, packing: none"), Packing::kNone);
  EXPECT_EQ(packing("train: {paths: [x], eot: 0}, valid: {source: chat, paths: [y]}"),
            Packing::kSamples);
  EXPECT_EQ(packing("train: {paths: [x]}"), Packing::kWindows);
  EXPECT_EQ(data("train: {source: chat, paths: [x], template: t.jinja, train_on: last, "
                 "date: 2024-02-29}"),
            "");
  EXPECT_EQ(data("train: {source: pairs, paths: [x], eot: 0, prompt: q, completion: a}"), "");
  EXPECT_EQ(data("train: {source: chat, paths: [x]}, packing: windows"),
            "r.yaml:2:52: data.packing: data.packing `windows` cuts anywhere, but source `chat` is "
            "whole samples: give samples or none");
  EXPECT_EQ(data("train: {source: pairs, paths: [x]}"),
            "r.yaml:2:24: data.train.source: source `pairs` needs an end-of-text token, and "
            "tokenizer `bytes` has none: give data.train.eot");
  EXPECT_EQ(data("train: {source: chat, paths: [x], eot: 0}"),
            "r.yaml:2:47: data.train.eot: does not belong to source `chat`: its template writes "
            "what ends a conversation");
  for (const std::string day : {"2023-02-29", "24-02-29", "2024-02-29 ", "2024-2-029", "today"}) {
    EXPECT_EQ(data("train: {source: chat, paths: [x], date: '" + day + "'}"),
              "r.yaml:2:48: data.train.date: `" + day + "` is no day, such as 2026-11-26");
  }
  EXPECT_EQ(data("train: {paths: [x], template: t, train_on: all, date: 2024-02-29, prompt: a, "
                 "completion: b}"),
            "r.yaml:2:38: data.train.template: belongs to source `chat`, not to source `text`\n"
            "r.yaml:2:51: data.train.train_on: belongs to source `chat`, not to source `text`\n"
            "r.yaml:2:62: data.train.date: belongs to source `chat`, not to source `text`\n"
            "r.yaml:2:82: data.train.prompt: belongs to source `pairs`, not to source `text`\n"
            "r.yaml:2:97: data.train.completion: belongs to source `pairs`, not to source `text`");
  EXPECT_EQ(data("train: {source: chat}"),
            "r.yaml:2:24: data.train.source: source `chat` needs at least one path");
}

TEST(LoadRecipe, ListsOfSources) {
  const auto data = [](const std::string& fields) {
    return MistakesOf("model: {family: gpt2}\ndata: {" + fields + "}\n");
  };
  EXPECT_EQ(data("train: []"),
            "r.yaml:2:15: data.train: want at least one source, got a list of 0");
  EXPECT_EQ(data("train: [{paths: [x], weight: 0}, {weight: 2}, {source: synthetic, paths: [y]}, "
                 "{paths: [z], name: n}, 7]"),
            "r.yaml:2:37: data.train[0].weight: want a number above 0 and of at most 1e+09, got 0\n"
            "r.yaml:2:41: data.train[1]: source `text` needs at least one path\n"
            "r.yaml:2:81: data.train[2].paths: source `synthetic` has no files\n"
            "r.yaml:2:100: data.train[3].name: unknown key; known here: source, paths, tokenizer, "
            "column, dtype, eot, template, train_on, date, prompt, completion, labels, size, crop, "
            "flip, mean, std, label, dense, categorical, planted and weight\n"
            "r.yaml:2:110: data.train[4]: want a map as in `{source: text}`, got 7");
  EXPECT_EQ(data("train: {paths: [x]}, valid: [{paths: [v]}, {paths: [w], name: a}, "
                 "{paths: [], name: a}]"),
            "r.yaml:2:37: data.valid[0].name: required\n"
            "r.yaml:2:82: data.valid[2].paths: source `text` needs at least one path\n"
            "r.yaml:2:92: data.valid[2].name: `a` is the name of data.valid[1] too");
  EXPECT_EQ(data("train: [{paths: [x]}, {source: synthetic, eot: 0}], documents: true"),
            "r.yaml:2:71: data.documents: data.documents needs an end-of-text token, and tokenizer "
            "`bytes` has none: give data.train[0].eot");

  const Recipe recipe = Parse(
      "model: {family: gpt2}\ndata:\n  train:\n  - {paths: [a, b], weight: 3}\n"
      "  - {source: tokens, paths: [c], dtype: uint16, eot: 9}\n"
      "  valid:\n  - {paths: v, name: 'in'}\n  - {paths: [w], name: out}\n");
  ASSERT_EQ(recipe.data.TrainSources().size(), 2u);
  EXPECT_EQ(recipe.data.TrainSources()[0].weight, 3);
  EXPECT_EQ(recipe.data.TrainSources()[1].weight, 1);
  EXPECT_NE(PrintRecipe(recipe).find("dtype: uint16"), std::string::npos);
  EXPECT_EQ(recipe.data.TrainSources()[1].eot, 9);
  ASSERT_EQ(recipe.data.ValidSources().size(), 2u);
  EXPECT_EQ(recipe.data.ValidSources()[0].name, "in");
  EXPECT_EQ(recipe.places.at("data.train[1].paths"), "r.yaml:5:29");
  const std::string text = PrintRecipe(recipe);
  EXPECT_NE(text.find("  train:\n    - source: text\n      paths: [a, b]\n"), std::string::npos)
      << text;
  EXPECT_EQ(Parse(text), recipe);

  // The later form replaces the earlier one, and with it what was said of its places.
  const std::string list = "model: {family: gpt2}\ndata: {train: [{paths: [x]}, {paths: [y]}]}\n";
  EXPECT_EQ(Parse(list, {"data.train=[{paths: [z]}]"}).data.TrainSources().size(), 1u);
  const Recipe map = Parse(list, {"data.train.paths=[z]"});
  EXPECT_TRUE(std::holds_alternative<SourceRecipe>(map.data.train));
  EXPECT_EQ(map.data.TrainSources()[0].paths, std::vector<std::string>{"z"});
  EXPECT_EQ(map.places.count("data.train[0].paths"), 0u);
  EXPECT_TRUE(std::holds_alternative<std::vector<SourceRecipe>>(
      Parse(kGood, {"data.train=[{paths: [z]}]"}).data.train));
  const Recipe valid = Parse(
      kGood, {"data.valid=[{paths: [v], name: a}]", "data.valid.eot=3", "data.valid.paths=[w]"});
  EXPECT_EQ(std::get<SourceRecipe>(valid.data.valid).eot, 3);
}

TEST(LoadRecipe, SetGoesIntoLists) {
  const std::string list =
      "model: {family: gpt2}\ndata: {train: [{paths: [x, y]}, {paths: [z], weight: 2}]}\n"
      "optimizer: {groups: [{match: '*'}]}\n";
  const Recipe recipe =
      Parse(list, {"data.train[0].weight=3", "data.train[0].paths[1]=w", "data.train[1]={paths: q}",
                   "optimizer.groups[0].lr_scale=0.5"});
  ASSERT_EQ(recipe.data.TrainSources().size(), 2u);
  EXPECT_EQ(recipe.data.TrainSources()[0].weight, 3);
  EXPECT_EQ(recipe.data.TrainSources()[0].paths, (std::vector<std::string>{"x", "w"}));
  EXPECT_EQ(recipe.data.TrainSources()[1].paths, std::vector<std::string>{"q"});
  EXPECT_EQ(recipe.data.TrainSources()[1].weight, 1);  // The whole item is another.
  EXPECT_EQ(recipe.optimizer.groups.at(0).lr_scale, 0.5);
  EXPECT_EQ(recipe.optimizer.groups.at(0).match, "*");
  EXPECT_EQ(recipe.places.at("data.train[0].weight"), "--set data.train[0].weight=3");
  EXPECT_EQ(recipe.places.at("data.train[0]"), "r.yaml:2:16");

  const auto mistakes = [&](const std::string& set) { return MistakesOf(list, {set}); };
  const std::string count = "data.train[2].weight=1", what = "data.train[2].weight: ";
  EXPECT_EQ(mistakes(count),
            "--set " + count + ": " + what + "data.train is a list of 2, and items count from 0");
  EXPECT_EQ(mistakes("data.train[0].wieght=1"),
            "--set data.train[0].wieght=1: data.train[0].wieght: unknown key; did you mean "
            "`weight`?");
  EXPECT_EQ(mistakes("data.train[0].weight=-1"),
            "--set data.train[0].weight=-1: data.train[0].weight: want a number above 0 and of at "
            "most 1e+09, got -1");
  EXPECT_EQ(mistakes("data[0]=1"), "--set data[0]=1: data[0]: data is no list");
  EXPECT_EQ(mistakes("log.trace_steps[0]=1"),
            "--set log.trace_steps[0]=1: log.trace_steps[0]: nothing before gives a list "
            "`log.trace_steps`: give all of it");
  for (const std::string key : {"data.train[]", "data.train[x]", "data.train[0", "data.train[0]x",
                                "data.train[-1]", "data.train[0].", "[0]"}) {
    EXPECT_EQ(mistakes(key + "=1"), "--set " + key + "=1: " + key +
                                        ": want an item of a list as in data.train[0].weight");
  }
}

TEST(LoadRecipe, TimesHaveUnits) {
  const std::string begin = "model: {family: gpt2}\ndata: {train: {paths: [x]}}\nrun: {max_time: ";
  for (const auto& [text, seconds] : std::map<std::string, int64_t>{
           {"90", 90}, {"45s", 45}, {"90m", 5400}, {"1.5 h", 5400}, {"4h", 14400}, {"1d", 86400}}) {
    const Recipe recipe = Parse(begin + text + "}\n");
    EXPECT_EQ(recipe.run.max_time, seconds) << text;
    EXPECT_NE(PrintRecipe(recipe).find("  max_time: " + std::to_string(seconds) + "\n"),
              std::string::npos);
  }
  EXPECT_EQ(Parse(begin + "null}\n").run.max_time, std::nullopt);
  for (const char* wrong : {"0", "-5", "1.5", "0.5s", "-4h", "h", "4x", "4hh", "1e3s", "4 h m",
                            "99999999h", "[4h]", "''", "true"}) {
    EXPECT_EQ(MistakesOf(begin + wrong + "}\n")
                  .find("r.yaml:3:17: run.max_time: want seconds, at least 1, as in 5400, 90m or "
                        "1.5h, got "),
              0u)
        << wrong << MistakesOf(begin + wrong + "}\n");
  }
}

TEST(LoadRecipe, SizesHaveUnits) {
  const auto limit = [](const std::string& text) {
    const Recipe recipe = Parse(
        "model: {family: gpt2}\ndata: {train: {paths: [x]}}\nrun: "
        "{memory_limit: " +
        text + "}\n");
    EXPECT_NE(PrintRecipe(recipe).find(
                  "  memory_limit: " + std::to_string(recipe.run.memory_limit.value_or(0)) + "\n"),
              std::string::npos);
    return recipe.run.memory_limit.value_or(0);
  };
  EXPECT_EQ(limit("123"), 123);
  EXPECT_EQ(limit("9223372036854775807"), std::numeric_limits<int64_t>::max());
  EXPECT_EQ(limit("10GB"), 10'000'000'000);
  EXPECT_EQ(limit("10 gb"), 10'000'000'000);
  EXPECT_EQ(limit("512MiB"), 512 << 20);
  EXPECT_EQ(limit("1.5GiB"), 1'610'612'736);
  EXPECT_EQ(limit("'2KB'"), 2000);
  EXPECT_EQ(limit("7B"), 7);
  for (const char* wrong : {"0GB", "0.1B", "-1GB", "GB", "10G", "1e3GB", "10GB5", "9TTB", "1e3",
                            "9000000000TiB", "[10GB]", "''"}) {
    EXPECT_NE(
        MistakesOf("model: {family: gpt2}\ndata: {train: {paths: [x]}}\nrun: {memory_limit: " +
                   std::string(wrong) + "}\n")
            .find("run.memory_limit: want bytes, at least 1"),
        std::string::npos)
        << wrong;
  }
}

TEST(LoadRecipe, NamesWhatIsRequired) {
  EXPECT_EQ(MistakesOf(""), "r.yaml:1:1: model.family: required\nr.yaml:1:1: data.train: required");
  EXPECT_EQ(MistakesOf("run: {}\nmodel: {}\ndata:\n  seq_len: 8\n"),
            "r.yaml:2:1: model.family: required\nr.yaml:3:1: data.train: required");
  // Misspelt is not missing.
  EXPECT_EQ(MistakesOf("modle: {family: gpt2}\ndata: {train: {paths: [x]}}\n"),
            "r.yaml:1:1: modle: unknown key; did you mean `model`?");
  EXPECT_THROW(ParseRecipe({}), ConfigError);
}

TEST(LoadRecipe, ListsEveryMistakeAtOnceInOrder) {
  EXPECT_EQ(MistakesOf({{"a.yaml",
                         "model:\n"
                         "  family: gpt2\n"
                         "  hiden_size: 64\n"
                         "  num_attention_heads: 5\n"
                         "data: {train: {paths: [x]}, seq_len: 4096}\n"
                         "train: {steps: 0, steps: -1}\n"
                         "schedule: {warmup_steps: 101}\n"},
                        {"b.yaml", "train: {grad_clip: -1}\nlog: 3\n"}},
                       {"nonsense", "eval.steps=x", "data.valid=null", "eval.every=3"}),
            // The misspelt hidden_size says nothing about the heads, the bad steps nothing about
            // the warm-up.
            "a.yaml:3:3: model.hiden_size: unknown key; did you mean `hidden_size`?\n"
            "a.yaml:5:38: data.seq_len: data.seq_len is 4096, but model.max_position_embeddings is "
            "1024\n"
            "a.yaml:6:19: train.steps: duplicate key, first on line 6\n"
            "a.yaml:6:26: train.steps: want an integer of at least 1, got -1\n"
            "b.yaml:1:20: train.grad_clip: want a number of at least 0, got -1\n"
            "b.yaml:2:6: log: want a map as in `{every: 3}`, got 3\n"
            "--set nonsense: want KEY=VALUE\n"
            "--set eval.steps=x: eval.steps: want an integer of at least 1, got the text `x`\n"
            "--set eval.every=3: eval.every: eval.every is 3, but data.valid is null");
}

std::string Repeated(int times, const std::function<std::string(int)>& text) {
  std::string all;
  for (int i = 0; i < times; ++i) all += text(i);
  return all;
}

TEST(LoadRecipe, OfManyMistakesTheFirstThousandAreListed) {
  for (const auto& [count, end] : {std::pair(1000, "r.yaml:1002:1: wrong_999: unknown key"),
                                   std::pair(1001, "\n... and 1 mistake more"),
                                   std::pair(1234, "\n... and 234 mistakes more")}) {
    const std::string text = MistakesOf(
        kGood + Repeated(count, [](int i) { return "wrong_" + std::to_string(i) + ": 1\n"; }));
    EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), std::min(count, 1001) - 1);
    EXPECT_NE(text.find("\nr.yaml:1002:1: wrong_999: unknown key"), std::string::npos);
    EXPECT_NE(text.find(end), std::string::npos) << text.substr(text.size() - 200);
    EXPECT_EQ(text.find("wrong_1000"), std::string::npos);
  }
}

// As many mistakes of each kind: none may be compared with all others.
TEST(LoadRecipe, ManyMistakesTakeSeconds) {
  constexpr int kMany = 30000;
  const auto number = [](int i) { return std::to_string(i); };
  const auto valid = [&](const std::function<std::string(int)>& source) {
    return "model: {family: gpt2, hidden_size: 64, num_attention_heads: 4}\n"
           "data: {train: {paths: [x]}, valid: [" +
           Repeated(kMany, [&](int i) { return "{paths: [v], " + source(i) + "},\n"; }) + "]}\n";
  };
  const std::string texts[] = {
      kGood + Repeated(kMany, [&](int i) { return "wrong_" + number(i) + ": 1\n"; }),
      kGood + std::string("train: {") + Repeated(kMany + 1, [&](int) { return "steps: 5,\n"; }) +
          "}\n",
      valid([&](int i) { return "name: n" + number(i) + ", eot: null, x: 1"; }),
      valid([](int i) { return i == 0 ? "name: a, x: 1" : "name: a"; })};
  for (const std::string& text : texts) {
    const std::string mistakes = MistakesOf(text);
    EXPECT_TRUE(mistakes.ends_with("\n... and 29000 mistakes more"))
        << mistakes.substr(mistakes.size() - 200);
  }
}

TEST(LoadRecipe, AMistakeIsOneLineFitForATerminal) {
  EXPECT_EQ(MistakesOf(kGood + std::string("log: {every: \"a\\nb\\e[31m\"}\n"), {"x\n\xff=1"}),
            "r.yaml:3:14: log.every: want an integer of at least 1, got the text `a b\\x1b[31m`\n"
            "--set x \\xff=1: x \\xff: unknown key; known here: run, model, data, train, eval, "
            "optimizer, schedule, fsdp, checkpoint and log");
}

TEST(LoadRecipe, ASequenceFitsTheWindow) {
  const auto mistakes = [](int length) {
    return MistakesOf(
        "model: {family: llama, sliding_window: 100}\n"
        "data: {train: {source: synthetic}, seq_len: " +
        std::to_string(length) + "}\n");
  };
  EXPECT_EQ(mistakes(100), "");
  EXPECT_EQ(mistakes(101),
            "r.yaml:2:45: data.seq_len: data.seq_len is 101, but model.sliding_window is 100: "
            "sequences that are longer than the window are not in this version");
}

TEST(LoadRecipe, OneMistakeHidesNoOther) {
  EXPECT_EQ(MistakesOf("model: {family: gpt2, preset: gpt2-124m, num_attention_heads: 5}\n"
                       "data: {train: {paths: []}, seq_len: 1025, valid: {paths: [v], x: 1}}\n"
                       "eval: {sample: {temperature: -1}}\n"),
            "r.yaml:1:63: model.num_attention_heads: 5 heads do not divide hidden_size 768\n"
            "r.yaml:2:23: data.train.paths: source `text` needs at least one path\n"
            "r.yaml:2:37: data.seq_len: data.seq_len is 1025, but model.max_position_embeddings is "
            "1024\n"
            "r.yaml:2:63: data.valid.x: unknown key; known here: source, paths, tokenizer, column, "
            "dtype, eot, template, train_on, date, prompt, completion, labels, size, crop, flip, "
            "mean, std, label, dense, categorical and planted\n"
            "r.yaml:3:8: eval.sample.prompt: required\n"
            "r.yaml:3:30: eval.sample.temperature: want a number of at least 0, got -1");
  // Nor does a mistake of the shape hide those of the data, but for what reads the same field.
  EXPECT_EQ(MistakesOf("model: {family: regnet, num_channels: 3, groups_width: 3, num_labels: 1}\n"
                       "data:\n"
                       "  train:\n"
                       "  - {source: images, paths: x, mean: [0.1, 0.2], weight: -1}\n"
                       "  - {source: synthetic}\n"
                       "eval: {sample: {prompt: a}}\n"),
            "r.yaml:1:56: model.groups_width: 3 makes 34 groups of hidden_sizes' 104 channels, "
            "which they do not divide\n"
            "r.yaml:1:71: model.num_labels: a classifier of one class cannot learn: want at least "
            "2\n"
            "r.yaml:4:38: data.train[0].mean: has 2 numbers, want one, or one for each of 3 "
            "channels\n"
            "r.yaml:4:58: data.train[0].weight: want a number above 0 and of at most 1e+09, got "
            "-1\n"
            "r.yaml:5:14: data.train[1].source: `synthetic` stands beside `images`: the sources of "
            "a run are images, or none of them is\n"
            "r.yaml:6:8: eval.sample: nothing is generated from a `regnet`: set it to null\n"
            "r.yaml:6:8: eval.sample: eval.sample is text, but data.train is not: no source of it "
            "has a tokenizer (for source `tokens`, name the tokenizer.json or .model that made "
            "them)");
  EXPECT_EQ(MistakesOf("model: {family: dhen, dense_columns: 2, table_rows: []}\n"
                       "data: {train: {source: clicks, paths: x, dense: [a], categorical: [b]}}\n"),
            "r.yaml:1:53: model.table_rows: a DHEN reads at least one column of ids\n"
            "r.yaml:2:49: data.train.dense: names 1 column, but the model has 2 columns of numbers "
            "(model.dense_columns)");
}

// Mistakes in a section under another name are said at once.
TEST(LoadRecipe, AMisspeltSectionHidesNothing) {
  EXPECT_EQ(MistakesOf("modle: {family: gpt2, num_attention_heads: 5}\n"
                       "data: {train: {paths: [x]}}\noptimiser:\n  lr: fast\n  beta: 1\n"),
            "r.yaml:1:1: modle: unknown key; did you mean `model`?\n"
            "r.yaml:1:44: model.num_attention_heads: 5 heads do not divide hidden_size 768\n"
            "r.yaml:3:1: optimiser: unknown key; did you mean `optimizer`?\n"
            "r.yaml:4:7: optimizer.lr: want a number of at least 0, got the text `fast`\n"
            "r.yaml:5:3: optimizer.beta: unknown key; did you mean `betas`?");
  EXPECT_EQ(MistakesOf("base_model: meta-llama/Llama-3-8B\ndatasets:\n- path: x\n  type: alpaca\n"
                       "num_epochs: 3\n"),
            "r.yaml:1:1: base_model: unknown key; did you mean `model.init_from`? (a directory, "
            "not a hub's name)\n"
            "r.yaml:1:1: model.family: required\n"
            "r.yaml:1:1: data.train: required\n"
            "r.yaml:2:1: datasets: unknown key; did you mean `data.train`? (a map with source and "
            "paths, or a list of them)\n"
            "r.yaml:5:1: num_epochs: unknown key; did you mean `train.epochs`?");
  // A key that is there beside a misspelt one is judged.
  EXPECT_EQ(MistakesOf(kGood + std::string("train: {steps: 7, stepz: 9, epochs: 1}\n")),
            "r.yaml:3:19: train.stepz: unknown key; did you mean `steps`?\n"
            "r.yaml:3:37: train.epochs: train.epochs stands in place of train.steps, which is 7: "
            "set that to null, or this one");
  // A section that is there is not read twice.
  EXPECT_EQ(MistakesOf(kGood + std::string("trian: {steps: x}\ntrain: {steps: 5}\n")),
            "r.yaml:3:1: trian: unknown key; did you mean `train`?");
}

TEST(LoadRecipe, AnOverriddenMistakeIsStillOne) {
  EXPECT_EQ(MistakesOf({{"a.yaml", kGood}, {"b.yaml", "train: {steps: x}"}}, {"train.steps=5"}),
            "b.yaml:1:16: train.steps: want an integer of at least 1, got the text `x`");
}

TEST(LoadRecipe, UnreadableTextEndsTheCheck) {
  const std::string mistakes =
      MistakesOf({{"a.yaml", "model: [\n"}, {"b.yaml", "train: {steps: 1, steps: 2}"}}, {"a={"});
  EXPECT_EQ(mistakes.substr(0, 30), "a.yaml:1:8: `[` is not closed\n");
  EXPECT_NE(mistakes.find("\nb.yaml:1:19: train.steps: duplicate key, first on line 1\n"),
            std::string::npos);
  EXPECT_NE(mistakes.find("\n--set a={: a key must be text; or a bracket is not closed"),
            std::string::npos);
  EXPECT_EQ(mistakes.find("required"), std::string::npos);
}

TEST(LoadRecipe, LaterOverridesEarlier) {
  const std::vector<RecipeText> files = {
      {"a.yaml", kGood + std::string("optimizer: {lr: 1, eps: 2, betas: [0.1, 0.2]}\n"
                                     "log: {trace_steps: [1, 2, 3]}\n")},
      {"b.yaml", "optimizer: {lr: 3}\nlog: {trace_steps: [4]}\ndata: {seq_len: 32}\n"}};
  Recipe recipe = ParseRecipe(files);
  EXPECT_EQ(recipe.optimizer.lr, 3);                           // The later file.
  EXPECT_EQ(recipe.optimizer.eps, 2);                          // Maps are merged,
  EXPECT_EQ(recipe.log.trace_steps, std::vector<int64_t>{4});  // lists replaced.
  EXPECT_EQ(recipe.data.TrainSources()[0].paths, std::vector<std::string>{"corpus.txt"});
  recipe = ParseRecipe(files, {"optimizer.lr=4", "optimizer={eps: 5}", "optimizer.lr=6"});
  EXPECT_EQ(recipe.optimizer.lr, 6);
  EXPECT_EQ(recipe.optimizer.eps, 5);
  EXPECT_EQ(recipe.optimizer.betas[0], 0.1);
  EXPECT_EQ(recipe.places.at("optimizer.lr"), "--set optimizer.lr=6");
  EXPECT_EQ(recipe.places.at("data.seq_len"), "b.yaml:3:17");
  EXPECT_EQ(recipe.places.at("data.train.paths"), "a.yaml:2:23");
  EXPECT_EQ(recipe.places.count("data.shuffle"), 0u);
  EXPECT_EQ(recipe.Mistake("data.train.paths", "no such file"),
            "a.yaml:2:23: data.train.paths: no such file");
  EXPECT_EQ(recipe.Mistake("data.shuffle", "no"), "data.shuffle: no");
}

TEST(LoadRecipe, OverridesOfMapsThatMayBeNull) {
  Recipe recipe = Parse(kGood, {"data.valid=null", "data.valid.fraction=0.25"});
  EXPECT_EQ(std::get<HeldOut>(recipe.data.valid).fraction, 0.25);
  recipe = Parse(kGood, {"data.valid.paths=[v]", "data.valid.tokenizer=bytes"});
  EXPECT_EQ(std::get<SourceRecipe>(recipe.data.valid).paths, std::vector<std::string>{"v"});
  recipe = Parse(kGood, {"data.valid.paths=[v]", "data.valid.fraction=0.5"});
  EXPECT_EQ(std::get<HeldOut>(recipe.data.valid).fraction, 0.5);
  recipe = Parse(kGood, {"eval.sample.prompt=x", "eval.sample.max_tokens=5"});
  EXPECT_EQ(recipe.eval.sample->prompt, "x");
  EXPECT_EQ(recipe.eval.sample->max_tokens, 5);
  EXPECT_FALSE(Parse(kGood, {"eval.sample.prompt=x", "eval.sample=null"}).eval.sample);
  // A prompt before the null is gone with it.
  EXPECT_EQ(
      MistakesOf(kGood, {"eval.sample.prompt=x", "eval.sample=null", "eval.sample.max_tokens=5"}),
      "--set eval.sample.max_tokens=5: eval.sample.prompt: required");
}

TEST(LoadRecipe, PresetsAndTheFieldsBesideThem) {
  const auto shape = [](const std::vector<std::string>& models,
                        const std::vector<std::string>& overrides = {}) {
    std::vector<RecipeText> texts = {{"d", "data: {train: {paths: [x]}}\nmodel: {family: gpt2}\n"}};
    for (const std::string& model : models) texts.push_back({"m", "model: {" + model + "}"});
    return *ShapeOf(ParseRecipe(texts, overrides).model).As<Gpt2Config>();
  };
  const auto medium = *FindModelPreset("gpt2-350m")->As<Gpt2Config>();
  EXPECT_EQ(shape({"preset: gpt2-350m"}), medium);
  Gpt2Config want = medium;
  want.hidden_size = 512, want.intermediate_size = 2048;
  EXPECT_EQ(shape({"hidden_size: 512, preset: gpt2-350m"}), want);
  EXPECT_EQ(shape({"preset: gpt2-350m", "hidden_size: 512"}), want);
  EXPECT_EQ(shape({"preset: gpt2-350m"}, {"model.hidden_size=512"}), want);
  EXPECT_EQ(shape({}, {"model.hidden_size=512", "model.preset=gpt2-350m"}), want);
  EXPECT_EQ(shape({"hidden_size: 512", "preset: gpt2-350m"}), medium);
  EXPECT_EQ(shape({"hidden_size: 512"}, {"model.preset=gpt2-350m"}), medium);
  EXPECT_EQ(shape({"preset: gpt2-350m", "preset: null"}).hidden_size, 768);
  EXPECT_EQ(shape({"preset: gpt2-350m", "vocab_size: 300", "vocab_size: null"}).vocab_size, 50257);
}

TEST(LoadRecipe, LlamaFieldsFollowOthers) {
  const auto shape = [](const std::vector<std::string>& models) {
    std::vector<RecipeText> texts = {
        {"d", "data: {train: {source: synthetic}, seq_len: 16}\nmodel: {family: llama}\n"}};
    for (const std::string& model : models) texts.push_back({"m", "model: {" + model + "}"});
    return *ShapeOf(ParseRecipe(texts).model).As<LlamaConfig>();
  };
  EXPECT_EQ(shape({}), LlamaConfig());
  const auto preset = *FindModelPreset("llama3.1-8b")->As<LlamaConfig>();
  EXPECT_EQ(shape({"preset: llama3.1-8b"}), preset);
  LlamaConfig want = preset;
  want.hidden_size = 512, want.intermediate_size = 1536, want.head_dim = 16;
  EXPECT_EQ(shape({"preset: llama3.1-8b, hidden_size: 512"}), want);
  want.num_attention_heads = want.num_key_value_heads = 4;
  want.head_dim = 64;
  want.intermediate_size = 100;
  EXPECT_EQ(shape({"preset: llama3.1-8b, hidden_size: 512, intermediate_size: 100",
                   "num_attention_heads: 4", "head_dim: 64"}),
            want);
  // A scaling that names its type replaces another whole; null is the preset's.
  want = preset;
  want.rope_scaling = {.type = RopeScaling::Type::kLinear, .factor = 2};
  EXPECT_EQ(shape({"preset: llama3.1-8b", "rope_scaling: {type: dynamic, factor: 9}",
                   "rope_scaling: {type: linear, factor: 2}"}),
            want);
  want.rope_scaling.factor = 3;
  EXPECT_EQ(shape({"preset: llama3.1-8b", "rope_scaling: {type: linear, factor: 2}",
                   "rope_scaling: {factor: 3}"}),
            want);
  EXPECT_EQ(shape({"preset: llama3.1-8b", "rope_scaling: {type: linear, factor: 2}",
                   "rope_scaling: null"}),
            preset);
  want.rope_scaling = {};
  EXPECT_EQ(shape({"preset: llama3.1-8b", "rope_scaling: {type: default}"}), want);
}

TEST(LoadRecipe, DynamicScalingAllowsLongerSequences) {
  const auto mistake = [](const std::string& length) {
    return MistakesOf(
        "data: {train: {paths: [x]}, seq_len: " + length +
        "}\nmodel: {family: llama, max_position_embeddings: 100, rope_scaling: {type: dynamic, "
        "factor: 2.5}}\n");
  };
  EXPECT_EQ(mistake("250"), "");
  EXPECT_EQ(mistake("251"),
            "r.yaml:1:38: data.seq_len: data.seq_len is 251, but model.max_position_embeddings is "
            "100, which model.rope_scaling stretches to 250");
}

// Dropout is no part of a shape: what the recipe leaves open the files say, and without files it is
// 0. A run records what it trains with.
TEST(LoadRecipe, DropoutsAreTheRecipesOrTheFiles) {
  const Recipe recipe = Parse(
      "model: {family: gpt2, init_from: hf, embedding_dropout: 0.1, attention_dropout: 0}\n"
      "data: {train: {paths: [x]}}\n");
  Gpt2Config files;
  files.residual_dropout = 0.5;
  files.attention_dropout = 0.25;
  const auto shape = *ShapeOf(recipe, files, "hf").As<Gpt2Config>();
  EXPECT_EQ(shape.embedding_dropout, 0.1);
  EXPECT_EQ(shape.residual_dropout, 0.5);
  EXPECT_EQ(shape.attention_dropout, 0);
  EXPECT_FALSE(recipe.model.fields.contains("residual_dropout"));
  const ModelRecipe recorded = WithShape(recipe, shape).model;
  EXPECT_EQ(recorded.Get<double>("embedding_dropout"), 0.1);
  EXPECT_EQ(recorded.Get<double>("residual_dropout"), 0.5);
  EXPECT_EQ(recorded.Get<double>("attention_dropout"), 0);
  const ModelRecipe plain = Parse(kGood).model;
  EXPECT_EQ(plain.Get<double>("attention_dropout"), 0);
  EXPECT_EQ(ShapeOf(plain).As<Gpt2Config>()->embedding_dropout, 0);

  const Recipe llama = Parse(
      "model: {family: llama, init_from: hf}\n"
      "data: {train: {paths: [x]}}\n");
  LlamaConfig theirs;
  theirs.attention_dropout = 0.25;
  EXPECT_EQ(ShapeOf(llama, theirs, "hf").As<LlamaConfig>()->attention_dropout, 0.25);
  EXPECT_EQ(WithShape(llama, theirs).model.Get<double>("attention_dropout"), 0.25);
  EXPECT_EQ(WithShape(llama, theirs).model.Get<double>("residual_dropout"), 0);
  // With it the shape, so that the recipe says all that is trained.
  EXPECT_EQ(ShapeOf(WithShape(llama, theirs).model), ModelShape(theirs));
}

// A setting that no op computes is a mistake of the recipe, at its key.
TEST(LoadRecipe, TheOpsLimitsAreTheRecipes) {
  const auto set = [](const std::string& override) { return MistakesOf(kGood, {override}); };
  const auto mistake = [](const std::string& override, const std::string& message) {
    return "--set " + override + ": " + override.substr(0, override.find('=')) + ": " + message;
  };
  const std::string smallest =
      "optimizer.eps is 0, but adamw divides by it where a moment is 0: at least 1.17549e-38, the "
      "smallest of fp32";
  EXPECT_EQ(set("optimizer.eps=0"), mistake("optimizer.eps=0", smallest));
  EXPECT_NE(set("optimizer.eps=1e-39"), "");
  EXPECT_EQ(set("optimizer.eps=1.2e-38"), "");
  EXPECT_EQ(MistakesOf(kGood, {"optimizer.name=sgd", "optimizer.eps=0"}), "");  // Not read.

  for (const std::string key :
       {"optimizer.lr", "optimizer.eps", "optimizer.weight_decay", "train.grad_clip"}) {
    EXPECT_EQ(set(key + "=3.4e38"), "");
    EXPECT_EQ(set(key + "=1e39"),
              mistake(key + "=1e39", "want a finite number that fits in 32 bits, got 1e39"));
  }
  EXPECT_EQ(set("optimizer.betas=[0.9, 0.999999999]"),
            "--set optimizer.betas=[0.9, 0.999999999]: optimizer.betas[1]: want a number of at "
            "least 0 and below 1 in 32 bits, got 0.999999999");
  EXPECT_NE(MistakesOf(kGood, {"optimizer.name=sgd", "optimizer.momentum=0.999999999"}), "");
  EXPECT_NE(set("optimizer.groups=[{match: x, lr_scale: 1e39}]"), "");
  EXPECT_NE(set("optimizer.groups=[{match: x, weight_decay: 1e39}]"), "");
  EXPECT_EQ(set("run.threads=1000000"),
            mistake("run.threads=1000000", "want an integer from 0 to 4096, got 1000000"));

  EXPECT_EQ(MistakesOf("model: {family: gpt2, hidden_size: 1028, num_attention_heads: 4}\n"
                       "data: {train: {paths: [x]}}\n"),
            "r.yaml:1:63: model.num_attention_heads: heads are 257 wide; attention computes 1 to "
            "256");
  EXPECT_EQ(MistakesOf("model: {family: gpt2, hidden_size: 3084}\ndata: {train: {paths: [x]}}\n"),
            "r.yaml:1:36: model.hidden_size: heads are 257 wide; attention computes 1 to 256");
  EXPECT_EQ(MistakesOf("model: {family: llama, hidden_size: 514, num_attention_heads: 1}\n"
                       "data: {train: {paths: [x]}}\n"),
            "r.yaml:1:37: model.hidden_size: heads are 514 wide; attention computes 1 to 256");
  EXPECT_EQ(set("model.layer_norm_epsilon=0"),
            mistake("model.layer_norm_epsilon=0",
                    "want a number of at least 1.1754943508222875e-38 and of at most 1, got 0"));
  EXPECT_NE(set("model.num_hidden_layers=1025"), "");
}

TEST(LoadRecipe, ShapesThatNoAddressReachesAreMistakes) {
  const std::string wide =
      "data: {train: {source: synthetic}, seq_len: 16777216}\n"
      "model: {family: gpt2, hidden_size: 1048576, num_attention_heads: 4096,\n"
      "        max_position_embeddings: 16777216}\n"
      "train: {micro_batch_size: ";
  EXPECT_EQ(MistakesOf(wide + "8193}\n"),
            "r.yaml:4:27: train.micro_batch_size: train.micro_batch_size x data.seq_len x 4194304 "
            "elements of a token are 8193 x 16777216 x 4194304, more than addresses reach");
  EXPECT_EQ(MistakesOf(wide + "8192}\n"), "");  // A plan, and exit code 3.
}

TEST(LoadRecipe, SyntheticTokensAndMixturesHaveLimits) {
  EXPECT_EQ(MistakesOf("model: {family: gpt2, vocab_size: 1}\n"
                       "data: {train: {source: synthetic}}\n"),
            "r.yaml:1:35: model.vocab_size: source `synthetic` draws from at least 2 tokens, got a "
            "vocabulary of 1");
  const auto weight = [](const std::string& text) {
    return MistakesOf(
        "model: {family: gpt2}\ndata:\n  train:\n  - {paths: [x]}\n"
        "  - {paths: [y], weight: " +
        text + "}\n");
  };
  EXPECT_EQ(weight("1e-9"), "");
  EXPECT_EQ(weight("1e-30"),
            "r.yaml:4:3: data.train: the weights are too far apart: a source would never be drawn "
            "from");
}

TEST(LoadRecipe, TheFamilyMayBeLeftToInitFrom) {
  const std::string data = "data: {train: {paths: [x]}}\n";
  const Recipe recipe = Parse("model: {init_from: hf, residual_dropout: 0.1}\n" + data);
  EXPECT_FALSE(recipe.model.family);
  const Gpt2Config gpt2;
  EXPECT_EQ(FamilyOf(ShapeOf(recipe, gpt2, "hf")), "gpt2");
  EXPECT_EQ(ShapeOf(recipe, gpt2, "hf").As<Gpt2Config>()->residual_dropout, 0.1);
  // A field of another family than the files' is a mistake nonetheless.
  for (const char* field : {"residual_dropout: 0.1", "layer_norm_epsilon: 1e-5"}) {
    try {
      ShapeOf(Parse("model: {init_from: hf, " + std::string(field) + "}\n" + data), LlamaConfig(),
              "hf");
      ADD_FAILURE() << field;
    } catch (const ConfigError& error) {
      EXPECT_NE(std::string(error.what()).find("a `llama` has no "), std::string::npos);
    }
  }
  // A preset says it. Without files somebody has to.
  EXPECT_EQ(Parse("model: {init_from: hf, preset: llama3-8b}\n" + data).model.family, "llama");
  for (const char* preset : {"gpt2-124m", "llama3.2-1b"}) {
    const Recipe alone = Parse("model: {preset: " + std::string(preset) + "}\n" + data);
    EXPECT_EQ(ShapeOf(alone.model), *FindModelPreset(preset));
    EXPECT_EQ(Parse(PrintRecipe(alone)), alone);
  }
  EXPECT_EQ(MistakesOf("model: {preset: null}\n" + data), "r.yaml:1:1: model.family: required");
  EXPECT_EQ(Parse(PrintRecipe(recipe)), recipe);
}

TEST(LoadRecipe, AVocabularyThatNobodyGivesIsAWholeMultiple) {
  const auto vocabulary = [](const std::string& model, const std::string& source) {
    return *Parse("model: {" + model + "}\ndata: {train: {" + source + "}}\n")
                .model.Get<int64_t>("vocab_size");
  };
  EXPECT_EQ(vocabulary("family: gpt2, vocab_multiple: 100", "paths: [x]"), 300);
  EXPECT_EQ(vocabulary("family: gpt2, vocab_multiple: 64", "source: synthetic"), 50304);
  EXPECT_EQ(vocabulary("family: gpt2, vocab_multiple: 64, vocab_size: 128", "source: synthetic"),
            128);
  for (const char* given : {"vocab_size: 1001", "preset: gpt2-124m"}) {
    EXPECT_THROW(
        vocabulary("family: gpt2, vocab_multiple: 64, " + std::string(given), "source: synthetic"),
        ConfigError);
  }
}

// In one go, each at its place, also where the recipe has mistakes of its own.
TEST(LoadRecipe, ReportsWhatACheckFindsAmongItsOwnMistakes) {
  const auto check = [](const Recipe& recipe) {
    EXPECT_EQ(recipe.train.steps, 7);
    return std::vector<ShapeConflict>{{{"optimizer.groups[0].match", "optimizer.groups"}, "none"},
                                      {{"optimizer.lr"}, "not worth a second line"},
                                      {{"model.init_from"}, "elsewhere"}};
  };
  try {
    ParseRecipe({{"r.yaml", std::string(kGood) + "train: {steps: 7}\noptimizer:\n  lr: x\n"
                                                 "  groups: [{match: y}]\n"}},
                {}, check);
    ADD_FAILURE() << "taken";
  } catch (const ConfigError& error) {
    EXPECT_STREQ(error.what(),
                 "r.yaml:1:1: model.init_from: elsewhere\n"
                 "r.yaml:5:7: optimizer.lr: want a number of at least 0, got the text `x`\n"
                 "r.yaml:6:20: optimizer.groups[0].match: none");
  }
}

TEST(LoadRecipe, FilesOfAnotherFamilyAreRefused) {
  const Recipe recipe =
      Parse("model: {family: llama, init_from: hf}\ndata: {train: {paths: [x]}}\n");
  try {
    ShapeOf(recipe, Gpt2Config(), "hf");
    FAIL() << "no error";
  } catch (const ConfigError& error) {
    EXPECT_STREQ(error.what(), "r.yaml:1:17: model.family: the recipe says llama, hf says gpt2");
  }
  LlamaConfig files;
  files.rope_scaling = {.type = RopeScaling::Type::kLinear, .factor = 2};
  const Recipe other = Parse(
      "model: {family: llama, init_from: hf, rope_scaling: {type: default}}\n"
      "data: {train: {paths: [x]}}\n");
  try {
    ShapeOf(other, files, "hf");
    FAIL() << "no error";
  } catch (const ConfigError& error) {
    EXPECT_STREQ(error.what(),
                 "r.yaml:1:39: model.rope_scaling: the recipe says {type: default}, hf says "
                 "{type: linear, factor: 2}");
  }
}

TEST(LoadRecipe, FilesUnderInitFromDecideTheShape) {
  const Recipe recipe =
      Parse("model: {family: gpt2, init_from: hf, hidden_size: 64}\ndata: {train: {paths: [x]}}\n");
  EXPECT_FALSE(recipe.model.fields.contains("num_hidden_layers"));
  EXPECT_THROW(ShapeOf(recipe.model), std::invalid_argument);
  const Gpt2Config files{.hidden_size = 64, .num_hidden_layers = 2, .num_attention_heads = 2};
  EXPECT_EQ(ShapeOf(recipe, files, "hf"), ModelShape(files));
  Gpt2Config other = files;
  other.hidden_size = 32;
  other.vocab_size = 100;
  other.max_position_embeddings = 16;
  try {
    ShapeOf(recipe, other, "hf");
    FAIL() << "no error";
  } catch (const ConfigError& error) {
    EXPECT_STREQ(
        error.what(),
        "r.yaml:1:51: model.hidden_size: the recipe says 64, hf says 32\n"
        "r.yaml:1:34: model.init_from: data.seq_len is 256, but model.max_position_embeddings is "
        "16\n"
        "r.yaml:1:34: model.init_from: text in bytes needs a vocabulary of at least 256, got 100");
  }
}

// Convolutions fit images of any size, and no config.json of a RegNet says one; a ViT's positions
// are of its size alone.
TEST(LoadRecipe, ARegNetTakesImagesOfTheRecipesSize) {
  const auto recipe = [](const std::string& family, int size) {
    return Parse("model: {family: " + family +
                 ", init_from: hf, image_size: 64}\n"
                 "data: {train: {source: images, paths: [x], crop: center, size: " +
                 std::to_string(size) + "}}\n");
  };
  const auto refusal = [](const Recipe& of, const ModelShape& files) -> std::string {
    return testing::ErrorOf<ConfigError>([&] { ShapeOf(of, files, "hf"); });
  };
  const RegNetConfig files;
  RegNetConfig want = files;
  want.image_size = 64;
  EXPECT_EQ(ShapeOf(recipe("regnet", 64), files, "hf"), ModelShape(want));
  EXPECT_NE(refusal(recipe("regnet", 63), files).find("a square of model.image_size, 64, is cut"),
            std::string::npos);
  EXPECT_NE(refusal(recipe("vit", 64), VitConfig()).find("the recipe says 64, hf says 224"),
            std::string::npos);
}

TEST(LoadRecipe, ReadsFiles) {
  const std::string dir = ::testing::TempDir();
  const std::string path = dir + "/recipe.yaml";
  std::ofstream(path) << kGood << "train: {steps: 7}\n";
  EXPECT_EQ(LoadRecipe({path}, {"train.grad_clip=2"}).train.steps, 7);
  const auto mistakes = [](const std::vector<std::string>& files) -> std::string {
    return testing::ErrorOf<ConfigError>([&] { LoadRecipe(files); });
  };
  EXPECT_EQ(mistakes({path, dir + "/none.yaml", dir}),
            dir + "/none.yaml: No such file or directory\n" + dir + ": Is a directory");
  std::ofstream(dir + "/empty.yaml");
  EXPECT_EQ(mistakes({dir + "/empty.yaml"}), dir + "/empty.yaml:1:1: model.family: required\n" +
                                                 dir + "/empty.yaml:1:1: data.train: required");
}

}  // namespace
}  // namespace fsdp
