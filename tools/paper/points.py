"""The runs behind the curves of the FSDP paper (arXiv 2304.11277): docs/paper.md as a list.

No number that the paper measured is here: those are in paper_results.json, which a Value names the
place of. So none can change what is predicted.
"""

import dataclasses
import typing


@dataclasses.dataclass(frozen=True)
class Run:
    """One simulated job: a recipe of configs/paper on so many GPUs, so many samples each."""
    recipe: str
    world: int
    batch: int
    settings: tuple = ()


@dataclasses.dataclass(frozen=True)
class Value:
    """One number of a figure, what of a run it is, and where paper_results.json has it."""
    figure: str
    curve: str
    x: typing.Any  # GPUs; for bars their name.
    run: Run
    what: str      # tflops, qps, seconds; allocated, active or reserved.
    where: tuple
    name: str = ""  # As a hardware file's source names it: "7b batch_2 256".


@dataclasses.dataclass(frozen=True)
class Figure:
    key: str
    title: str
    unit: str
    note: str


NO_LIMIT = ("fsdp.limit_all_gathers=0", "run.memory_limit=78GiB")
GPT_WORLDS, T5_WORLDS = (128, 192, 256, 384, 512), (8, 16, 32, 64, 128, 256, 512)
DHEN_WORLDS, PREFETCH_WORLDS = (32, 64, 128, 256, 512), (128, 256, 512)
KINDS = ("allocated", "active", "reserved")
# Elements of one all-gather of Figure 2b, fp32; 2^30 in all.
ELEMENTS = tuple(2 ** 30 >> n for n in range(9))
FIG2_WORLD = 16  # Assumed: the paper does not say.
# Bytes on each GPU that the paper's program keeps and ours has no use for. minGPT has a causal mask in
# each layer, a buffer of fp32 [positions, positions] (karpathy/minGPT, mingpt/model.py).
KEPT_BESIDE = {"mingpt-175b": 96 * 2048 * 2048 * 4}

FIGURES = (
    Figure("2a", "2a: one all-gather of even and uneven shards", "ms",
           "The paper does not give the size: the first bar sets it. The others are PyTorch's other call, which ours "
           "has no counterpart of: with even shards the same all-gather and a copy into a list, with uneven ones a "
           "broadcast by each rank (ProcessGroupNCCL.cpp), one behind another."),
    Figure("2b", "2b: 2^30 fp32 elements in all-gathers of ever fewer", "ms",
           "The rate is set by the first point. The knee does not come out: below 33 million elements the "
           "paper's calls take some 0.8 ms longer each, whatever their size, a hundred times NCCL's own "
           "latency; that is what a program takes which waits for each call."),
    Figure("6a", "6a: T5 by sizes and strategies", "TFLOPS per GPU",
           "The paper says neither how many GPUs nor which batch: 16 and 8 samples are assumed. A small "
           "T5 in fp32 reaches less than half of what our kernels would: eager PyTorch launches one "
           "kernel after another, and has several passes over memory where ours have one."),
    Figure("6b", "6b: GPT-175B with and without backward prefetch", "TFLOPS per GPU", ""),
    Figure("6c", "6c: the rate limiter", "seconds per batch",
           "6c's T5-11B cannot be 7c's: two samples a GPU take it longer than 7c's eight. The limiter's "
           "gain depends on how far the host runs ahead and what a retry costs."),
    Figure("7a", "7a: DHEN", "samples per second and GPU",
           "The paper gives 550 million dense parameters and no shape: configs/paper/dhen-550m.yaml assumes "
           "one. Its curve dips at 128 GPUs and rises again, which no model of a uniform network does."),
    Figure("7b", "7b: GPT-175B", "TFLOPS per GPU",
           "Batch 2 on 128 GPUs is a retry in every layer: below, under the memory limit."),
    Figure("7c", "7c: T5-11B", "TFLOPS per GPU", ""),
    Figure("8a", "8a: DHEN, peak memory", "GB",
           "The paper's tables lie outside FSDP, so many that each of 32 GPUs has 48 GB of them."),
    Figure("8b", "8b: GPT-175B, peak memory", "GB",
           "GB are 1e9 bytes. No number of it was seen. Ours has 1.61 GB added: minGPT keeps a mask of "
           "2048 x 2048 fp32 numbers in each of 96 layers, and our kernels compare positions."),
    Figure("8c", "8c: T5-11B, peak memory", "GB",
           "The paper's curve rises by 2.4 to 2.5 GB for a further sequence, more than a layer holds that "
           "is computed again: its program kept more than its own text says."),
)


def _gpt():
    for x, world in enumerate(PREFETCH_WORLDS):
        for curve, settings in (("backward_prefetch", ()),
                                ("no_prefetch", ("fsdp.backward_prefetch=none",))):
            yield Value("6b", curve, world, Run("mingpt-175b", world, 1, settings), "tflops",
                        ("fig6b_gpt175b_tflops_per_gpu", curve, x), f"6b {curve} {world}")
    yield from _scaled("7b", "8b", "mingpt-175b", GPT_WORLDS, (1, 2), "gpt175b")


def _scaled(speed, memory, recipe, worlds, batches, name):
    for batch in batches:
        for x, world in enumerate(worlds):
            run = Run(recipe, world, batch)
            yield Value(speed, f"batch_{batch}", world, run, "tflops",
                        (f"fig{speed}_{name}_tflops_per_gpu", f"batch_{batch}", x),
                        f"{speed} batch_{batch} {world}")
            for kind in KINDS:
                yield Value(memory, f"batch_{batch} {kind}", world, run, kind,
                            (f"fig{memory}_{name}_peak_gb", f"batch_{batch}", kind, x))


def _sizes():
    strategies = (("full_shard", ()), ("hybrid", ("fsdp.sharding_strategy=hybrid_shard",)),
                  ("no_shard", ("fsdp.sharding_strategy=no_shard",)))
    for recipe, key in (("t5-611m", "t5_611m"), ("t5-2.28b", "t5_2.28b"), ("t5-11b", "t5_11.3b_bf16")):
        for curve, settings in strategies:
            if recipe == "t5-11b" and curve == "no_shard":
                curve = "ddp"  # The paper has that bar alone: out of memory.
            yield Value("6a", "ours", f"{recipe} {curve}", Run(recipe, 16, 8, settings), "tflops",
                        ("fig6a_tflops_per_gpu", key, curve))


def _limiter():
    for recipe, key, rows in (("regnet-9b", "regnet_9b", ((2, 48), (4, 72))),
                              ("t5-11b", "t5_11b", ((2, 2), (4, 2))),
                              ("deepvit-8b", "deepvit_8b", ((2, 105), (4, 120)))):
        for hosts, batch in rows:
            for curve, settings in (("limit", ()), ("no_limit", NO_LIMIT)):
                yield Value("6c", "ours", f"{recipe}, {hosts} hosts, {curve}",
                            Run(recipe, 8 * hosts, batch, settings), "seconds",
                            ("fig6c_seconds_per_batch", key, f"{hosts}_hosts_batch_{batch}", curve))


def _dhen():
    for curve, strategy in (("full_raf", "full_shard"), ("full_nraf", "shard_grad_op"),
                            ("hybrid_raf", "hybrid_shard"), ("hybrid_nraf", "hybrid_shard_grad_op")):
        for x, world in enumerate(DHEN_WORLDS):
            run = Run("dhen-550m", world, 1024, (f"fsdp.sharding_strategy={strategy}",))
            yield Value("7a", curve, world, run, "qps", ("fig7a_dhen_qps_per_gpu", curve, x))
            yield Value("8a", curve, world, run, "reserved", ("fig8a_dhen_peak_gb", curve, x))


VALUES = (*_sizes(), *_gpt(), *_limiter(), *_dhen(),
          *_scaled("7c", "8c", "t5-11b", T5_WORLDS, (8, 16), "t5_11b"))

SEEN = "7b batch_2 256"
SEEN_MORE = (SEEN, "6b no_prefetch 256", "7c batch_16 64")
# The paper's GPUs were out of memory there, and asked for it again and again.
RETRIES = "7b batch_2 128"


def judged(seen):
    """The values that the goals are about: 6b without prefetch, 7b and 7c, but not the seen ones nor the
    retries."""
    return [v for v in VALUES if v.name and v.figure in ("6b", "7b", "7c") and
            v.curve != "backward_prefetch" and v.name != RETRIES and v.name not in seen]


def named(name):
    return next(v for v in VALUES if v.name == name)
