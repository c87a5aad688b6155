#!/usr/bin/env python3
"""Writes precision.safetensors beside some of the models: what PyTorch's FSDP makes of them in bf16 and
fp16, as errors against float64, and float64 itself.

    python precision.py               writes the files (over 8 minutes)
    python precision.py --check       computes them again and compares with the committed ones
    python precision.py --model KEY   the file of one model alone, such as regnet/odd
    python precision.py --scaler   writes or, with --check, compares scaler.json alone (a minute)
    python precision.py --faults   what the rule sees: README.md's table

README.md beside this file says what every tensor means and which error the tests accept.
"""

import argparse
import dataclasses
import functools
import json
import math
import pathlib
import sys
import tempfile
import types
import warnings

import common  # Before transformers: it keeps it off the network.
import dhen
import gpt2
import llama
import moe
import numpy as np
import regnet
import safetensors.numpy
import torch
import torch.distributed as dist
import torch.distributed.nn.functional
import torch.nn.functional as F
import transformers
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

MODELS = {"gpt2/odd_heads": gpt2, "llama/llama_6_2": llama, "regnet/odd": regnet, "dhen/odd": dhen,
          "moe/mixtral_4_3": moe, "moe/qwen2_3_2": moe}
RUNS = ("sgd", "adamw")
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
# fp16's: far below an overflow, so that no step is skipped. Scripted skips are scaler.json's.
SCALE = 1024.0
# Where the scale of fp16 begins, how soon it grows, and the steps of the script that overflow.
SCALER = dict(init_scale=64.0, growth_factor=2.0, backoff_factor=0.5, growth_interval=3)
PLANTED = (3, 6, 7, 12, 13, 20)  # Also before the scale would have grown, and twice running.
OVERFLOW = 1e30  # The weight of the one target that makes a step's gradient overflow.
ORDERS = 4  # In which a step's sequences run: the error of one run can be small or large by luck.
# Tables of dhen/odd: rows, the most ids of a sample, the rate. Most updates of bf16 rows are below
# half a step of bf16, so that rows that were rounded to nearest would stay where they are.
TABLE_ROWS, TABLE_BAGS, TABLE_LR = (50, 7, 3, 20), (1, 3, 1, 2), 0.005
DRAWS = 32  # Runs with bf16 tables, of whose rows the mean is kept.


@dataclasses.dataclass(frozen=True)
class Way:
    """One way in which PyTorch trains."""
    frame: str  # fsdp1 or fsdp2.
    param: str  # Keys of DTYPES.
    reduce: str
    world: int

    @property
    def name(self) -> str:
        return f"{self.frame}/{self.param}/{self.reduce}/{self.world}"

    @property
    def has_bf16_tables(self) -> bool:
        return self.name == "fsdp2/bf16/fp32/1"


WAYS = [Way(frame, param, reduce, world) for world in (1, 2) for frame in ("fsdp2", "fsdp1")
        for param in ("bf16", "fp16") for reduce in ("fp32", param)]


class Model:
    """A model of tests/fixtures, its weights and the tokens of its 20 steps."""

    def __init__(self, key: str):
        self.key, self.family = key, MODELS[key]
        self.folder = common.FIXTURES / key
        name = key.split("/")[1]
        self.case = next(c for c in self.family.CASES if c.name == name)
        self.tokens = safetensors.numpy.load_file(self.folder / "reference.safetensors")["train/tokens"]

    @property
    def ways(self) -> list[Way]:
        return [w for w in WAYS if w.param == "bf16" or self.family not in (dhen, moe)]

    def build(self) -> torch.nn.Module:
        model = self.family.build_model(self.case)
        if self.family in (gpt2, llama):
            model.set_attn_implementation("sdpa")  # transformers' default.
        if self.family is moe:
            moe.record(model, self.case)
        return model

    @functools.cache
    def choices(self, param: str, run: str) -> list[np.ndarray]:
        """Those of each step of train_exactly(): [layers, sequences, T, k], in rising order."""
        choices: list = []
        train_exactly(self, param, run, choices)
        return choices

    def chosen(self, rows: int) -> np.ndarray:
        """The choices of the step that just ran."""
        each = [chosen.unflatten(0, (rows, -1)).sort(-1)[0].numpy() for _, _, chosen, _ in moe.ROUTED]
        return np.stack(each)

    def as_files(self, results: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """By the names of the tensors in files, which may be parts of parameters."""
        if self.family is not moe:
            return results
        files = {}
        for key, values in results.items():
            prefix, _, name = key.partition("/")
            parts = common.FEED.tensors(name, torch.from_numpy(values))
            files |= {f"{prefix}/{part}": np.ascontiguousarray(v) for part, v in parts}
        return files

    def tables(self, dtype=torch.float32, seed: int | None = None) -> "Tables | None":
        return Tables(self.case, dtype, seed) if self.family is dhen else None

    def exact(self) -> torch.nn.Module:
        return self.family.in_double(self.family.build_model(self.case), self.case)


def blocks_of(model) -> list[torch.nn.Module]:
    if hasattr(model, "regnet"):
        return [block for stage in model.regnet.encoder.stages for block in stage.layers]
    if isinstance(model, dhen.Dhen):
        return list(model.layers)
    return list(model.transformer.h if hasattr(model, "transformer") else model.model.layers)


def batch_norms_of(model) -> dict[str, torch.nn.Module]:
    return {n: m for n, m in model.named_modules() if isinstance(m, torch.nn.BatchNorm2d)}


def kept_in_fp32(model) -> set[str]:
    """Names of parameters. FSDP1 leaves batch norms out of mixed precision, and so we do routers."""
    routers = set(moe.routers(model))
    return ({f"{n}.{p}" for n in batch_norms_of(model) for p in ("weight", "bias")}
            | {f"{n}.weight" for n, m in model.named_modules() if m in routers})


def statistics_of(model) -> dict[str, np.ndarray]:
    return {clean(n): b.double().numpy().copy() for n, b in model.named_buffers()
            if n.endswith(("running_mean", "running_var"))}


def norm_over_ranks(self, x: torch.Tensor) -> torch.Tensor:
    """BatchNorm2d.forward over the samples of all ranks. SyncBatchNorm is for GPUs alone."""
    total = torch.distributed.nn.functional.all_reduce
    each = lambda v: v[:, None, None]
    n = dist.get_world_size() * x.numel() // x.shape[1]
    mean = total(x.sum((0, 2, 3))) / n
    var = total(((x - each(mean)) ** 2).sum((0, 2, 3))) / n
    with torch.no_grad():
        self.running_mean.lerp_(mean, self.momentum)
        self.running_var.lerp_(var * (n / (n - 1)), self.momentum)
    return (x - each(mean)) * each(torch.rsqrt(var + self.eps) * self.weight) + each(self.bias)


class Tables:
    """Embedding tables beside a model that FSDP has, with row-wise Adagrad as docs/fsdp.md has it. Their
    vectors are inputs, which FSDP casts to param_dtype."""

    def __init__(self, case: dhen.Case, dtype: torch.dtype, seed: int | None):
        """A seed: rows are bf16's, and rounded stochastically, as FBGEMM does."""
        rng = np.random.default_rng(1000 + case.seed)
        self.case, self.rows, self.sums = case, {}, {}
        self.draws = None if seed is None else torch.Generator().manual_seed(seed)
        for t, rows in enumerate(TABLE_ROWS):
            values = rng.standard_normal((rows, case.width)) / math.sqrt(case.width)
            name = f"tables.{t}.weight"
            self.rows[name] = torch.from_numpy(values).to(torch.bfloat16).to(dtype).requires_grad_()
            self.sums["rows/" + name] = torch.zeros(rows, dtype=dtype)

    def vectors(self, ids: torch.Tensor) -> torch.Tensor:
        """[samples, tables, width]. A table's ids are the first numbers of what a fixture without tables
        has for its vector. The multiples of 5 are absent."""
        c, vectors = self.case, []
        numbers = ids[:, c.columns:-1].unflatten(1, (c.tables, c.width))
        for t, rows in enumerate(self.rows.values()):
            these = numbers[:, t, : TABLE_BAGS[t]]
            vectors.append((rows[these % len(rows)] * (these % 5 != 0)[..., None]).sum(1))
        return torch.stack(vectors, dim=1)

    @torch.no_grad()
    def update(self, step: int, scale: float) -> None:
        """By the sum of all ranks' gradients, which is `scale` times too large."""
        lr = common.learning_rate(step, TABLE_LR)
        for rows, sums in zip(self.rows.values(), self.sums.values()):
            if dist.is_initialized():
                dist.all_reduce(rows.grad)
            g = rows.grad / scale
            sums += (g * g).mean(1)
            rows -= lr * g / (sums.sqrt() + 1e-8)[:, None]
            if self.draws is not None:
                bits = rows.view(torch.int32)
                bits += torch.randint(1 << 16, rows.shape, dtype=torch.int32, generator=self.draws)
                bits &= -0x10000
            rows.grad = None

    def state(self, prefix: str, tensors: dict[str, torch.Tensor]) -> dict[str, np.ndarray]:
        return {prefix + n: x.detach().double().numpy().copy() for n, x in tensors.items()}


def clean(name: str) -> str:
    """Without what FSDP1 puts into names."""
    return name.replace("_fsdp_wrapped_module.", "")


def make_optimizer(named, dims: dict[str, int], run: str):
    """As common.train() has it. `dims` are the parameters' own: FSDP1 shows flat ones."""
    recipe = common.RUNS[run]
    groups = [dict(params=[p for n, p in named if (dims[n] > 1) == matrices],
                   weight_decay=recipe["weight_decay"] if matrices else 0.0)
              for matrices in (True, False)]
    groups = [g for g in groups if g["params"]]
    if recipe["name"] == "adamw":
        return torch.optim.AdamW(groups, lr=1.0, betas=tuple(recipe["betas"]), eps=recipe["eps"],
                                 foreach=False)
    return torch.optim.SGD(groups, lr=1.0, momentum=recipe["momentum"], foreach=False)


def shard(net: torch.nn.Module, way: Way, mesh):
    """The model as FSDP has it, what clips its gradients, and fp16's scaler."""
    param, reduce = DTYPES[way.param], DTYPES[way.reduce]
    settings = dict(init_scale=SCALE, enabled=way.param == "fp16")
    for norm in batch_norms_of(net).values():
        if way.world > 1:
            norm.forward = types.MethodType(norm_over_ranks, norm)
        if way.frame == "fsdp2":
            fully_shard(norm, mesh=mesh, mp_policy=MixedPrecisionPolicy(
                param_dtype=torch.float32, reduce_dtype=torch.float32, output_dtype=param))
    routers = moe.routers(net)
    if way.frame == "fsdp2":
        for router in routers:
            fully_shard(router, mesh=mesh, mp_policy=MixedPrecisionPolicy(
                param_dtype=torch.float32, reduce_dtype=torch.float32))
        policy = MixedPrecisionPolicy(param_dtype=param, reduce_dtype=reduce)
        for block in blocks_of(net):
            fully_shard(block, mesh=mesh, mp_policy=policy)
        fully_shard(net, mesh=mesh, mp_policy=policy)
        clip = lambda: torch.nn.utils.clip_grad_norm_(net.parameters(), common.CLIP)
        return net, clip, torch.amp.GradScaler("cpu", **settings)
    net = FullyShardedDataParallel(
        net, device_id=torch.device("cpu"), use_orig_params=True,
        auto_wrap_policy=ModuleWrapPolicy({type(block) for block in blocks_of(net)}),
        mixed_precision=MixedPrecision(
            param_dtype=param, reduce_dtype=reduce,
            _module_classes_to_ignore=[torch.nn.modules.batchnorm._BatchNorm, *map(type, routers)]))
    return net, lambda: net.clip_grad_norm_(common.CLIP), ShardedGradScaler("cpu", **settings)


def set_rate(optimizer, step: int, run: str) -> None:
    for group in optimizer.param_groups:
        group["lr"] = common.learning_rate(step, common.RUNS[run]["lr"])


def loss_of(model, tokens: np.ndarray, tables: Tables | None, upcast: bool = True) -> torch.Tensor:
    """The mean over all targets. Logits are converted to fp32 first, as transformers' own loss does."""
    ids = torch.from_numpy(tokens.astype(np.int64))
    if tables:
        numbers = (ids[:, : tables.case.columns] - 128).to(model.dtype) / 64
        logits = model(numbers, tables.vectors(ids))
        logits = logits if logits.dtype == torch.float64 else logits.float()
        return F.binary_cross_entropy_with_logits(logits, ids[:, -1:].to(logits.dtype))
    if hasattr(model, "regnet"):
        logits, targets = model.train()(pixels_of(model, ids)).logits, ids[:, -1]
    else:
        logits, targets = model(ids[:, :-1], use_cache=False).logits.flatten(0, 1), ids[:, 1:].flatten()
    if upcast and logits.dtype != torch.float64:
        logits = logits.float()
    return F.cross_entropy(logits, targets)


def pixels_of(model, ids: torch.Tensor) -> torch.Tensor:
    """As regnet.Images.pixels(), by the model's own sizes."""
    c = model.config
    pixels = ids[:, :-1].reshape(-1, c.image_size, c.image_size, c.num_channels).permute(0, 3, 1, 2)
    return (pixels - 128).to(model.dtype) / 64


def train_exactly(model: Model, param: str, run: str,
                  choices: list | None = None) -> dict[str, np.ndarray]:
    """float64 on float64 masters; each step reads them rounded to `param`, those that stay fp32 as they
    are. `grad/` and `step1/` are step 1's. Adds each step's to `choices`."""
    exact = model.exact()
    named = list(exact.named_parameters())
    kept = kept_in_fp32(exact)
    masters = {n: p.detach().clone().requires_grad_() for n, p in named}
    optimizer = make_optimizer(list(masters.items()), {n: p.dim() for n, p in named}, run)
    tables = model.tables(torch.float64)
    results, losses = {}, []
    for step in range(1, common.STEPS + 1):
        set_rate(optimizer, step, run)
        with torch.no_grad():
            for n, p in named:
                p.copy_(masters[n] if n in kept else masters[n].to(DTYPES[param]))
        exact.zero_grad()
        moe.ROUTED.clear()
        loss = loss_of(exact, model.tokens[step - 1], tables)
        if choices is not None:
            choices.append(model.chosen(common.GLOBAL_BATCH))
        loss.backward()
        losses.append(loss.item())
        if tables:
            tables.update(step, 1.0)
        for n, p in named:
            masters[n].grad = p.grad.clone()
            if step == 1:
                results["grad/" + n] = p.grad.numpy().copy()
        if step == 1:
            results |= {"step1/" + n: b for n, b in statistics_of(exact).items()}
            results |= tables.state("step1/", tables.sums) if tables else {}
        torch.nn.utils.clip_grad_norm_(masters.values(), common.CLIP)
        optimizer.step()
    results |= {f"{run}/{n}": m.detach().numpy().copy() for n, m in masters.items()}
    results |= {f"{run}/{n}": b for n, b in statistics_of(exact).items()}
    results |= tables.state(f"{run}/", tables.rows) if tables else {}
    return model.as_files(results) | {f"{run}/loss": np.array(losses)}


def order_of_sequences(order: int) -> np.ndarray:
    return np.random.default_rng(order).permutation(common.GLOBAL_BATCH).astype(np.int32)


def train_sharded(model: Model, way: Way, run: str, order: int, mesh,
                  seed: int | None = None) -> dict[str, np.ndarray]:
    """The same by FSDP: rank r has the r-th part of each step's sequences, in one micro-batch. A seed:
    with bf16 tables."""
    rank = dist.get_rank()
    mine = np.split(order_of_sequences(order), way.world)[rank]
    net = model.build()
    dims = {n: p.dim() for n, p in net.named_parameters()}
    net, clip, scaler = shard(net, way, mesh)
    named = [(clean(n), p) for n, p in net.named_parameters()]
    optimizer = make_optimizer(named, dims, run)
    tables = model.tables(seed=seed)

    def whole(prefix: str, grads: bool) -> dict[str, np.ndarray]:
        if way.frame == "fsdp2":
            return {prefix + n: (p.grad if grads else p).detach().full_tensor().double().numpy()
                    for n, p in named}
        with FullyShardedDataParallel.summon_full_params(net, with_grads=grads):
            return {prefix + clean(n): (p.grad if grads else p).detach().double().numpy().copy()
                    for n, p in net.named_parameters()}

    results, losses = {}, []
    for step in range(1, common.STEPS + 1):
        set_rate(optimizer, step, run)
        optimizer.zero_grad()
        moe.ROUTED.clear()
        loss = loss_of(net, model.tokens[step - 1, mine], tables)
        if model.family is moe:
            other = model.chosen(len(mine)) != model.choices(way.param, run)[step - 1][:, mine]
            if other.any():
                raise SystemExit(f"{model.key}, {way.name}: {run} chooses {other.sum()} other experts "
                                 f"than float64 in step {step}")
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        if tables:
            tables.update(step, scaler.get_scale() * way.world)
        mean = loss.detach().double()
        dist.all_reduce(mean)
        losses.append(mean.item() / way.world)
        if step == 1:
            results |= whole("grad/", grads=True)
            results |= {"step1/" + n: b for n, b in statistics_of(net).items()}
            results |= tables.state("step1/", tables.sums) if tables else {}
        clip()
        scaler.step(optimizer)
        scaler.update()
    if scaler.is_enabled() and scaler.get_scale() != SCALE:
        raise SystemExit(f"{model.key}, {way.name}: a step overflowed")
    results |= {f"{run}/{n}": b for n, b in statistics_of(net).items()}
    results |= tables.state(f"{run}/", tables.rows) if tables else {}
    return model.as_files(results | whole(f"{run}/", grads=False)) | {f"{run}/loss": np.array(losses)}


def run_script(model: Model, way: Way, mesh) -> dict[str, list]:
    """AdamW in fp16; one target of the first rank overflows in the steps of PLANTED."""
    net = model.build()
    dims = {n: p.dim() for n, p in net.named_parameters()}
    net, clip, scaler = shard(net, way, mesh)
    scaler = type(scaler)("cpu", **SCALER)
    optimizer = make_optimizer([(clean(n), p) for n, p in net.named_parameters()], dims, "adamw")
    mine = np.split(np.arange(common.GLOBAL_BATCH), way.world)[dist.get_rank()]
    scales, skipped = [], []
    for step in range(1, common.STEPS + 1):
        set_rate(optimizer, step, "adamw")
        optimizer.zero_grad()
        ids = torch.from_numpy(model.tokens[step - 1, mine].astype(np.int64))
        logits = net(ids[:, :-1], use_cache=False).logits.float()
        losses = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
        weights = torch.ones_like(losses)
        if step in PLANTED and mine[0] == 0:
            weights[0] = OVERFLOW
        scales.append(scaler.get_scale())
        scaler.scale((losses * weights).mean()).backward()
        scaler.unscale_(optimizer)
        clip()
        before = [p.detach().clone() for p in net.parameters()]
        scaler.step(optimizer)
        scaler.update()
        same = all(torch.equal(getattr(b, "_local_tensor", b), getattr(p, "_local_tensor", p))
                   for b, p in zip(before, net.parameters()))
        skipped.append(same)
    return dict(scales=scales, skipped=skipped)


def rank_of_scripts(rank: int, world: int, store: str, out: str) -> None:
    quiet()
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    mesh = init_device_mesh("cpu", (world,))
    for way in (w for w in WAYS if w.world == world and w.param == "fp16"):
        result = run_script(Model("gpt2/odd_heads"), way, mesh)
        results = [None] * world
        dist.all_gather_object(results, result)
        if any(r != result for r in results):
            raise SystemExit(f"{way.name}: ranks disagree")
        if rank == 0:
            path = pathlib.Path(out) / way.name.replace("/", "-")
            path.write_text(json.dumps(result))
    dist.barrier()
    dist.destroy_process_group()


def scaler_script() -> dict:
    """The script that every way of PyTorch follows alike: the scale of each step, and which steps are
    skipped."""
    with tempfile.TemporaryDirectory() as folder:
        for world in (1, 2):
            torch.multiprocessing.spawn(rank_of_scripts, (world, f"{folder}/store{world}", folder), world)
        ways = [json.loads((pathlib.Path(folder) / w.name.replace("/", "-")).read_text())
                for w in WAYS if w.param == "fp16"]
    if any(w != ways[0] for w in ways):
        raise SystemExit("not all ways have these scales and skips")
    return dict(scaler=SCALER, planted=PLANTED, overflow=OVERFLOW, **ways[0])


def errors_of(got: dict[str, np.ndarray], exact: dict[str, np.ndarray]) -> np.ndarray:
    """By name, the 2-norm of each tensor's difference; of losses the root of their mean square."""
    return np.array([np.linalg.norm(got[k] - exact[k]) /
                     (math.sqrt(len(exact[k])) if k.endswith("/loss") else 1)
                     for k in sorted(exact)])


def file_of(folder, key: str, way: Way, order: int) -> pathlib.Path:
    return pathlib.Path(folder) / f"{key}/{way.name}/{order}".replace("/", "-")


def rank_of_a_job(rank: int, world: int, store: str, out: str, keys: list[str]) -> None:
    quiet()
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    mesh = init_device_mesh("cpu", (world,))
    for key in keys:
        model = Model(key)
        for way in (w for w in model.ways if w.world == world):
            for order in range(ORDERS):
                results = {}
                for run in RUNS:
                    results |= train_sharded(model, way, run, order, mesh)
                if order == 0 and model.tables() and way.has_bf16_tables:
                    results |= mean_rows(model, way, mesh)
                if rank == 0:
                    safetensors.numpy.save_file(
                        {k: np.ascontiguousarray(v) for k, v in results.items()},
                        file_of(out, key, way, order))
    dist.barrier()
    dist.destroy_process_group()


def mean_rows(model: Model, way: Way, mesh) -> dict[str, np.ndarray]:
    """The mean over DRAWS runs of the rows of bf16 tables after 20 steps of AdamW."""
    runs = [train_sharded(model, way, "adamw", seed % ORDERS, mesh, seed) for seed in range(DRAWS)]
    return {f"mean/{n}": np.mean([run[f"adamw/{n}"] for run in runs], axis=0)
            for n in model.tables().rows}


def quiet() -> None:
    warnings.simplefilter("ignore")  # FSDP1 is deprecated, and a shard is no leaf's slice.
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()


def exact_results(model: Model, param: str) -> dict[str, np.ndarray]:
    exact = {}
    for run in RUNS:
        exact |= train_exactly(model, param, run)
    return exact


def means_of(exact: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The rows whose mean over draws is kept."""
    return {k.replace("adamw/", "mean/"): v for k, v in exact.items() if k.startswith("adamw/tables.")}


def compute(keys: list[str]) -> dict[str, dict[str, np.ndarray]]:
    """The tensors of each model's file."""
    files = {}
    with tempfile.TemporaryDirectory() as folder:
        for world in sorted({w.world for w in WAYS}):
            torch.multiprocessing.spawn(rank_of_a_job, (world, f"{folder}/store{world}", folder, keys),
                                        world)
        for key in keys:
            model, tensors = Model(key), {}
            for param in sorted({w.param for w in model.ways}):
                exact = exact_results(model, param)
                # float32 holds them 2^-16 times as exactly as what is compared with them.
                tensors |= {f"{param}/{k}": v if k.endswith("/loss") else v.astype(np.float32)
                            for k, v in exact.items()}
                for way in (w for w in model.ways if w.param == param):
                    runs = [safetensors.numpy.load_file(file_of(folder, key, way, o))
                            for o in range(ORDERS)]
                    errors = [errors_of(run, exact) for run in runs]
                    tensors[f"error/{way.name}"] = np.sqrt(np.mean(np.square(errors), axis=0))
                    if model.tables() and way.has_bf16_tables:
                        tensors[f"mean/{way.name}"] = errors_of(runs[0], means_of(exact))
            if tables := model.tables():
                tensors |= {f"initial/{n}": r.detach().numpy() for n, r in tables.rows.items()}
            tensors["names"] = sorted(exact)
            files[key] = tensors
    return files


def save(tensors: dict, path: pathlib.Path) -> None:
    tensors = dict(tensors)
    ways = [w.name for w in WAYS if f"error/{w.name}" in tensors]
    settings = dict(names=tensors.pop("names"), scale=SCALE, ways=ways, table_lr=TABLE_LR,
                    table_rows=TABLE_ROWS, table_bags=TABLE_BAGS, draws=DRAWS,
                    torch=torch.__version__, transformers=transformers.__version__)
    safetensors.numpy.save_file(tensors, path, metadata={"settings": json.dumps(settings)})


def compare(key: str, got: dict, path: pathlib.Path) -> list[str]:
    problems = []
    want = safetensors.numpy.load_file(path)
    if want.keys() != got.keys() - {"names"}:
        return [f"{key}: other tensors"]
    for name, w in want.items():
        g = got[name]
        if name.startswith(("error/", "mean/")):
            # A matter of the processor, as in common.py.
            if not ((w <= 2 * g + 1e-9) & (g <= 2 * w + 1e-9)).all():
                problems.append(f"{key}: {name} differs by up to {(g / w).max():.2f}, {(w / g).max():.2f}")
        elif abs(w - g).max() > 1e-6 * max(1.0, abs(w).max()):
            problems.append(f"{key}: {name} differs by {abs(w - g).max():.2e}")
    return problems


def train_plainly(model: Model, run: str, fault: str) -> dict[str, np.ndarray]:
    """FSDP2 at one rank with bf16 parameters, in plain PyTorch: the same bits without a fault."""
    bf16 = torch.bfloat16
    net = model.build()
    masters = {n: p.detach().clone() for n, p in net.named_parameters()}
    optimizer = make_optimizer(list(masters.items()), {n: p.dim() for n, p in masters.items()}, run)
    plant(net, fault)
    micro_batches = 6 if fault in ("micro-batches", "bf16 sums of micro-batches") else 1
    results, losses = {}, []
    for step in range(1, common.STEPS + 1):
        set_rate(optimizer, step, run)
        for n, p in net.named_parameters():
            p.data = {"weights cut off": cut_off, "weights by way of fp16": lambda x: x.half().to(bf16)
                      }.get(fault, lambda x: x.to(bf16))(masters[n])
            p.grad = masters[n].grad = None
        total = 0.0
        for part in np.split(order_of_sequences(0), micro_batches):
            loss = loss_of(net, model.tokens[step - 1, part], None, upcast=fault != "bf16 loss")
            total += loss.item() / micro_batches
            (loss / micro_batches).backward()
            for n, p in net.named_parameters():
                if fault == "bf16 sums of micro-batches":
                    masters[n].grad = p.grad.float()
                else:
                    masters[n].grad = p.grad.float() + (0 if masters[n].grad is None else masters[n].grad)
                    p.grad = None
        losses.append(total)
        for m in masters.values():
            m.grad *= 1.01 if fault == "gradients times 1.01" else 1.0
        if step == 1:
            results |= {"grad/" + n: m.grad.double().numpy().copy() for n, m in masters.items()}
        torch.nn.utils.clip_grad_norm_(masters.values(), common.CLIP)
        optimizer.step()
        if fault == "a lost master":
            for m in masters.values():
                m.copy_(m.to(bf16))
    return (results | {f"{run}/{n}": m.double().numpy() for n, m in masters.items()}
            | {f"{run}/loss": np.array(losses)})


def cut_off(x: torch.Tensor) -> torch.Tensor:
    return (x.view(torch.int32) & -0x10000).view(torch.float32).to(torch.bfloat16)


def one_by_one(x: torch.Tensor, y: torch.Tensor | None = None) -> torch.Tensor:
    """The sum of x over its last dimension, or x y, rounded behind every term."""
    total = torch.zeros((), dtype=x.dtype)
    for k in range(x.shape[-1]):
        total = total + (x[..., k] if y is None else x[..., k, None] * y[k])
    return total


def plant(net: torch.nn.Module, fault: str) -> None:
    def norm(self, x):
        n = x.shape[-1]
        if hasattr(self, "eps"):  # A LayerNorm.
            x = x - (one_by_one(x) / n)[..., None]
        epsilon = self.eps if hasattr(self, "eps") else self.variance_epsilon
        r = torch.rsqrt(one_by_one(x * x) / n + epsilon)
        y = x * r[..., None] * self.weight
        return y + self.bias if hasattr(self, "bias") else y

    def linear(self, x):
        weight = self.weight if type(self).__name__ == "Conv1D" else self.weight.t()
        y = one_by_one(x, weight) if fault == "bf16 sums of products" else x @ weight
        return y if self.bias is None else y + self.bias

    for name, module in net.named_modules():
        head, kind = name == "lm_head", type(module).__name__
        if fault == "fp32 logits" and head:
            module.forward = lambda x, m=module: F.linear(x.float(), m.weight.float())
        elif fault == "bf16 sums of norms" and kind.endswith("Norm"):
            module.forward = types.MethodType(norm, module)
        elif fault in ("bf16 sums of products", "products rounded before their bias") and (
                kind in ("Conv1D", "Linear")):
            module.forward = types.MethodType(linear, module)


FAULTS = ("none", "fp32 logits", "micro-batches", "bf16 sums of micro-batches", "bf16 sums of norms",
          "bf16 sums of products", "products rounded before their bias", "bf16 loss", "a lost master",
          "weights by way of fp16", "weights cut off", "gradients times 1.01")


def show_faults() -> None:
    """For each fault, the worst ratio of a tensor's error to PyTorch's, and the geometric mean."""
    models = [Model(key) for key in MODELS if MODELS[key] in (gpt2, llama)]
    exact = {model.key: exact_results(model, "bf16") for model in models}
    for fault in FAULTS:
        for model in models:
            file = safetensors.numpy.load_file(model.folder / "precision.safetensors")
            got = {}
            for run in RUNS:
                got |= train_plainly(model, run, fault)
            ratios = errors_of(got, exact[model.key]) / file["error/fsdp2/bf16/fp32/1"]
            names = sorted(exact[model.key])
            seen = sum(ratios > 2)
            print(f"{fault:34} {model.key:16} worst {ratios.max():7.2f} in {names[ratios.argmax()]:52} "
                  f"above 2: {seen:3} of {len(ratios)}, mean {np.exp(np.log(ratios).mean()):.2f}",
                  flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare with the committed files")
    parser.add_argument("--model", choices=MODELS, help="the file of one model alone")
    parser.add_argument("--scaler", action="store_true", help="scaler.json alone")
    parser.add_argument("--faults", action="store_true", help="plant faults; the ratios of errors")
    arguments = parser.parse_args()
    quiet()
    if arguments.faults:
        show_faults()
        return 0
    problems = []
    if not arguments.model:
        path = common.FIXTURES / "gpt2/odd_heads/scaler.json"
        script = json.dumps(scaler_script()) + "\n"
        if not arguments.check:
            path.write_text(script)
        elif path.read_text() != script:
            problems.append("scaler.json differs")
    keys = [arguments.model] if arguments.model else list(MODELS)
    for key, tensors in ({} if arguments.scaler else compute(keys)).items():
        path = common.FIXTURES / key / "precision.safetensors"
        if arguments.check:
            problems += compare(key, tensors, path)
        else:
            save(tensors, path)
        print(f"{key}: {'checked' if arguments.check else 'written'}")
    print("\n".join(problems), end="\n" if problems else "")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
