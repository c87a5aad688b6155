#!/usr/bin/env python3
"""Writes first_scales.json beside gpt2/odd_heads: which of 20 steps PyTorch's FSDP2 skips in fp16 until
its loss scale, which begins far too high, has come down.

    python first_scales.py            writes the file (3 minutes)
    python first_scales.py --check    computes it again and compares with the committed one

README.md beside this file says what it holds.
"""

import argparse
import json
import pathlib
import sys
import tempfile

import precision  # Before torch: it keeps transformers off the network.
import common
import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

INIT_SCALE = 2.0**24
SEQUENCES = 4  # In a step, one or more to a rank; with data `same`, all ranks have the first alone.
STRATEGIES = {1: ("full_shard",), 2: ("full_shard", "no_shard"),
              4: ("full_shard", "no_shard", "hybrid_shard")}


def ways(world: int) -> list[dict]:
    return [dict(ranks=world, strategy=strategy, reduce=reduce, data=data)
            for strategy in STRATEGIES[world] for reduce in ("fp32", "fp16")
            for data in ("own", "same")]


def mesh_of(strategy: str, world: int):
    """no_shard is FSDP2's own: replicas of one shard each."""
    if strategy == "full_shard":
        return init_device_mesh("cpu", (world,))
    shards = 1 if strategy == "no_shard" else 2
    return init_device_mesh("cpu", (world // shards, shards), mesh_dim_names=("replicate", "shard"))


def train(model: precision.Model, way: dict) -> dict[str, list]:
    """SGD in fp16: the scale of each step, and whether it was skipped."""
    net = model.build()
    dims = {n: p.dim() for n, p in net.named_parameters()}
    policy = MixedPrecisionPolicy(param_dtype=torch.float16,
                                  reduce_dtype=precision.DTYPES[way["reduce"]])
    mesh = mesh_of(way["strategy"], way["ranks"])
    for block in precision.blocks_of(net):
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(net, mesh=mesh, mp_policy=policy)
    scaler = torch.amp.GradScaler("cpu", init_scale=INIT_SCALE)
    optimizer = precision.make_optimizer(list(net.named_parameters()), dims, "sgd")
    mine = np.split(np.arange(SEQUENCES), way["ranks"])[dist.get_rank()]
    if way["data"] == "same":
        mine = np.zeros(1, int)
    scales, skipped = [], []
    for step in range(1, common.STEPS + 1):
        precision.set_rate(optimizer, step, "sgd")
        optimizer.zero_grad()
        scales.append(scaler.get_scale())
        scaler.scale(precision.loss_of(net, model.tokens[step - 1, mine])).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(net.parameters(), common.CLIP)
        scaler.step(optimizer)
        scaler.update()
        skipped.append(scaler.get_scale() < scales[-1])
    return dict(scales=scales, skipped=skipped)


def rank_of(rank: int, world: int, store: str, out: str) -> None:
    precision.quiet()
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    results = []
    for way in ways(world):
        result = train(precision.Model("gpt2/odd_heads"), way)
        all_results = [None] * world
        dist.all_gather_object(all_results, result)
        if any(r != result for r in all_results):
            raise SystemExit(f"{way}: ranks disagree")
        results.append(way | result)
    if rank == 0:
        pathlib.Path(out).write_text(json.dumps(results))
    dist.barrier()
    dist.destroy_process_group()


def compute() -> str:
    runs = []
    with tempfile.TemporaryDirectory() as folder:
        for world in STRATEGIES:
            out = f"{folder}/{world}.json"
            torch.multiprocessing.spawn(rank_of, (world, f"{folder}/store{world}", out), world)
            runs += json.loads(pathlib.Path(out).read_text())
    lines = ",\n".join(json.dumps(run) for run in runs)
    head = json.dumps(dict(init_scale=INIT_SCALE, sequences=SEQUENCES, torch=torch.__version__))
    return head[:-1] + f', "runs": [\n{lines}\n]}}\n'


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare with the committed file")
    arguments = parser.parse_args()
    path = common.FIXTURES / "gpt2/odd_heads/first_scales.json"
    text = compute()
    if not arguments.check:
        path.write_text(text)
    elif json.loads(path.read_text())["runs"] != json.loads(text)["runs"]:
        print("first_scales.json differs")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
