#!/usr/bin/env python3
"""The matrix products and the attention of a training step, ours against PyTorch's, by turns in one run.

    bazel build -c opt //cmd:fsdp-train
    $(tools/bench/setup) tools/bench/products.py [--fp32] [--priority]

Products are those that `fsdp-train bench gemm` lists for the recipe: of each width of a linear layer the
forward product, dx and dw, and the head's three, in its chunks of rows. Ours run as the step has them:
dw adds to a gradient of the run's dtype, logits are as the head's loss reads them. PyTorch's are torch.mm
of the same sizes into a tensor that is there (torch_products.py): the product that linear and its backward
pass call, without their allocations. Neither has a bias or an activation. Attention is causal, of 2,048
tokens of 768 features, with heads of 64 and of 128, beside scaled_dot_product_attention.

All stay loaded, and one works at a time. Each round goes through all of the work, and a turn calls one
piece of it for --turn-seconds. The shortest time of a turn counts: all calls of a product in a step, or
one of attention. A ratio is ours over PyTorch's in rate, of neighbours in time, and the median over
the rounds. A group's ratio is of the sums over its pieces in a round.
"""

import argparse
import json
import os
import pathlib
import re
import statistics
import sys

import turns
from step import BINARY, HERE, PARAM_DTYPE, machine

TOKENS, WIDTH = 2048, 768
ATTENTION = [(head_size, keys) for head_size in (64, 128) for keys in (512, 2048)]
# Group of pieces -> the ratio that the project wants of it in bf16, where PyTorch has AMX.
WANTED = {"forward": 1.08, "dx": 1.05, "dw": 1.35, "head": 1.10, "all products": 1.18,
          "attention, forward": 1.5, "attention, backward": 4.0}
LEAST = 1.0  # Every product by itself.


def arguments():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="gpt2_124m",
                        help="a recipe beside this file, or a path (default: %(default)s)")
    parser.add_argument("--fp32", action="store_true", help="fp32 in place of bf16")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="of the recipe")
    parser.add_argument("--only", default="", metavar="TEXT", help="pieces with this in their names")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--turn-seconds", type=float, default=0.1)
    parser.add_argument("--priority", action="store_true",
                        help="real-time scheduling: for a machine that does other work, too")
    parser.add_argument("--python", default=sys.executable, help="the Python that has torch")
    parser.add_argument("--binary", default=BINARY, type=pathlib.Path)
    parser.add_argument("--json", metavar="FILE", help="everything that was measured")
    args = parser.parse_args()
    if args.rounds < 1 or args.threads < 1:
        parser.error("--rounds and --threads are at least 1")
    if not args.binary.exists():
        parser.error(f"there is no {args.binary}: bazel build -c opt //cmd:fsdp-train")
    args.dtype = "fp32" if args.fp32 else "bf16"
    args.set.append(f"{PARAM_DTYPE}={args.dtype}")
    recipe = HERE / f"{args.model}.yaml"
    args.recipe = recipe if recipe.exists() else pathlib.Path(args.model)
    return args


def group_of(name):
    return "head" if name.startswith("head") else name.rsplit(", ", 1)[1]


def task_of(part):
    """PyTorch's task of a product that `bench gemm` names."""
    kind = part["name"].rsplit(", ", 1)[1]
    task = {"kind": "forward" if kind == "logits" else kind, "m": part["m"], "n": part["n"],
            "k": part["k"], "dtype": part["dtype"], "count": part["count"]}
    layer = re.match(r"linear (\d+) to (\d+),", part["name"])
    if layer and kind == "dw":  # [out, in], whichever way ours lies.
        task["m"], task["n"] = int(layer[2]), int(layer[1])
    return task


class Piece:
    """A piece of work: each side's turn returns its shortest time in seconds."""

    def __init__(self, name, group, shape, flops, ours, theirs):
        self.name, self.group, self.shape, self.flops = name, group, shape, flops
        self.sides = {"ours": ours, "theirs": theirs}


class Products:
    """`bench gemm`, as the list of a step's products and as their side of ours."""

    def __init__(self, args, log):
        command = [args.binary, "bench", "gemm", "--ask", "--device", "cpu", "--threads", args.threads,
                   "--config", args.recipe]
        for setting in args.set:
            command += ["--set", setting]
        self.lines = turns.LineProcesses([command], args.priority, log)
        self.turn_seconds = args.turn_seconds
        self.parts = self.lines.ask(2)["parts"]

    def turn(self, index):
        times = max(3, round(self.turn_seconds / self.parts[index]["seconds"]))
        return min(self.lines.ask(f"{times} {index}")["seconds"])

    def pieces(self, torch):
        for index, part in enumerate(self.parts):
            if part["groups"] > 1:  # Experts' products: PyTorch has no peer here.
                continue
            yield Piece(part["name"], group_of(part["name"]),
                        f"{part['m']} x {part['n']} x {part['k']}", part["flops"],
                        lambda index=index: self.turn(index),
                        lambda task=task_of(part): torch.turn(task))


class Attention:
    """`bench ops` of one size of heads and number of keys."""

    def __init__(self, args, head_size, keys, log):
        self.shape = {"batch": TOKENS // keys, "seq": keys, "heads": WIDTH // head_size}
        command = [args.binary, "bench", "ops", "--ask", "--device", "cpu", "--threads", args.threads,
                   "--dtype", args.dtype, "--seconds", args.turn_seconds, "--only", "attention, ",
                   "--hidden", WIDTH]
        for flag, value in self.shape.items():
            command += [f"--{flag}", value]
        self.lines = turns.LineProcesses([command], args.priority, log)
        self.dtype, self.head_size, self.keys = args.dtype, head_size, keys

    def pieces(self, torch):
        for kind in ("forward", "backward"):
            op = f"attention, {kind}"
            task = {"kind": f"attention_{kind}", "head_size": self.head_size, "dtype": self.dtype,
                    **self.shape}
            yield Piece(f"{op}, {self.head_size}, {self.keys} keys", op,
                        f"{self.shape['batch'] * self.shape['heads']} heads",
                        self.lines.ask(op)["flops"],
                        lambda op=op: self.lines.ask(op)["seconds"],
                        lambda task=task: torch.turn(task))


class Torch:
    def __init__(self, args, log):
        self.lines = turns.LineProcesses(
            [[args.python, HERE / "torch_products.py", "--threads", args.threads]], args.priority, log)
        self.version = self.lines.answer()["torch"]
        self.seconds = args.turn_seconds

    def turn(self, task):
        return min(self.lines.ask(json.dumps({**task, "seconds": self.seconds}))["seconds"])


def measure(pieces, rounds, progress=True):
    """For each piece {"ours": seconds of each round, "theirs": ...}."""
    times = [{"ours": [], "theirs": []} for _ in pieces]
    for r in range(rounds):
        order = ("ours", "theirs") if r % 2 == 0 else ("theirs", "ours")
        for piece, of in zip(pieces, times):
            for side in order:
                of[side].append(piece.sides[side]())
        if progress:
            total = {side: sum(of[side][-1] for of in times) for side in order}
            print(f"round {r + 1}/{rounds}, s: ours {total['ours']:.3f}  PyTorch {total['theirs']:.3f}",
                  file=sys.stderr, flush=True)
    return times


def row_of(name, shape, flops, ours, theirs, wanted):
    return {"name": name, "shape": shape, "flops": flops, "wanted": wanted,
            "ours_s": turns.spread(ours), "theirs_s": turns.spread(theirs),
            "ratio": turns.spread([b / a for a, b in zip(ours, theirs)])}


def summarise(pieces, times):
    """Rows of the pieces, and of the groups."""
    rows, groups = [], {}
    for piece, of in zip(pieces, times):
        attention = piece.group.startswith("attention")
        wanted = WANTED[piece.group] if attention else LEAST
        rows.append(row_of(piece.name, piece.shape, piece.flops, of["ours"], of["theirs"], wanted))
        for group in (piece.group,) if attention else (piece.group, "all products"):
            groups.setdefault(group, []).append((piece, of))
    sums = []
    for group in sorted(groups, key=list(WANTED).index):
        members = groups[group]
        ours, theirs = ([sum(at) for at in zip(*(of[side] for _, of in members))]
                        for side in ("ours", "theirs"))
        flops = sum(piece.flops for piece, _ in members)
        sums.append(row_of(group, "", flops, ours, theirs, WANTED[group]))
    return rows, sums


def print_table(rows, wants):
    print(f"{'':38} {'':>19} {'ours':>8} {'PyTorch':>8} GFLOP/s {'ratio':>6} {'min .. max':>14}"
          + (f" {'wanted':>7}" if wants else ""))
    for row in rows:
        ratio = row["ratio"]
        rate = [row["flops"] / row[side]["median"] * 1e-9 for side in ("ours_s", "theirs_s")]
        missed = "" if ratio["median"] >= row["wanted"] else " missed"
        print(f"{row['name']:38} {row['shape']:>19} {rate[0]:8.0f} {rate[1]:8.0f} {'':7} "
              f"{ratio['median']:6.2f} {ratio['min']:6.2f} ..{ratio['max']:6.2f}"
              + (f" {row['wanted']:7.2f}{missed}" if wants else ""))


def run(args, directory):
    load = os.getloadavg()[0]
    torch = Torch(args, directory / "torch.log")
    held = [torch]
    try:
        held.append(Products(args, directory / "gemm.log"))
        for head_size, keys in ATTENTION:
            held.append(Attention(args, head_size, keys, directory / f"ops_{head_size}_{keys}.log"))
        pieces = [piece for side in held[1:] for piece in side.pieces(torch) if args.only in piece.name]
        if not pieces:
            sys.exit(f"no piece of work has `{args.only}` in its name")
        measure(pieces, 1, progress=False)  # Creates tensors and warms up.
        times = measure(pieces, args.rounds)
    finally:
        for side in held:
            side.lines.stop()
    rows, sums = summarise(pieces, times)
    print(f"{args.recipe.stem}, {args.dtype}, {args.threads} threads; PyTorch {torch.version}; {machine()}, "
          f"load before {load:.1f}{', real-time priority' if args.priority else ''}; {args.rounds} rounds")
    print_table(rows, not args.fp32)
    print_table(sums, not args.fp32)
    for side in ("ours", "theirs"):
        seconds = statistics.median(map(sum, zip(*(of[side] for of in times))))
        print(f"{side}: {seconds:.3f} s for all of it once")
    if args.json:
        about = {"model": str(args.recipe), "dtype": args.dtype, "threads": args.threads,
                 "torch": torch.version, "machine": machine(), "load_before": load,
                 "priority": args.priority, "pieces": rows, "groups": sums}
        pathlib.Path(args.json).write_text(json.dumps(about, indent=1))


def main():
    args = arguments()
    turns.run_in_directory(args, run)


if __name__ == "__main__":
    main()
