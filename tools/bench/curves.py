#!/usr/bin/env python3
"""The quick start's text learnt in each precision, beside PyTorch in bf16: losses, and a plot.

    bazel build -c opt //cmd:fsdp-train
    $(tools/bench/setup) tools/bench/curves.py --plot docs/benchmarks/precision.png

All begin with the same weights and read the same tokens in the same order, so curves differ by rounding
alone. PyTorch is FSDP2 with bf16 parameters, reduced in fp32. The run fails if bf16 ends more than 0.01
nats from fp32 on the held-out text.
"""

import argparse
import json
import math
import os
import pathlib
import subprocess
import sys
import tempfile

import numpy as np

import step as bench
import torch_step

ROOT = bench.HERE.parents[1]
WITHIN = 0.01  # Nats, held out, of bf16 from fp32.
PYTORCH = "PyTorch bf16"
MIXED = "fsdp.mixed_precision"
PRECISIONS = {
    "fp32": {},
    "bf16": {"param_dtype": "bf16"},
    "bf16, reduced in bf16": {"param_dtype": "bf16", "grad_dtype": "bf16", "reduce_dtype": "bf16"},
    "all bf16": {"param_dtype": "bf16", "grad_dtype": "bf16", "reduce_dtype": "bf16",
                 "master_dtype": "bf16"},
    "fp16": {"param_dtype": "fp16", "grad_dtype": "fp16", "reduce_dtype": "fp16"},
}


def settings_of(precision):
    settings = [f"{MIXED}.{key}={value}" for key, value in PRECISIONS[precision].items()]
    return settings + (["optimizer.state_dtype=bf16"] if precision == "all bf16" else [])


def arguments():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--evaluations", type=int, default=20)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--precisions", nargs="+", choices=PRECISIONS, default=list(PRECISIONS))
    parser.add_argument("--binary", default=bench.BINARY, type=pathlib.Path)
    parser.add_argument("--json", metavar="FILE", help="every loss")
    parser.add_argument("--plot", metavar="FILE", help="the curves (.png or .svg)")
    return parser.parse_args()


class Task:
    """The quick start's recipe, its text as tokens, and initial weights, in a directory."""

    def __init__(self, args, directory):
        self.args, self.directory = args, directory
        self.recipe_file = ROOT / "configs" / "quickstart.yaml"
        plain = bench.resolve(args.binary, self.recipe_file, [])
        self.shape = plain["model"]
        text = b"".join((ROOT / path).read_bytes() for path in plain["data"]["train"]["paths"])
        tokens = np.frombuffer(text, np.uint8).astype(np.uint32)
        held_out = int(plain["data"]["valid"]["fraction"] * len(tokens))
        self.train, self.valid = tokens[:-held_out], tokens[-held_out:]
        shape = directory / "shape.json"
        shape.write_text(json.dumps(self.shape))
        self.initial = directory / "initial"
        subprocess.run([sys.executable, bench.HERE / "torch_inputs.py", shape, self.initial],
                       check=True)
        for name in ("train", "valid"):
            np.save(directory / f"{name}.npy", getattr(self, name))
        self.settings = [
            f"train.steps={args.steps}",
            f"schedule.warmup_steps={min(plain['schedule']['warmup_steps'], args.steps // 10)}",
            f"eval.every={max(1, args.steps // args.evaluations)}",
            f"run.threads={args.threads}", f"model.init_from={self.initial}",
            f"data.train={{source: tokens, paths: [{directory / 'train.npy'}]}}",
            f"data.valid={{source: tokens, paths: [{directory / 'valid.npy'}]}}",
            "data.shuffle=false", "eval.sample=null", "checkpoint.every=0", "log.every=1",
            "log.tensorboard=false", "log.trace_steps=[]"]
        self.recipe = bench.resolve(args.binary, self.recipe_file, self.settings)

    def ours(self, precision):
        run = self.directory / precision.replace(" ", "-").replace(",", "")
        command = [self.args.binary, "--config", self.recipe_file]
        for setting in [*self.settings, *settings_of(precision), f"run.dir={run}"]:
            command += ["--set", setting]
        if subprocess.run(command, stdout=subprocess.DEVNULL).returncode != 0:
            sys.exit(f"ours in {precision} has failed")
        curve = {"steps": [], "held out": {}, "skipped": 0}
        for line in (run / "metrics.jsonl").read_text().splitlines():
            record = json.loads(line)
            if record["kind"] == "step":
                curve["steps"].append(record["loss"])
            elif record["kind"] == "eval":
                curve["held out"][record["step"]] = record["loss"]
            elif record["kind"] == "skipped":
                curve["skipped"] += 1
        return curve

    def windows(self, tokens, first, count):
        length = self.recipe["data"]["seq_len"]
        rows = np.stack([tokens[w * length : (w + 1) * length + 1]
                         for w in range(first, first + count)])
        rows = torch_step.torch.from_numpy(rows.astype(np.int64))
        return rows[:, :-1].contiguous(), rows[:, 1:].contiguous()

    def learning_rate(self, step):
        """docs/training.md, cosine."""
        schedule, peak = self.recipe["schedule"], self.recipe["optimizer"]["lr"]
        warmup, low = schedule["warmup_steps"], peak * schedule["min_lr_ratio"]
        if step <= warmup:
            return peak * step / warmup
        share = (step - warmup) / (self.args.steps - warmup)
        return low + (peak - low) * (1 + math.cos(math.pi * share)) / 2

    def pytorch(self):
        torch, dist = torch_step.torch, torch_step.dist
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
        torch.set_num_threads(self.args.threads)
        dist.init_process_group("gloo", init_method=f"file://{self.directory / 'store'}", rank=0,
                                world_size=1)
        model = torch_step.torch_models.make(self.shape)
        torch_step.load(model, self.initial)
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        for part in (*model.blocks(), model):
            fully_shard(part, mesh=init_device_mesh("cpu", (1,)), mp_policy=policy)
        optimizer = torch_step.make_optimizer(model, self.recipe["optimizer"])
        batch, every = self.recipe["train"]["global_batch_size"], self.recipe["eval"]["every"]
        length = self.recipe["data"]["seq_len"]
        samples, held_out = ((len(t) - 1) // length for t in (self.train, self.valid))
        held_out = min(held_out, self.recipe["eval"]["steps"] * batch)
        if self.args.steps * batch > samples:
            raise SystemExit(f"{self.args.steps} steps are more than the text's {samples} windows")
        curve = {"steps": [], "held out": {}, "skipped": 0}
        for step in range(1, self.args.steps + 1):
            for group in optimizer.param_groups:
                group["lr"] = self.learning_rate(step)
            optimizer.zero_grad(set_to_none=True)
            loss = model(*self.windows(self.train, (step - 1) * batch, batch))
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), self.recipe["train"]["grad_clip"])
            optimizer.step()
            curve["steps"].append(loss.item())
            if step % every == 0 or step == self.args.steps:
                total = 0.0
                with torch.no_grad():
                    for first in range(0, held_out, batch):
                        count = min(batch, held_out - first)
                        total += count * model(*self.windows(self.valid, first, count)).item()
                curve["held out"][step] = total / held_out
        dist.destroy_process_group()
        return curve


def smooth(values, span):
    return [float(np.mean(values[max(0, i + 1 - span) : i + 1])) for i in range(len(values))]


def plot(curves, path):
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(9, 3.4), constrained_layout=True)
    base = curves["fp32"]["held out"]
    for name, curve in curves.items():
        style = dict(color="black", linestyle="--") if name == PYTORCH else {}
        left.plot(range(1, len(curve["steps"]) + 1), smooth(curve["steps"], 50), linewidth=1,
                  label=name, **style)
        right.plot(list(base), [curve["held out"][s] - base[s] for s in base], "o-", markersize=3,
                   linewidth=1, label=name, **style)
    left.set_ylabel("training loss, nats (mean of 50 steps)")
    left.legend(fontsize=8)
    right.axhspan(-WITHIN, WITHIN, color="gray", alpha=0.15)
    right.set_ylabel("held-out loss less fp32's, nats")
    for axes in (left, right):
        axes.set_xlabel("step")
    figure.savefig(path, dpi=150)


def run(args, directory):
    task = Task(args, directory)
    curves = {}
    for precision in args.precisions:
        print(f"ours in {precision}", file=sys.stderr, flush=True)
        curves[precision] = task.ours(precision)
    print(PYTORCH, file=sys.stderr, flush=True)
    curves[PYTORCH] = task.pytorch()
    last = args.steps
    base = curves["fp32"]["held out"][last] if "fp32" in curves else math.nan
    print(f"{'':24} {'held out':>9} {'- fp32':>9} {'last 50':>9} {'skipped':>8}")
    for name, curve in curves.items():
        held_out = curve["held out"][last]
        print(f"{name:24} {held_out:9.4f} {held_out - base:9.4f} {smooth(curve['steps'], 50)[-1]:9.4f} "
              f"{curve['skipped']:8}")
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps(curves))
    if args.plot and "fp32" in curves:
        plot(curves, args.plot)
    if "fp32" in curves and "bf16" in curves:
        difference = curves["bf16"]["held out"][last] - base
        if not abs(difference) <= WITHIN:
            sys.exit(f"bf16 is {difference:.4f} nats from fp32 on the held-out text")


def main():
    args = arguments()
    with tempfile.TemporaryDirectory(prefix="fsdp-curves-") as directory:
        run(args, pathlib.Path(directory))


if __name__ == "__main__":
    main()
