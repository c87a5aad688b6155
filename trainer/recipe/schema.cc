#include "trainer/recipe/schema.h"

#include "trainer/ops/router_options.h"
#include "trainer/recipe/containers.h"
#include "trainer/recipe/model_fields.h"
#include "trainer/recipe/sections.h"

namespace fsdp::recipe {
namespace {

constexpr int64_t kAnyInteger = std::numeric_limits<int64_t>::max();

Type<DType> AnyFloat() { return OneOf<DType>({"fp32", "bf16", "fp16"}, Later()); }
Type<DType> Only32Bit() { return OneOf<DType>({"fp32"}, Later({"bf16", "fp16"})); }

}  // namespace

Type<RunRecipe> RunType() {
  using R = RunRecipe;
  return Map<R>({
      Key("name", &R::name, Text(), "The run's name; no slashes."),
      Key("dir", &R::dir, Nullable(Path()), "The run directory. null: runs/ followed by run.name."),
      Key("seed", &R::seed, Integer(0, kAnyInteger),
          "Seed of the initial weights and of the order of the data."),
      Key("device", &R::device, OneOf<R::Device>(),
          "The device that computes. auto: a GPU if one can be used, otherwise the CPU. cuda: a "
          "GPU, or an error. sim: a simulated rank, without tensor data."),
      Key("threads", &R::threads, Integer(0, R::kMaxThreads),
          "CPU threads of a rank that compute. 0: the cores that affinity and the quotas of "
          "control groups leave, divided by the host's ranks that may run on them. A part of a "
          "core does not count."),
      Key("deterministic", &R::deterministic, Boolean(),
          "Use repeatable algorithms where a device also has faster ones that are not. The CPU "
          "is always repeatable."),
      Key("timeout_s", &R::timeout_s, Number({.above = 0, .at_most = 1e9}),
          "Seconds without an answer from a peer or a collective after which the run ends with "
          "exit code 6."),
      Key("max_time", &R::max_time, Nullable(Duration()),
          "How long the process may run: seconds, or as in 90m and 4h. The run then stops as on "
          "SIGTERM, with a checkpoint and exit code 75, early enough for the steps under way and a "
          "save as long as the last ones; before the first save, 60 s are kept for it. Every start "
          "makes a step. Rank 0's clock counts. SLURM_JOB_END_TIME, where Slurm sets it, is such a "
          "limit, too: the earlier one counts. null: none."),
      Key("memory_limit", &R::memory_limit, Nullable(Bytes()),
          "Device memory that a rank may take, in bytes, or as in 10GB and 1.5GiB. On the CPU it "
          "covers host memory as well, which is the same memory. A plan above the limit ends "
          "with exit code 3; with fsdp.buffers `caching`, cached memory is freed first. null: "
          "what the machine has."),
      Key("store_port", &R::store_port, Nullable(Integer(1, 65535)),
          "TCP port of the store through which the ranks meet. null: MASTER_PORT, or the next "
          "port where a launching agent owns that one."),
  });
}

Type<TrainRecipe> TrainType() {
  using R = TrainRecipe;
  const auto ema = Map<EmaRecipe>({
      Key("decay", &EmaRecipe::decay, Number({.at_least = 0, .below = 1}),
          "The share of the average that a step keeps."),
  });
  Later of_parts({"micro_batch", "batch"});
  of_parts.why =
      "a balance loss of a micro-batch would depend on the number of ranks and on how a batch is "
      "accumulated";
  const auto router = Map<RouterRecipe>({
      Key("aux_loss", &RouterRecipe::aux_loss, Nullable(Number({.at_least = 0})),
          "Coefficient of the loss that keeps experts' loads even: the mean over layers of N "
          "sum_e f_e P_e, with f the share of tokens that chose an expert (all sum to k) and P its "
          "mean probability. null: what config.json of model.init_from asks for; from scratch "
          "0.01 with softmax scores, and 0 with sigmoids."),
      Key("aux_scope", &RouterRecipe::aux_scope, OneOf<BalanceScope>(of_parts),
          "Where f comes from. sequence: from each sample. step: from all samples of the step "
          "before, over all ranks; the first step has none."),
      Key("z_loss", &RouterRecipe::z_loss, Number({.at_least = 0}),
          "Coefficient of the mean over layers and tokens of logsumexp(router logits)^2."),
      Key("bias_rate", &RouterRecipe::bias_rate, Nullable(Number({.at_least = 0, .fp32 = true})),
          "By how much a step moves each correction bias, up where the expert had fewer tokens "
          "than the mean, down where it had more. null: 0.001 from scratch, 0 with init_from."),
  });
  return Map<R>({
      Key("steps", &R::steps, StepsOrNull(),
          "Optimizer steps of the whole run. null: as many as train.epochs takes."),
      Key("epochs", &R::epochs, Nullable(Number({.above = 0, .at_most = 1e9})),
          "Passes over data.train without what data.valid holds out, instead of train.steps. "
          "With several sources a pass is as many samples as they have together. Rounded up to "
          "whole steps; the run records their number."),
      Key("micro_batch_size", &R::micro_batch_size, Integer(1),
          "Sequences per rank and forward pass."),
      Key("global_batch_size", &R::global_batch_size, Integer(1),
          "Sequences per optimizer step, over all ranks; any number at any world size. A batch "
          "larger than one forward pass of all ranks is accumulated over several."),
      Key("grad_clip", &R::grad_clip, Number({.at_least = 0, .fp32 = true}),
          "Largest norm of all gradients together. 0: no clipping."),
      Key("attention", &R::attention, OneOf<R::Attention>(),
          "flash: attention in tiles; its memory grows with the sequence length. math: the "
          "probabilities of all queries and keys, [heads, T, T], are computed and kept for "
          "backward."),
      Key("batch_norm", &R::batch_norm, OneOf<R::BatchNorm>(),
          "The samples that a batch norm's mean and variance are taken over, while training. "
          "local: the rank's micro-batch, so results depend on the number of ranks. sync: the "
          "micro-batches of all ranks, which costs each norm one sum over the ranks in forward "
          "and one in backward."),
      Key("router", &R::router, router, "How a mixture of experts keeps its loads even."),
      Key("activation_checkpointing", &R::activation_checkpointing, OneOf<Recompute>(),
          "Which activations backward recomputes instead of keeping them. selective: norms, "
          "activation functions and attention. full: everything except the blocks' inputs."),
      Key("activation_offload", &R::activation_offload, OneOf<ActivationOffload>(),
          "Where activations wait for backward. none: on the device. host: in host memory. "
          "spill: in the directory of fsdp.cpu_offload.spill. The last block's stay on the "
          "device. With activation_checkpointing `full`, only the blocks' inputs move."),
      Key("ema", &R::ema, Nullable(ema),
          "A moving average of the weights, sharded and saved like them: a map with `decay`. "
          "null: none."),
      Key("max_skipped_steps", &R::max_skipped_steps, Integer(0),
          "A step with a loss or gradient that is not finite changes nothing. After more than "
          "this many such steps the run ends with exit code 7. fp16 overflows above min_scale do "
          "not count."),
  });
}

Type<EvalRecipe> EvalType() {
  using R = EvalRecipe;
  const auto sample = Map<SampleRecipe>({
      Key("prompt", &SampleRecipe::prompt, Text(), "The text that the sample continues.")
          .Required(),
      Key("max_tokens", &SampleRecipe::max_tokens, Integer(1), "Most new tokens after the prompt."),
      Key("temperature", &SampleRecipe::temperature, Number({.at_least = 0}),
          "Divides the logits. 0: always the likeliest token."),
  });
  return Map<R>({
      Key("every", &R::every, Integer(0), "Steps between evaluations. 0: none."),
      Key("steps", &R::steps, Integer(1),
          "Most batches of an evaluation, each of train.global_batch_size sequences."),
      Key("sample", &R::sample, Nullable(sample),
          "A text to sample from the model after each evaluation. null: none."),
      Key("ema", &R::ema, Boolean(),
          "true: evaluate the averaged weights (train.ema). false: the last weights."),
      Key("stop_after", &R::stop_after, Nullable(Integer(1)),
          "End the run after this many evaluations in a row without a new lowest loss, the mean "
          "over the sets. A resume goes on counting. checkpoint.keep_best is then at least 1. "
          "null: the run takes all its steps."),
  });
}

Type<ScheduleRecipe> ScheduleType() {
  using R = ScheduleRecipe;
  return Map<R>({
      Key("name", &R::name, OneOf<R::Kind>(),
          "How the learning rate falls after the warm-up. cosine, linear: over all remaining "
          "steps. wsd: constant, then down over the last decay_steps. constant: not at all."),
      Key("warmup_steps", &R::warmup_steps, Integer(0),
          "Steps over which the rate rises linearly to optimizer.lr. If train.steps is smaller, "
          "the rise takes the whole run."),
      Key("min_lr_ratio", &R::min_lr_ratio, Number({.at_least = 0, .at_most = 1}),
          "Final learning rate as a share of optimizer.lr. `constant` does not read it."),
      Key("decay_steps", &R::decay_steps, Nullable(Integer(1)),
          "wsd: steps of decay at the end. null: a tenth of train.steps, or fewer if the warm-up "
          "leaves fewer."),
      Key("decay", &R::decay, OneOf<R::Decay>(),
          "wsd: shape of the decay, p being the share of decay_steps that has passed. sqrt: 1 - "
          "sqrt(p). linear: 1 - p. cosine: half a period."),
  });
}

Type<FsdpOptions> FsdpType() {
  using R = FsdpOptions;
  const auto auto_wrap = Map<WrapPolicy>({
      Key("policy", &WrapPolicy::policy, OneOf<AutoWrap>(),
          "transformer_block: one unit per block. branch: one unit per residual branch, two per "
          "block, for families that allow it. experts: one unit per block, and expert_pieces of "
          "them for the experts of a block that has some. size: sub-trees of at least "
          "min_num_params. none: the whole model is one unit."),
      Key("expert_pieces", &WrapPolicy::expert_pieces, Integer(1, kMaxExperts),
          "Policy experts: units that hold a layer's experts, equally many each. A divisor of "
          "num_experts. More of them need less memory and more collectives."),
      Key("min_num_params", &WrapPolicy::min_num_params, Integer(1, kAnyInteger),
          "Policy size: least parameters of a unit."),
      Key("outside", &WrapPolicy::outside, OneOf<WrapPolicy::Outside>(),
          "Where parameters outside every block go. units: an embedding and a head that share no "
          "weights are units of their own, and the rest is the root unit. root: all of them are "
          "the root unit, as in the paper; it is gathered before forward and stays whole until "
          "backward ends."),
  });
  using S = LossScalerOptions;
  const auto scaler = Map<S>({
      Key("init_scale", &S::init_scale, Number({.above = 0, .fp32 = true}),
          "Scale of the first step. It is multiplied by the largest power of two that is at most "
          "the number of ranks, so that gradients are scaled as in PyTorch, whose ranks average. "
          "A resume takes the checkpoint's scale."),
      Key("growth_factor", &S::growth_factor, Number({.above = 1, .fp32 = true}),
          "Multiplies the scale after growth_interval steps without an overflow, if the result "
          "is finite in fp32."),
      Key("backoff_factor", &S::backoff_factor, Number({.above = 0, .below = 1, .fp32 = true}),
          "Multiplies the scale after an overflow; that step changes nothing."),
      Key("growth_interval", &S::growth_interval, Integer(1, 1 << 24),
          "Steps without an overflow before the scale grows."),
      Key("min_scale", &S::min_scale, Number({.above = 0, .fp32 = true}), "Smallest scale."),
  });
  const auto mixed_precision = Map<R::MixedPrecision>({
      Key("param_dtype", &R::MixedPrecision::param_dtype, AnyFloat(),
          "dtype of gathered parameters, of compute and of activations. Sums, statistics and the "
          "loss are fp32."),
      Key("grad_dtype", &R::MixedPrecision::grad_dtype, AnyFloat(),
          "dtype of unsharded gradients. Gradient shards are fp32."),
      Key("reduce_dtype", &R::MixedPrecision::reduce_dtype, AnyFloat(),
          "dtype of gradients that ranks send each other."),
      Key("sum", &R::MixedPrecision::sum, Nullable(OneOf<R::MixedPrecision::Sum>()),
          "How GPUs add up gradients in a reduce_dtype of 16 bits. nccl: NCCL adds them in that "
          "dtype on their way, and the sum is widened. exact: all travel to their owner, who adds "
          "them in fp32 in the order of the ranks; between hosts that is more bytes (fsdp.md). "
          "null: nccl, and exact with run.deterministic. CPUs do not read it: their sums are "
          "exact."),
      Key("master_dtype", &R::MixedPrecision::master_dtype, OneOf<DType>({"fp32", "bf16"}, Later()),
          "dtype of the parameters that the optimizer updates. bf16 is rounded stochastically."),
      Key("buffer_dtype", &R::MixedPrecision::buffer_dtype, Only32Bit(),
          "dtype of a model's buffers, which are not parameters."),
      Key("keep_fp32", &R::MixedPrecision::keep_fp32, ListOf(Text()),
          "Parameters that stay fp32 throughout: globs over their Hugging Face names. Left out "
          "with param_dtype fp16: those that the model's family keeps in fp32."),
      Key("cast", &R::MixedPrecision::cast, OneOf<R::MixedPrecision::CastIn>(),
          "When masters are cast to param_dtype; the bits are the same. optimizer: at the "
          "update, which keeps a copy. gather: at each gather, without a copy."),
      Key("scaler", &R::MixedPrecision::scaler, scaler,
          "Loss scaling, which keeps fp16 gradients from underflowing to zero. Read where "
          "param_dtype, grad_dtype or reduce_dtype is fp16."),
  });
  const auto cpu_offload = Map<R::CpuOffload>({
      Key("params", &R::CpuOffload::params, Boolean(),
          "true: the parameter shards that are computed with stay in host memory, too; each "
          "gather fetches them from there. On one rank they are fetched unit by unit."),
      Key("optimizer", &R::CpuOffload::optimizer, Boolean(),
          "true: masters, optimizer state and gradient shards stay in host memory, and the host "
          "updates them there. On the CPU device this changes no bit."),
      Key("optimizer_share", &R::CpuOffload::optimizer_share, Number({.at_least = 0, .at_most = 1}),
          "Share of the units, spread evenly, that stay on the device and are updated there "
          "while the host updates the others."),
      Key("threads", &R::CpuOffload::threads, Integer(0, 1024),
          "Threads that update on the host. 0: run.threads."),
      Key("spill", &R::CpuOffload::spill, Nullable(Path()),
          "A directory on a disk of each host. State and masters that only the updates read lie "
          "there, in files without names, read ahead of the updates and written behind them. "
          "null: in host memory."),
      Key("spill_ahead", &R::CpuOffload::spill_ahead, Integer(0, 1024),
          "Units that are read from the disk ahead of the one being updated."),
  });
  const auto quantize = Map<R::Quantize>({
      Key("gather", &R::Quantize::gather, OneOf<R::Quantize::Gather>(),
          "How gathers send parameters instead of in param_dtype: one byte per element and one "
          "scale per block. Every rank computes with the rounded values; masters and updates "
          "stay exact. With reshard_after_forward, backward gathers in param_dtype."),
      Key("reduce", &R::Quantize::reduce, OneOf<R::Quantize::Reduce>(),
          "How reductions send gradients instead of in reduce_dtype: one byte (int8) or half a "
          "byte (int4) per element and one scale per block. The ranks of a host are summed in "
          "fp32, then the hosts. That rounds once on one host and twice on several; copies of "
          "hybrid strategies add two roundings. int4 may cost some learning, less with smaller "
          "blocks."),
      Key("block", &R::Quantize::block, OneOfIntegers({64, 128, 256}),
          "Elements of a parameter that share a scale."),
      Key("min_size", &R::Quantize::min_size, Integer(1),
          "Not quantised: parameters of fewer elements, of one dimension, or in keep_fp32."),
  });
  return Map<R>({
      Key("sharding_strategy", &R::sharding_strategy, OneOf<Strategy>(),
          "full_shard: parameters are gathered for forward and again for backward. "
          "shard_grad_op: parameters gathered for forward are kept until backward. hybrid_shard, "
          "hybrid_shard_grad_op: the same two inside groups of shard_size ranks; the groups hold "
          "the same shards and sum their gradients once per step. no_shard: every rank keeps all "
          "parameters."),
      Key("shard_size", &R::shard_size, Nullable(Integer(1)),
          "Ranks that share one copy of the model. null: all ranks; for hybrid strategies the "
          "ranks of one host, as found at start; for no_shard 1."),
      Key("reshard_after_forward", &R::reshard_after_forward, Nullable(Integer(2)),
          "k, for full_shard and hybrid_shard: after forward, keep each unit sharded over groups "
          "of k neighbouring ranks, so that backward gathers within the group. A k that divides "
          "the ranks of a host keeps groups on one host. null: free the unit; backward gathers "
          "from all ranks that share a copy."),
      Key("auto_wrap", &R::auto_wrap, auto_wrap,
          "Units: the parts of a model that are gathered and freed together."),
      Key("backward_prefetch", &R::backward_prefetch, OneOf<BackwardPrefetch>(),
          "When the next unit's gather may start in backward. pre: before this unit's gradients "
          "are computed. post: after that. none: after they are reduced."),
      Key("forward_prefetch", &R::forward_prefetch, Boolean(),
          "true: issue the next unit's gather before this unit's forward."),
      Key("limit_all_gathers", &R::limit_all_gathers, Integer(0),
          "Most units that are gathered at once; their memory is reused. n units prefetch n - 1 "
          "ahead. 1: no prefetch. 0: no limit."),
      Key("reduce_buffers", &R::reduce_buffers, Integer(1),
          "Most units whose gradients wait for their reduction at once."),
      Key("communicators", &R::communicators, Integer(1, 2),
          "2: gathers and reductions have a queue each. 1: they share one queue."),
      Key("limiter", &R::limiter, OneOf<R::Limiter>(),
          "Who waits when limit_all_gathers is reached. device: the stream that gathers. host: "
          "the program, before it enqueues the gather, as in the paper; the default with buffers "
          "`caching`."),
      Key("buffers", &R::buffers, OneOf<R::Buffers>(),
          "Where memory comes from. slots: a plan made before the run gives every gathered unit "
          "its place. caching: a caching allocator at the time of use, as in the paper."),
      Key("gradient_accumulation", &R::gradient_accumulation, OneOf<Accumulation>(),
          "sharded: gradients are reduced after every micro-batch. unsharded: only after the "
          "last one, which takes memory for the whole gradient."),
      Key("concat_gradients", &R::concat_gradients, Boolean(),
          "true: when a unit's backward is over, its gradients are copied into one more buffer, "
          "and reduced from there, as PyTorch's FSDP1 does it. Needs buffers `caching`."),
      Key("collective_blocks", &R::collective_blocks, Nullable(Integer(0, 64)),
          "Multiprocessors of a GPU that a collective may take (NCCL's maxCTAs), where several "
          "ranks with a GPU each train; products get the others. null: 8 where all GPUs have "
          "capability 9.0 or more and at least 4 of a host reach each other, otherwise 16, and at "
          "most a quarter of a GPU's. 0: NCCL decides, and products run on all."),
      Key("mixed_precision", &R::mixed_precision, mixed_precision, "Number formats."),
      Key("cpu_offload", &R::cpu_offload, cpu_offload,
          "State that is kept in host memory or on a disk."),
      Key("quantize", &R::quantize, quantize, "Fewer bits for what ranks send each other."),
      Key("fake_all_gather", &R::fake_all_gather, Boolean(),
          "For measuring what communication costs: nothing is sent, and a rank's own shard "
          "stands in for all others. The loss means nothing, and there are no checkpoints."),
      Key("fake_reduce", &R::fake_reduce, Boolean(),
          "For measuring what communication costs: gradients are not sent, and a rank's own "
          "slice, times the ranks of the group, stands in for the sum. The loss means nothing, "
          "and there are no checkpoints."),
  });
}

Type<CheckpointRecipe> CheckpointType() {
  using R = CheckpointRecipe;
  return Map<R>({
      Key("every", &R::every, Nullable(Integer(0)),
          "Steps between checkpoints; the last step saves one as well. 0: only at the end. null: "
          "only when a signal asks for one; the default with fsdp.fake_*."),
      Key("every_minutes", &R::every_minutes, Nullable(Number({.above = 0, .at_most = 1e9})),
          "A checkpoint also after this many minutes since the last one, or since the start. "
          "null: none."),
      Key("keep_last", &R::keep_last, Integer(0),
          "How many of the newest checkpoints are kept. 0: all."),
      Key("keep_best", &R::keep_best, Integer(0),
          "How many checkpoints with the lowest evaluation loss, the mean over the sets, are "
          "kept beside the newest. Only a checkpoint evaluated after its own step has a loss, so "
          "checkpoint.every should be a multiple of eval.every."),
      Key("async", &R::async, Boolean(),
          "true: written from a copy while training goes on, which takes more memory and less "
          "waiting."),
      Key("resume", &R::resume, Resume(),
          "auto: from the newest checkpoint, if there is one; exit code 5 if it is damaged. "
          "none: from the start, in a directory that holds no run. A step (or step_<n>): from "
          "that checkpoint; newer ones are renamed step_<n>.aside and ignored. A directory: from "
          "that checkpoint, or from the newest of that run."),
      Key("allow_changed", &R::allow_changed, ListOf(OneOfTexts(AllowedChanges())),
          "Settings that may differ from those the checkpoint was saved with; a difference is "
          "printed and recorded. schedule is the whole section; records is metrics.jsonl, whose "
          "contents a checkpoint remembers. A change of any other setting that results depend on "
          "is an error."),
  });
}

Type<LogRecipe> LogType() {
  using R = LogRecipe;
  return Map<R>({
      Key("every", &R::every, Integer(1), "Steps between lines and records."),
      Key("tensorboard", &R::tensorboard, Boolean(),
          "true: write the records as TensorBoard event files as well, with samples and the "
          "recipe as text."),
      Key("expert_loads_every", &R::expert_loads_every, Integer(1),
          "Steps between records of the tokens that each expert of a mixture got. The last step "
          "has one, too."),
      Key("trace_steps", &R::trace_steps, ListOf(Integer(1)),
          "Steps for which a Chrome trace is written."),
      Key("spike_z", &R::spike_z, Number({.at_least = 0}),
          "Note a loss or gradient norm this many standard deviations above the mean of the last "
          "128 steps; it takes at least 32 steps since this start. 0: off."),
  });
}

namespace {

const Type<Recipe>& RecipeType() {
  using R = Recipe;
  static const Type<Recipe> type = Map<R>({
      Key("run", &R::run, RunType(), "Where and how the run takes place."),
      Key("model", &R::model, ModelType(), "The model to train.").Required(),
      Key("data", &R::data, DataType(), "The data to train and evaluate on.").Required(),
      Key("train", &R::train, TrainType(), "How long to train, and in which batches."),
      Key("eval", &R::eval, EvalType(), "Evaluations during the run."),
      Key("optimizer", &R::optimizer, OptimizerType(), "How gradients become weights."),
      Key("schedule", &R::schedule, ScheduleType(), "The learning rate over the steps."),
      Key("fsdp", &R::fsdp, FsdpType(), "How the ranks share the model."),
      Key("checkpoint", &R::checkpoint, CheckpointType(), "Checkpoints on disk."),
      Key("log", &R::log, LogType(), "Output and records."),
  });
  return type;
}

Json BuildSchema() {
  Json schema = Json::Object({{"$schema", "https://json-schema.org/draft/2020-12/schema"},
                              {"title", "fsdp-train recipe"}});
  schema.Update(RecipeType()->Schema());
  return schema;
}

void AddKeys(const Json& schema, const std::string& prefix, std::vector<std::string>& keys) {
  for (const Json& form : schema.ElementsOf("anyOf")) AddKeys(form, prefix, keys);
  const Json* const properties = schema.Find("properties");
  if (properties == nullptr) return;
  for (const auto& [name, property] : properties->Members()) {
    keys.push_back(prefix + name);
    AddKeys(property, prefix + name + ".", keys);
  }
}

}  // namespace

const Json& RecipeSchema() {
  static const Json schema = BuildSchema();
  return schema;
}

void ReadRecipe(const YamlNode& node, RecipeReader& reader, Recipe& recipe) {
  RecipeType().Read(node, "", reader, recipe);
}

Json WriteRecipe(const Recipe& recipe) { return RecipeType().Write(recipe); }

std::vector<std::string> KnownKeys() {
  std::vector<std::string> keys;
  AddKeys(RecipeSchema(), "", keys);
  return keys;
}

}  // namespace fsdp::recipe
