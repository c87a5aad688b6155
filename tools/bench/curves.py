#!/usr/bin/env python3
"""The quick start's text learnt in each precision, beside PyTorch in bf16: losses, and a plot.

    bazel build -c opt //cmd:fsdp-train
    $(tools/bench/setup) tools/bench/curves.py --plot docs/benchmarks/precision.png

All of a seed begin with the same weights and read the same tokens in the same order, so curves differ by
rounding alone. But training amplifies whatever differs: "fp32 again" adds the same numbers up in another
order, and says how far that leads. So each precision is compared with fp32 over several seeds of initial
weights, in pairs, and what counts is the mean of the differences with its standard error. PyTorch is FSDP2
with bf16 parameters, reduced in fp32.

The run fails if bf16 is more than 0.01 nats from fp32 on the held-out text by more than two standard
errors, and says so where two standard errors are more than that: then more seeds have to decide. Runs
have one thread each.
"""

import argparse
import concurrent.futures
import dataclasses
import json
import math
import multiprocessing
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

import step as bench

ROOT = bench.HERE.parents[1]
RECIPE = ROOT / "configs" / "quickstart.yaml"
WITHIN = 0.01  # Nats, held out, of bf16 from fp32.
BASE, AGAIN, PYTORCH = "fp32", "fp32 again", "PyTorch bf16"
MIXED = "fsdp.mixed_precision"
PRECISIONS = {
    BASE: {},
    AGAIN: {},
    "bf16": {"param_dtype": "bf16"},
    "bf16, reduced in bf16": {"param_dtype": "bf16", "grad_dtype": "bf16", "reduce_dtype": "bf16"},
    "all bf16": {"param_dtype": "bf16", "grad_dtype": "bf16", "reduce_dtype": "bf16",
                 "master_dtype": "bf16"},
    "fp16": {"param_dtype": "fp16", "grad_dtype": "fp16", "reduce_dtype": "fp16"},
}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--seeds", type=int, default=3, help="of initial weights, at least 2")
    parser.add_argument("--lr", type=float, default=1e-3,
                        help="the recipe's own, 4e-3, amplifies differences more")
    parser.add_argument("--evaluations", type=int, default=5, help="of all the held-out text")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)),
                        help="runs at a time (default: one a core)")
    parser.add_argument("--precisions", nargs="+", choices=[*PRECISIONS, PYTORCH], metavar="NAME",
                        default=[*PRECISIONS, PYTORCH], help="fp32 is always one of them")
    parser.add_argument("--binary", default=bench.BINARY, type=pathlib.Path)
    parser.add_argument("--json", metavar="FILE", help="every loss")
    parser.add_argument("--plot", metavar="FILE", help="the curves (.png or .svg)")
    args = parser.parse_args()
    if args.seeds < 2:
        parser.error("--seeds is at least 2: one difference has no error")
    if BASE not in args.precisions:
        args.precisions.insert(0, BASE)
    return args


def settings_of(precision, recipe):
    settings = [f"{MIXED}.{key}={value}" for key, value in PRECISIONS[precision].items()]
    if precision == "all bf16":
        settings.append("optimizer.state_dtype=bf16")
    if precision == AGAIN:  # A step's sequences at once, instead of a few at a time.
        settings.append(f"train.micro_batch_size={recipe['train']['global_batch_size']}")
    return settings


@dataclasses.dataclass
class Task:
    """The quick start's recipe, its text as tokens, and initial weights of a seed, in a directory."""

    directory: pathlib.Path
    binary: pathlib.Path
    seed: int
    settings: list
    recipe: dict
    shape: dict

    def ours(self, precision):
        run = self.directory / precision.replace(" ", "-").replace(",", "")
        command = [self.binary, "--config", RECIPE]
        for setting in [*self.settings, *settings_of(precision, self.recipe), f"run.dir={run}"]:
            command += ["--set", setting]
        result = subprocess.run(command, stdout=subprocess.DEVNULL)
        if result.returncode != 0:
            raise RuntimeError(f"ours in {precision} has ended with {result.returncode}")
        return read_curve((run / "metrics.jsonl").read_text())

    def learning_rate(self, step):
        """docs/training.md, cosine."""
        schedule, peak = self.recipe["schedule"], self.recipe["optimizer"]["lr"]
        warmup, low = schedule["warmup_steps"], peak * schedule["min_lr_ratio"]
        if step <= warmup:
            return peak * step / warmup
        share = (step - warmup) / (self.recipe["train"]["steps"] - warmup)
        return low + (peak - low) * (1 + math.cos(math.pi * share)) / 2

    def pytorch(self):
        import numpy as np
        import torch_step
        torch, dist = torch_step.torch, torch_step.dist
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
        torch.set_num_threads(1)
        dist.init_process_group("gloo", init_method=f"file://{self.directory / 'store'}", rank=0,
                                world_size=1)
        model = torch_step.torch_models.make(self.shape)
        torch_step.load(model, self.directory / "initial")
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        for part in (*model.blocks(), model):
            fully_shard(part, mesh=init_device_mesh("cpu", (1,)), mp_policy=policy)
        optimizer = torch_step.make_optimizer(model, self.recipe["optimizer"])
        steps, batch = self.recipe["train"]["steps"], self.recipe["train"]["global_batch_size"]
        length = self.recipe["data"]["seq_len"]
        train, valid = (np.load(self.directory.parent / f"{name}.npy") for name in ("train", "valid"))
        held_out = (len(valid) - 1) // length

        def windows(tokens, first, count):
            rows = np.stack([tokens[w * length : (w + 1) * length + 1]
                             for w in range(first, first + count)])
            rows = torch.from_numpy(rows.astype(np.int64))
            return rows[:, :-1].contiguous(), rows[:, 1:].contiguous()

        curve = {"steps": [], "held out": {}, "skipped": 0}
        for step in range(1, steps + 1):
            for group in optimizer.param_groups:
                group["lr"] = self.learning_rate(step)
            optimizer.zero_grad(set_to_none=True)
            loss = model(*windows(train, (step - 1) * batch, batch))
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), self.recipe["train"]["grad_clip"])
            optimizer.step()
            curve["steps"].append(loss.item())
            if step % self.recipe["eval"]["every"] == 0 or step == steps:
                total = 0.0
                with torch.no_grad():
                    for first in range(0, held_out, 64):
                        count = min(64, held_out - first)
                        total += count * model(*windows(valid, first, count)).item()
                curve["held out"][step] = total / held_out
        dist.destroy_process_group()
        return curve


def make_tasks(args, directory):
    import numpy as np
    plain = bench.resolve(args.binary, RECIPE, [])
    text = b"".join((ROOT / path).read_bytes() for path in plain["data"]["train"]["paths"])
    tokens = np.frombuffer(text, np.uint8).astype(np.uint32)
    held_out = int(plain["data"]["valid"]["fraction"] * len(tokens))
    np.save(directory / "train.npy", tokens[:-held_out])
    np.save(directory / "valid.npy", tokens[-held_out:])
    batch, length = plain["train"]["global_batch_size"], plain["data"]["seq_len"]
    if args.steps * batch > (len(tokens) - held_out - 1) // length:
        sys.exit(f"the text is less than {args.steps} steps long")
    shape = directory / "shape.json"
    shape.write_text(json.dumps(plain["model"]))
    for seed in range(1, args.seeds + 1):
        own = directory / f"seed-{seed}"
        own.mkdir()
        subprocess.run([sys.executable, bench.HERE / "torch_inputs.py", shape, own / "initial",
                        str(seed)], check=True)
        settings = [
            f"run.seed={seed}", "run.threads=1", f"model.init_from={own / 'initial'}",
            f"train.steps={args.steps}", f"optimizer.lr={args.lr}",
            f"schedule.warmup_steps={min(plain['schedule']['warmup_steps'], args.steps // 10)}",
            f"eval.every={max(1, args.steps // args.evaluations)}", f"eval.steps={len(tokens)}",
            f"data.train={{source: tokens, paths: [{directory / 'train.npy'}]}}",
            f"data.valid={{source: tokens, paths: [{directory / 'valid.npy'}]}}",
            "data.shuffle=false", "eval.sample=null", "checkpoint.every=null", "log.every=1",
            "log.tensorboard=false", "log.trace_steps=[]"]
        recipe = bench.resolve(args.binary, RECIPE, settings)
        yield Task(own, args.binary, seed, settings, recipe, plain["model"])


def read_curve(metrics):
    """A run's curve, from the lines of metrics.jsonl."""
    curve = {"steps": [], "held out": {}, "skipped": 0}
    for line in metrics.splitlines():
        record = json.loads(line)
        if record["kind"] == "step":
            curve["steps"].append(record["loss"])
        elif record["kind"] == "eval":
            curve["held out"][record["step"]] = record["loss"]
        elif record["kind"] == "skipped":
            curve["skipped"] += 1
    return curve


def run_one(task, name):
    return task.pytorch() if name == PYTORCH else task.ours(name)


def run_all(args, tasks):
    """name -> its curves, seed by seed."""
    curves = {name: [] for name in args.precisions}
    spawn = multiprocessing.get_context("spawn")  # Not fork: PyTorch has threads.
    with concurrent.futures.ProcessPoolExecutor(args.jobs, mp_context=spawn) as pool:
        runs = [(task, name, pool.submit(run_one, task, name))
                for task in tasks for name in args.precisions]
        for task, name, run in runs:
            curves[name].append(run.result())
            print(f"seed {task.seed}, {name}: {last(curves[name][-1]):.4f}", file=sys.stderr,
                  flush=True)
    return curves


def last(curve):
    return curve["held out"][max(curve["held out"])]


def difference(curves, base, step):
    """Mean of what `curves` are above `base` at an evaluation, seed by seed, and its standard error."""
    pairs = [ours["held out"][step] - theirs["held out"][step] for ours, theirs in zip(curves, base)]
    return statistics.mean(pairs), statistics.stdev(pairs) / math.sqrt(len(pairs))


def verdict(mean, error):
    """None, or what is wrong, and whether that is a failure."""
    if not abs(mean) - 2 * error <= WITHIN:
        return f"bf16 is {mean:+.4f} +- {error:.4f} nats from fp32 on the held-out text", True
    if 2 * error > WITHIN:
        return (f"undecided: bf16 is {mean:+.4f} +- {error:.4f} nats from fp32, and {WITHIN} is to be "
                "told from 0; more seeds would", False)
    return None, False


def smooth(values, span):
    return [statistics.fmean(values[max(0, i + 1 - span) : i + 1]) for i in range(len(values))]


def mean_curve(curves):
    return [statistics.fmean(losses) for losses in zip(*(curve["steps"] for curve in curves))]


def plot(curves, path):
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 3.8), constrained_layout=True)
    base = curves[BASE]
    evaluated = sorted(base[0]["held out"])
    for i, (name, of) in enumerate(curves.items()):
        color, line = ("black", "--") if name == PYTORCH else (f"C{i}", "-")
        means = smooth(mean_curve(of), 50)
        left.plot(range(1, len(means) + 1), means, line, color=color, linewidth=1, label=name)
        if name == BASE:
            continue
        differences = [difference(of, base, step) for step in evaluated]
        right.plot(evaluated, [mean for mean, _ in differences], line, color=color, marker="o",
                   markersize=3, linewidth=1.2, label=name)
        right.fill_between(evaluated, [mean - 2 * error for mean, error in differences],
                           [mean + 2 * error for mean, error in differences], color=color,
                           alpha=0.12, linewidth=0)
    left.set_ylabel("training loss, nats (mean of 50 steps)")
    left.legend(fontsize=8)
    for border in (-WITHIN, WITHIN):
        right.axhline(border, color="gray", linewidth=0.8, linestyle=":")
    right.axhline(0, color="gray", linewidth=0.8)
    right.set_ylabel(f"held-out loss less fp32's, nats\n(mean of {len(base)} seeds, 2 standard errors)")
    right.legend(fontsize=8)
    for axes in (left, right):
        axes.set_xlabel("step")
    figure.savefig(path, dpi=150)


def print_table(curves):
    print(f"{'':24} {'held out':>9} {'- fp32':>9} {'+-':>7} {'worst':>9} {'last 50':>9} {'skipped':>8}")
    step = max(curves[BASE][0]["held out"])
    for name, of in curves.items():
        mean, error = difference(of, curves[BASE], step)
        worst = max((last(a) - last(b) for a, b in zip(of, curves[BASE])), key=abs)
        print(f"{name:24} {statistics.fmean(map(last, of)):9.4f} {mean:9.4f} {error:7.4f} "
              f"{worst:9.4f} {statistics.fmean(mean_curve(of)[-50:]):9.4f} "
              f"{sum(curve['skipped'] for curve in of):8}")


def run(args, directory):
    tasks = list(make_tasks(args, directory))
    curves = run_all(args, tasks)
    print(f"{args.seeds} seeds, {args.steps} steps, lr {args.lr:g}; nats; +- is one standard error")
    print_table(curves)
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps(curves))
    if args.plot:
        plot(curves, args.plot)
    if "bf16" in curves:
        what, failed = verdict(*difference(curves["bf16"], curves[BASE], args.steps))
        if failed:
            sys.exit(what)
        if what:
            print(what)


def main():
    args = arguments()
    with tempfile.TemporaryDirectory(prefix="fsdp-curves-") as directory:
        run(args, pathlib.Path(directory))


if __name__ == "__main__":
    main()
