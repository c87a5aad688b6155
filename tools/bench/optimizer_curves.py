#!/usr/bin/env python3
"""The quick start learnt with each optimizer at four rates: held-out losses, and the steps that Muon needs.

    bazel build -c opt //cmd:fsdp-train
    python3 tools/bench/optimizer_curves.py --plot docs/benchmarks/optimizers.png

A seed fixes the initial weights and the order of the text. Every optimizer's best rate is that with the least mean
loss over the seeds. Muon then runs again at its best rate with schedules that end earlier, and the shortest that
reaches AdamW's loss is told. States of one byte are compared with fp32 states in pairs of equal seed and rate: the
mean of the differences and its standard error. The run fails where Muon needs more than --within of AdamW's steps, or
where 8bit is behind by more than 0.01 nats and two standard errors. Runs have one thread each.
"""

import argparse
import concurrent.futures
import json
import math
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
BASE, EIGHT, MUON = "adamw", "adamw, 8bit", "muon"
BEHIND = 0.01  # Nats that 8bit may be behind fp32.
OPTIMIZERS = {  # Settings beside the rate, and rates.
    BASE: (["optimizer.name=adamw"], (2e-3, 4e-3, 8e-3, 1.6e-2)),
    EIGHT: (["optimizer.name=adamw", "optimizer.state_dtype=8bit"], (2e-3, 4e-3, 8e-3, 1.6e-2)),
    MUON: (["optimizer.name=muon"], (4e-3, 8e-3, 1.6e-2, 3.2e-2)),
    "muon, row_beta2 0.95": (["optimizer.name=muon", "optimizer.muon.row_beta2=0.95"],
                             (4e-3, 8e-3, 1.6e-2, 3.2e-2)),
    "adafactor": (["optimizer.name=adafactor"], (1e-2, 2e-2, 4e-2, 8e-2)),
}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=pathlib.Path, default=ROOT / "configs" / "quickstart.yaml")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="for every run")
    parser.add_argument("--optimizers", nargs="+", choices=OPTIMIZERS, metavar="NAME", default=list(OPTIMIZERS),
                        help=f"adamw is always one of {list(OPTIMIZERS)}")
    parser.add_argument("--rates", nargs="+", type=float, help="for every optimizer (default: its own four)")
    parser.add_argument("--steps", type=int, default=1200)
    parser.add_argument("--seeds", type=int, default=3, help="at least 2")
    parser.add_argument("--evaluations", type=int, default=8)
    parser.add_argument("--shorter", nargs="*", type=float, default=[0.4, 0.5, 0.6],
                        help="shares of the steps after which Muon's schedule ends in further runs")
    parser.add_argument("--within", type=float, default=0.6, help="the share of AdamW's steps that Muon may need")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="runs at a time")
    parser.add_argument("--binary", type=pathlib.Path, default=ROOT / "bazel-bin" / "cmd" / "fsdp-train")
    parser.add_argument("--json", type=pathlib.Path, help="every loss; runs that it has are not repeated")
    parser.add_argument("--plot", type=pathlib.Path)
    args = parser.parse_args()
    if args.seeds < 2:
        parser.error("a standard error takes two seeds")
    args.optimizers = list(dict.fromkeys([BASE, *args.optimizers]))
    return args


def train(args, directory, name, rate, seed, steps):
    """[held-out losses by step, the 10th percentile of a step's seconds]."""
    run = directory / f"{name}-{rate:g}-{seed}-{steps}".replace(", ", "-").replace(" ", "-")
    command = [args.binary.resolve(), "--config", args.config.resolve()]
    for setting in [*OPTIMIZERS[name][0], f"optimizer.lr={rate}", f"run.seed={seed}", f"run.dir={run}",
                    f"train.steps={steps}", f"schedule.warmup_steps={max(1, steps // 50)}", "run.threads=1",
                    f"eval={{every: {max(1, steps // args.evaluations)}, steps: 1000000, sample: null}}",
                    "checkpoint.every=null", "log={every: 10, tensorboard: false}", *args.set]:
        command += ["--set", setting]
    result = subprocess.run(command, stdout=subprocess.DEVNULL, cwd=ROOT)
    if result.returncode != 0:
        raise RuntimeError(f"{name} at {rate:g} has ended with {result.returncode}")
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    seconds = sorted(r["step_time_s"] for r in records if r["kind"] == "step")
    return [{r["step"]: r["loss"] for r in records if r["kind"] == "eval"}, seconds[len(seconds) // 10]]


def key(name, rate, seed, steps):
    return f"{name} | {rate:g} | {seed} | {steps}"


def run_all(args, directory, known, wanted):
    """Adds to `known` what is missing of `wanted`: (name, rate, seed, steps)."""
    missing = [run for run in wanted if key(*run) not in known]
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        futures = {pool.submit(train, args, directory, *run): run for run in missing}
        for done, future in enumerate(concurrent.futures.as_completed(futures), 1):
            name = key(*futures[future])
            losses, seconds = future.result()
            known[name] = [{str(step): loss for step, loss in losses.items()}, seconds]
            print(f"{done} of {len(missing)}: {name}: {last(known[name]):.4f}", file=sys.stderr, flush=True)
            if args.json:
                args.json.write_text(json.dumps(known))


def last(run):
    return run[0][max(run[0], key=int)]


def rates(args, name):
    return args.rates or OPTIMIZERS[name][1]


def mean_error(values):
    return statistics.fmean(values), statistics.stdev(values) / math.sqrt(len(values))


def plot(args, known, best, shorter):
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 3.8), constrained_layout=True)
    for i, (name, rate) in enumerate(best.items()):
        runs = [known[key(name, rate, seed, args.steps)][0] for seed in seeds(args)]
        steps = sorted(map(int, runs[0]))
        means = [statistics.fmean(run[str(step)] for run in runs) for step in steps]
        left.plot(steps, means, color=f"C{i}", marker="o", markersize=3, label=f"{name}, {rate:g}")
        left.fill_between(steps, [min(run[str(s)] for run in runs) for s in steps],
                          [max(run[str(s)] for run in runs) for s in steps], color=f"C{i}", alpha=0.12)
        ends = [statistics.fmean(last(known[key(name, r, seed, args.steps)]) for seed in seeds(args))
                for r in rates(args, name)]
        right.plot(rates(args, name), ends, color=f"C{i}", marker="o", markersize=3, label=name)
    if shorter:
        left.plot(list(shorter), [statistics.fmean(losses) for losses in shorter.values()], "k*",
                  label=f"{MUON}, schedules that end here")
    left.set_xlabel("step")
    left.set_ylabel(f"held-out loss, nats a byte (mean of {args.seeds} seeds)")
    right.set_xlabel("learning rate")
    right.set_xscale("log", base=2)
    right.set_ylabel(f"held-out loss after {args.steps} steps")
    left.axhline(statistics.fmean(last(known[key(BASE, best[BASE], seed, args.steps)]) for seed in seeds(args)),
                 color="gray", linewidth=0.8, linestyle=":")
    every = sorted({rate for name in best for rate in rates(args, name)})
    right.set_xticks(every, [f"{rate:g}" for rate in every], rotation=45)
    right.minorticks_off()
    left.legend(fontsize=8)
    figure.savefig(args.plot, dpi=150)


def seeds(args):
    return range(1, args.seeds + 1)


def run(args, directory):
    known = json.loads(args.json.read_text()) if args.json and args.json.exists() else {}
    run_all(args, directory, known, [(name, rate, seed, args.steps) for seed in seeds(args)
                                     for name in args.optimizers for rate in rates(args, name)])
    best, ends = {}, {}
    print(f"{args.seeds} seeds, {args.steps} steps; held out, nats a byte; +- is one standard error")
    for name in args.optimizers:
        of = {rate: [last(known[key(name, rate, seed, args.steps)]) for seed in seeds(args)]
              for rate in rates(args, name)}
        best[name] = min(of, key=lambda rate: statistics.fmean(of[rate]))
        ends[name] = of[best[name]]
        behind, error = mean_error([a - b for a, b in zip(ends[name], ends[BASE])])
        print(f"{name:22} " + "  ".join(f"{r:g}: {statistics.fmean(losses):.4f}" for r, losses in of.items())
              + f"  best {best[name]:g}, {behind:+.4f} +- {error:.4f} beside {BASE}")
    failed, shorter = [], {}
    if EIGHT in best:
        behind, error = mean_error([last(known[key(EIGHT, best[BASE], seed, args.steps)]) - loss
                                    for seed, loss in zip(seeds(args), ends[BASE])])
        print(f"8bit at adamw's best rate: {behind:+.4f} +- {error:.4f} nats")
        if behind - 2 * error > BEHIND:
            failed.append("8bit is behind fp32 states")
    if MUON in best:
        lengths = sorted(round(share * args.steps) for share in args.shorter)
        run_all(args, directory, known,
                [(MUON, best[MUON], seed, steps) for steps in lengths for seed in seeds(args)])
        goal, reached = statistics.fmean(ends[BASE]), None
        shorter = {steps: [last(known[key(MUON, best[MUON], seed, steps)]) for seed in seeds(args)]
                   for steps in lengths}
        for steps, losses in shorter.items():
            ahead, error = mean_error([b - m for b, m in zip(ends[BASE], losses)])
            print(f"muon, {steps} steps ({steps / args.steps:.2f}): {statistics.fmean(losses):.4f}, "
                  f"{ahead:+.4f} +- {error:.4f} better than adamw's {goal:.4f}")
            reached = reached or (steps if ahead >= 0 else None)
        if lengths and not (reached and reached <= args.within * args.steps):
            failed.append(f"muon needs more than {args.within} of adamw's steps")
        if reached:
            a_step = {name: statistics.median(known[key(name, best[name], seed, args.steps)][1]
                                              for seed in seeds(args)) for name in (BASE, MUON)}
            print(f"to adamw's loss: adamw {args.steps * a_step[BASE]:.1f} s, muon {reached * a_step[MUON]:.1f} s")
    if args.plot:
        plot(args, known, best, shorter)
    if failed:
        sys.exit("; ".join(failed))


def main():
    args = arguments()
    with tempfile.TemporaryDirectory(prefix="fsdp-optimizers-") as directory:
        run(args, pathlib.Path(directory))


if __name__ == "__main__":
    main()
