#include "trainer/recipe/sections.h"

#include "trainer/recipe/forms.h"
#include "trainer/recipe/model_fields.h"

namespace fsdp::recipe {
namespace {

constexpr int64_t kAnyInteger = std::numeric_limits<int64_t>::max();

Type<DType> AnyFloat() { return OneOf<DType>({"fp32", "bf16", "fp16"}, Later()); }
Type<DType> Only32Bit() { return OneOf<DType>({"fp32"}, Later({"bf16", "fp16"})); }

Type<GroupRecipe> GroupType() {
  using R = GroupRecipe;
  return Map<R>({
      Key("match", &R::match, Text(),
          "A glob over the names that parameters have in Hugging Face files: * is any run of "
          "characters.")
          .Required(),
      Key("weight_decay", &R::weight_decay, Nullable(Number({.at_least = 0, .fp32 = true})),
          "Of all that match, biases and norms, too. null: as without the group."),
      Key("lr_scale", &R::lr_scale, Number({.at_least = 0, .fp32 = true}),
          "Multiplies the learning rate."),
      Key("frozen", &R::frozen, Boolean(), "Not trained: no gradient and no optimizer state."),
  });
}

}  // namespace

Type<RunRecipe> RunType() {
  using R = RunRecipe;
  return Map<R>({
      Key("name", &R::name, Text(), "Names the run; no slashes."),
      Key("dir", &R::dir, Nullable(Text()), "The run directory. null: runs/ and the name."),
      Key("seed", &R::seed, Integer(0, kAnyInteger), "Of initial weights and data order."),
      Key("device", &R::device, OneOf<R::Device>(),
          "What computes. auto: a GPU if there is one that can be used, and the CPU otherwise. "
          "cuda: a GPU, or an error. sim: a simulated rank, without tensor data."),
      Key("threads", &R::threads, Integer(0, R::kMaxThreads),
          "CPU compute threads of a rank. 0: the cores of the host, divided by its ranks."),
      Key("deterministic", &R::deterministic, Boolean(),
          "Repeatable bits on devices that have a faster way without; the cpu device always has "
          "them."),
      Key("timeout_s", &R::timeout_s, Number({.above = 0, .at_most = 1e9}),
          "Seconds of silence of a peer or collective after which the run ends, with exit code 6."),
      Key("memory_limit", &R::memory_limit, Nullable(Bytes()),
          "Device memory that a rank may take, in bytes, or as in 10GB and 1.5GiB; on the CPU, "
          "where that is one memory, host "
          "memory counts, too. A plan above it ends with exit code 3; "
          "with "
          "fsdp.buffers `caching` what is cached is freed first. null: what the machine gives."),
      Key("store_port", &R::store_port, Nullable(Integer(1, 65535)),
          "TCP port of the ranks' store. null: MASTER_PORT, or the port after it where an agent "
          "owns that."),
  });
}

Type<TrainRecipe> TrainType() {
  using R = TrainRecipe;
  const auto ema = Map<EmaRecipe>({
      Key("decay", &EmaRecipe::decay, Number({.at_least = 0, .below = 1}),
          "What a step keeps of the average.")
          .Elsewhere({"beta", "momentum"}),
  });
  return Map<R>({
      Key("steps", &R::steps, StepsOrNull(),
          "Optimizer steps of the whole run. null: as many as train.epochs takes.")
          .Elsewhere({"max_steps", "num_steps", "iterations"}),
      Key("epochs", &R::epochs, Nullable(Number({.above = 0, .at_most = 1e9})),
          "In place of train.steps: passes over data.train, less what data.valid holds out; of "
          "several sources over as many samples as they have together. Rounded up to whole steps, "
          "of which the run records the number.")
          .Elsewhere({"num_epochs"}),
      Key("micro_batch_size", &R::micro_batch_size, Integer(1),
          "Sequences per rank and forward pass.")
          .Elsewhere({"batch_size"}),
      Key("global_batch_size", &R::global_batch_size, Integer(1),
          "Sequences per optimizer step, over all ranks; any number at any world size. What one "
          "forward pass of all ranks does not hold is accumulated.")
          .Elsewhere({"gradient_accumulation_steps", "accumulate_grad_batches"}),
      Key("grad_clip", &R::grad_clip, Number({.at_least = 0, .fp32 = true}),
          "Largest norm of all gradients together. 0: no clipping.")
          .Elsewhere({"max_grad_norm", "clip_grad_norm", "max_norm"}),
      Key("attention", &R::attention, OneOf<R::Attention>(),
          "flash: attention in tiles, whose memory grows with the length of a row. math: as "
          "frameworks computed it before; the probabilities of all queries and keys, [heads, T, "
          "T], "
          "are made and kept for backward.")
          .Elsewhere({"attn_implementation"}),
      Key("batch_norm", &R::batch_norm, OneOf<R::BatchNorm>(),
          "Whose samples a batch norm's mean and variance are of, while training. local: of a "
          "rank's micro-batch, so results depend on the number of ranks. sync: of those of all "
          "ranks, which costs a sum over ranks for each norm in forward and one in backward.")
          .Elsewhere({"sync_bn", "sync_batchnorm"}),
      Key("activation_checkpointing", &R::activation_checkpointing, OneOf<Recompute>(),
          "What backward computes again instead of keeping it. selective: norms, activations and "
          "attention. full: all but the inputs of the blocks."),
      Key("activation_offload", &R::activation_offload, OneOf<ActivationOffload>(),
          "Where what forward keeps for backward is meanwhile: on the device, or, but for the last "
          "block's, in host memory or in the directory of fsdp.cpu_offload.spill. With "
          "activation_checkpointing full that is what blocks begin "
          "with."),
      Key("ema", &R::ema, Nullable(ema),
          "Keeps a moving average of the weights, sharded and saved as they are: a map with "
          "`decay`. null: none."),
      Key("max_skipped_steps", &R::max_skipped_steps, Integer(0),
          "Steps whose loss or gradient is not finite, and that change nothing, before the run "
          "ends with exit 7. Overflows of fp16 above min_scale do not count."),
  });
}

Type<EvalRecipe> EvalType() {
  using R = EvalRecipe;
  const auto sample = Map<SampleRecipe>({
      Key("prompt", &SampleRecipe::prompt, Text(), "What the sample continues.").Required(),
      Key("max_tokens", &SampleRecipe::max_tokens, Integer(1), "New tokens after the prompt."),
      Key("temperature", &SampleRecipe::temperature, Number({.at_least = 0}),
          "Divides the logits. 0: always the likeliest token."),
  });
  return Map<R>({
      Key("every", &R::every, Integer(0), "Steps between evaluations. 0: none."),
      Key("steps", &R::steps, Integer(1),
          "Batches of an evaluation, at most, each of train.global_batch_size sequences."),
      Key("sample", &R::sample, Nullable(sample),
          "A continuation to sample from the model, to look at. null: none."),
      Key("ema", &R::ema, Boolean(), "Of the averaged weights, train.ema, in place of the last."),
      Key("stop_after", &R::stop_after, Nullable(Integer(1)),
          "Evaluations in a row none of which has a lower loss, the mean of the sets, than the "
          "best before them: then the run is done. A resume counts on. null: it takes all its "
          "steps."),
  });
}

Type<OptimizerRecipe> OptimizerType() {
  using R = OptimizerRecipe;
  return Map<R>({
      Key("name", &R::name, OneOf<R::Kind>(), "The update rule.").Elsewhere({"type", "kind"}),
      Key("lr", &R::lr, Number({.at_least = 0, .fp32 = true}), "Learning rate at its highest.")
          .Elsewhere({"learning_rate", "max_lr"}),
      Key("betas", &R::betas, PairOf(Number({.at_least = 0, .below = 1, .fp32 = true})),
          "adamw: decay of the first and of the second moment. sgd does not read it."),
      Key("eps", &R::eps, Number({.at_least = 0, .fp32 = true}),
          "adamw: added to the root of the second moment; at least 1.2e-38, the smallest of fp32. "
          "sgd does not read it."),
      Key("momentum", &R::momentum, Number({.at_least = 0, .below = 1, .fp32 = true}),
          "sgd: decay of the momentum. 0: none, and the only value for adamw."),
      Key("weight_decay", &R::weight_decay, Number({.at_least = 0, .fp32 = true}),
          "Decay of matrices and embeddings, not of biases and norms."),
      Key("state_dtype", &R::state_dtype, OneOf<DType>({"fp32", "bf16"}, Later({"8bit"})),
          "Of moments and momentum, but of parameters in fsdp.mixed_precision.keep_fp32. bf16 is "
          "rounded stochastically."),
      Key("table_lr", &R::table_lr, Nullable(Number({.at_least = 0, .fp32 = true})),
          "Learning rate of embedding tables outside FSDP at its highest, which rises and falls as "
          "lr does. Their rows are updated by row-wise Adagrad, whatever the name. null: lr."),
      Key("groups", &R::groups, ListOf(GroupType()),
          "Parameters with settings of their own. The first group that matches a name counts."),
  });
}

Type<ScheduleRecipe> ScheduleType() {
  using R = ScheduleRecipe;
  return Map<R>({
      Key("name", &R::name, OneOf<R::Kind>(),
          "How the learning rate falls after the warm-up. cosine, linear: over all the steps left. "
          "wsd: it stays, and falls in the last decay_steps. constant: it does not fall."),
      Key("warmup_steps", &R::warmup_steps, Integer(0),
          "Steps of linear rise to optimizer.lr. Where train.steps is less, the rise takes all of "
          "the run."),
      Key("min_lr_ratio", &R::min_lr_ratio, Number({.at_least = 0, .at_most = 1}),
          "Last learning rate, as a share of optimizer.lr. constant does not read it."),
      Key("decay_steps", &R::decay_steps, Nullable(Integer(1)),
          "Steps of decay at the end, for wsd. null: a tenth of train.steps, or what the warm-up "
          "leaves."),
      Key("decay", &R::decay, OneOf<R::Decay>(),
          "How the rate falls in them, p being the share that is over. sqrt: 1 - sqrt(p). linear: "
          "1 - p. cosine: half a period."),
  });
}

Type<FsdpOptions> FsdpType() {
  using R = FsdpOptions;
  const auto auto_wrap = Map<WrapPolicy>({
      Key("policy", &WrapPolicy::policy, OneOf<AutoWrap>(),
          "transformer_block: a unit for each block. branch: a unit for each residual branch, of "
          "which a block has two, where the family splits its models so. size: sub-trees of "
          "min_num_params or more. none: the whole model is one unit."),
      Key("min_num_params", &WrapPolicy::min_num_params, Integer(1, kAnyInteger),
          "Parameters of a unit, at least; for policy size."),
      Key("outside", &WrapPolicy::outside, OneOf<WrapPolicy::Outside>(),
          "Where what is in no block is. units: an embedding and a head that share no weights are "
          "units of their own, and the rest is the root. root: all of it is the root, as in the "
          "paper; it is gathered before forward and stays whole until backward ends."),
  });
  using S = LossScalerOptions;
  const auto scaler = Map<S>({
      Key("init_scale", &S::init_scale, Number({.above = 0, .fp32 = true}),
          "Of the first step, times the largest power of two that is at most the number of ranks: "
          "so gradients are scaled as by PyTorch, whose ranks average. A resume goes on with its "
          "checkpoint's."),
      Key("growth_factor", &S::growth_factor, Number({.above = 1, .fp32 = true}),
          "Multiplies the scale after growth_interval steps without an overflow, where that is "
          "finite in fp32."),
      Key("backoff_factor", &S::backoff_factor, Number({.above = 0, .below = 1, .fp32 = true}),
          "Multiplies it after an overflow, whose step changes nothing."),
      Key("growth_interval", &S::growth_interval, Integer(1, 1 << 24), "Steps."),
      Key("min_scale", &S::min_scale, Number({.above = 0, .fp32 = true}),
          "It does not fall below this one."),
  });
  const auto mixed_precision = Map<R::MixedPrecision>({
      Key("param_dtype", &R::MixedPrecision::param_dtype, AnyFloat(),
          "Of gathered parameters and of compute: activations are of it, sums, statistics and the "
          "loss are fp32."),
      Key("grad_dtype", &R::MixedPrecision::grad_dtype, AnyFloat(),
          "Of unsharded gradients. Those of a shard are fp32."),
      Key("reduce_dtype", &R::MixedPrecision::reduce_dtype, AnyFloat(),
          "Of gradients on the wire. They are added in fp32, in the order of ranks."),
      Key("master_dtype", &R::MixedPrecision::master_dtype, OneOf<DType>({"fp32", "bf16"}, Later()),
          "Of the parameters that the optimizer updates. bf16 is rounded stochastically."),
      Key("buffer_dtype", &R::MixedPrecision::buffer_dtype, Only32Bit(),
          "Of buffers that are no parameters."),
      Key("keep_fp32", &R::MixedPrecision::keep_fp32, ListOf(Text()),
          "Parameters that stay fp32 throughout: globs over the names that parameters have in "
          "Hugging Face files. Left out with param_dtype fp16: those that the model's family keeps "
          "so."),
      Key("cast", &R::MixedPrecision::cast, OneOf<R::MixedPrecision::CastIn>(),
          "What makes parameters of param_dtype from the masters; the bits are the same. "
          "optimizer: the update, which keeps a copy. gather: what brings a unit into its slot; no "
          "copy."),
      Key("scaler", &R::MixedPrecision::scaler, scaler,
          "Of the loss, so that gradients in fp16 are no zeros. Read where param_dtype, grad_dtype "
          "or reduce_dtype is fp16."),
  });
  const auto cpu_offload = Map<R::CpuOffload>({
      Key("params", &R::CpuOffload::params, Boolean(),
          "Shards of what is computed with stay in host memory, too, from where each gather "
          "fetches "
          "them; on one rank, a unit at a time."),
      Key("optimizer", &R::CpuOffload::optimizer, Boolean(),
          "Masters, optimizer state and gradient shards are in host memory, and the host updates "
          "them there, with the same bits on the CPU."),
      Key("optimizer_share", &R::CpuOffload::optimizer_share, AutoOrShare(),
          "Of the units, spread evenly: so many stay on the device with all that is theirs, and "
          "are "
          "updated there while the host updates the others. auto: the share with which both take "
          "as long, measured before the run plans its memory, or less where that has no room for "
          "it; the run keeps the number, and so does a resume."),
      Key("threads", &R::CpuOffload::threads, Integer(0, 1024),
          "That update on the host. 0: run.threads."),
      Key("spill", &R::CpuOffload::spill, Nullable(Text()),
          "A directory on a disk of each host: what only the updates read of it, state and masters "
          "that are not computed with, lies there in files without names, read ahead of them and "
          "written behind them."),
      Key("spill_ahead", &R::CpuOffload::spill_ahead, Integer(0, 1024),
          "Units that are read ahead of the one that is updated."),
  });
  const auto quantize = Map<R::Quantize>({
      Key("gather", &R::Quantize::gather, OneOf<R::Quantize::Gather>(),
          "Of parameters: what gathers send in place of param_dtype. A byte an element and a scale "
          "a block; each rank computes with what arrives, masters and updates stay exact. What "
          "backward gathers of reshard_after_forward is in param_dtype."),
      Key("reduce", &R::Quantize::reduce, OneOf<R::Quantize::Reduce>(),
          "Of gradients: what reductions send in place of reduce_dtype, a byte or half a byte an "
          "element and a scale a block. The ranks of a host add up in fp32, then the hosts: two "
          "roundings, on one host one; and two more between the copies of hybrid strategies. int4 "
          "may cost some of what is learnt, the less the smaller the blocks."),
      Key("block", &R::Quantize::block, OneOfIntegers({64, 128, 256}),
          "Elements of a parameter that share a scale."),
      Key("min_size", &R::Quantize::min_size, Integer(1),
          "Parameters of fewer elements, of one dimension, or in keep_fp32 travel as they are."),
  });
  return Map<R>({
      Key("sharding_strategy", &R::sharding_strategy, OneOf<Strategy>(),
          "full_shard: parameters are gathered for forward and again for backward. shard_grad_op: "
          "kept from forward to backward. hybrid_shard, hybrid_shard_grad_op: likewise, but in "
          "groups of shard_size ranks that hold copies of each other's shards, whose gradients are "
          "summed over the groups once a step. no_shard: every rank keeps all of them."),
      Key("shard_size", &R::shard_size, Nullable(Integer(1)),
          "Ranks that share one copy. null: all of them; of one host, as the ranks find each "
          "other, for hybrid strategies; one for no_shard."),
      Key("reshard_after_forward", &R::reshard_after_forward, Nullable(Integer(2)),
          "full_shard and hybrid_shard: after forward each rank keeps one of so many parts of a "
          "unit, and backward gathers it from as many neighbours, on one host where that divides "
          "its ranks. null: from all that share a copy, and nothing is kept."),
      Key("auto_wrap", &R::auto_wrap, auto_wrap, "What is gathered and freed together."),
      Key("backward_prefetch", &R::backward_prefetch, OneOf<BackwardPrefetch>(),
          "When the next unit's gather may start in backward. pre: before this unit's gradients. "
          "post: after them. none: after their reduction."),
      Key("forward_prefetch", &R::forward_prefetch, Boolean(),
          "The next unit's gather is issued before this unit's forward."),
      Key("limit_all_gathers", &R::limit_all_gathers, Integer(0),
          "Units gathered at once, in slots that are used again; n slots prefetch n - 1 ahead. 1: "
          "no prefetch. 0: no limit."),
      Key("reduce_buffers", &R::reduce_buffers, Integer(1), "Units whose gradients wait at once."),
      Key("communicators", &R::communicators, Integer(1, 2),
          "2: gathers and reductions have a queue each. 1: they share one."),
      Key("limiter", &R::limiter, OneOf<R::Limiter>(),
          "What waits for a free slot. device: the stream that gathers. host: the program, before "
          "it "
          "enqueues the gather, as in the paper, and the default with buffers `caching`."),
      Key("buffers", &R::buffers, OneOf<R::Buffers>(),
          "Where memory comes from. slots: a plan made before the run, in which gathered units "
          "have "
          "slots. caching: a caching allocator, at the time of use, as in the paper."),
      Key("gradient_accumulation", &R::gradient_accumulation, OneOf<Accumulation>(),
          "sharded: gradients are reduced after every micro-batch. unsharded: after the last one, "
          "for memory of the whole gradient."),
      Key("mixed_precision", &R::mixed_precision, mixed_precision, "Number formats."),
      Key("cpu_offload", &R::cpu_offload, cpu_offload, "What leaves the device."),
      Key("quantize", &R::quantize, quantize, "What travels in fewer bits."),
      Key("fake_all_gather", &R::fake_all_gather, Boolean(),
          "To see what communication costs: a rank's own shard takes every place, and nothing is "
          "sent. The loss means nothing; no checkpoints."),
      Key("fake_reduce", &R::fake_reduce, Boolean(),
          "Likewise, of gradients: a rank's own slice, times the ranks of the group."),
  });
}

Type<CheckpointRecipe> CheckpointType() {
  using R = CheckpointRecipe;
  return Map<R>({
      Key("every", &R::every, Nullable(Integer(0)),
          "Steps between checkpoints, and one at the end. 0: one at the end alone. null: none but "
          "where a signal asks for one; so it is with fsdp.fake_* where it is not set."),
      Key("every_minutes", &R::every_minutes, Nullable(Number({.above = 0, .at_most = 1e9})),
          "Also one as often as so many minutes have passed since the last, or since the start. "
          "null: none."),
      Key("keep_last", &R::keep_last, Integer(0), "Newest checkpoints to keep. 0: all."),
      Key("keep_best", &R::keep_best, Integer(0),
          "And so many of the lowest evaluation loss, which is the mean of the sets. Only one that "
          "was evaluated after its own step has a loss: let checkpoint.every be a multiple of "
          "eval.every."),
      Key("async", &R::async, Boolean(),
          "Written from a copy while training goes on: more memory, less waiting."),
      Key("resume", &R::resume, Resume(),
          "auto: from the newest checkpoint, where there is one; exit 5 where that is damaged. "
          "none: from the start, in a run directory that holds no run. A step (or step_<n>): from "
          "that checkpoint; newer ones are set aside as step_<n>.aside, which count for nothing. "
          "A directory: from that checkpoint, or the newest of that run."),
      Key("allow_changed", &R::allow_changed, ListOf(OneOfTexts(AllowedChanges())),
          "What may be other than it was when the checkpoint was saved; how it differs is said and "
          "recorded. records: metrics.jsonl, of which a checkpoint knows all that it held. The "
          "others are keys, and schedule the whole section. What is not in the list is an error."),
  });
}

Type<LogRecipe> LogType() {
  using R = LogRecipe;
  return Map<R>({
      Key("every", &R::every, Integer(1), "Steps between lines and records."),
      Key("tensorboard", &R::tensorboard, Boolean(),
          "The records as event files for TensorBoard as well, with samples and recipe as text."),
      Key("trace_steps", &R::trace_steps, ListOf(Integer(1)),
          "Steps of which a Chrome trace is kept."),
      Key("spike_z", &R::spike_z, Number({.at_least = 0}),
          "A loss or gradient norm so many standard deviations above its last 128 steps, of which "
          "this start has made at least 32, is noted. 0: off."),
  });
}

}  // namespace fsdp::recipe
