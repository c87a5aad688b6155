#!/usr/bin/env python3
"""Our AdamW on the host against DeepSpeed's CPU Adam, by turns in one run.

    bazel build -c opt //tools/bench:adamw_bench
    $(tools/bench/setup) tools/bench/host_adamw.py [--elements 134217728] [--priority]

One flat shard, with decay, in three kinds: all fp32; the same and a bf16 copy of what came out, which
is one pass of ours and two of DeepSpeed's (its step, then the copy that ZeRO-Offload makes); bf16
parameters and gradients over fp32 state, which ours rounds stochastically and DeepSpeed to nearest. A
rate counts what has to be read and written, the same for both. A copy is one with stores past the
caches, read and written bytes, by as many threads, behind each turn of ours. Ratios are of neighbours
in time. DeepSpeed compiles its kernel at its first start, some minutes.
"""

import argparse
import json
import os
import pathlib
import sys

import turns
from step import HERE, machine

BINARY = HERE.parents[1] / "bazel-bin" / "tools" / "bench" / "adamw_bench"
# Bytes of an element: gradient, parameter and both states, read and written, and the copy.
BYTES = {"fp32": 4 + 2 * 4 + 4 * 4, "bf16-copy": 4 + 2 * 4 + 4 * 4 + 2, "bf16": 2 + 2 * 2 + 4 * 4}
COPIED_BYTES = 2 * (256 << 20)
# Largest relative difference of the sums after the first steps. In bf16 one of the two rounds by
# chance.
SAME = {"fp32": 1e-5, "bf16-copy": 1e-5, "bf16": 0.03}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", nargs="+", choices=BYTES, default=list(BYTES))
    parser.add_argument("--elements", type=int, default=128 << 20)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=5, help="of a turn")
    parser.add_argument("--priority", action="store_true",
                        help="real-time scheduling: for a machine that does other work, too")
    parser.add_argument("--python", default=sys.executable, help="the Python that has deepspeed")
    parser.add_argument("--binary", default=BINARY, type=pathlib.Path)
    parser.add_argument("--against", metavar="BINARY", type=pathlib.Path,
                        help="an older one of ours in DeepSpeed's place")
    parser.add_argument("--json", metavar="FILE", help="everything that was measured")
    args = parser.parse_args()
    if args.rounds < 1 or args.steps < 1 or args.elements < 1:
        parser.error("--rounds, --steps and --elements are at least 1")
    for binary in filter(None, (args.binary, args.against)):
        if not binary.exists():
            parser.error(f"there is no {binary}: bazel build -c opt //tools/bench:adamw_bench")
    return args


class Adam(turns.Participant):
    def __init__(self, name, command, kind, args, directory):
        self.name, self.args = name, args
        self.command = [*command, kind, args.elements, args.threads]
        self.log = directory / f"{name}.log"
        self.answers = []

    def start(self):
        # DeepSpeed calls the ninja beside its Python.
        path = f"{pathlib.Path(self.args.python).parent}:{os.environ['PATH']}"
        self.lines = turns.LineProcesses([self.command], self.args.priority, self.log,
                                         [{"PATH": path, "OMP_NUM_THREADS": str(self.args.threads)}])

    def warm_up(self):
        self.turn()

    def turn(self):
        self.answers.append(self.lines.ask(self.args.steps))
        return self.answers[-1]["seconds"]

    def stop(self):
        self.lines.stop()


def check_same_work(kind, ours, peer):
    for mine, theirs in zip(ours.answers[0]["sums"], peer.answers[0]["sums"]):
        if not abs(mine - theirs) <= SAME[kind] * max(abs(mine), abs(theirs)):
            sys.exit(f"{kind}: not the same work: a sum over the parameters is {mine} for ours, "
                     f"{theirs} for {peer.name}")


def summarise(kind, elements, ours, peer):
    """From the answers of each round, the first left out: it warmed up."""
    def rate(seconds, bytes_):
        return bytes_ / turns.spread(seconds)["median"] * 1e-9

    bytes_ = BYTES[kind] * elements
    rounds = list(zip(ours.answers[1:], peer.answers[1:]))
    mine = [rate(a["seconds"], bytes_) for a, _ in rounds]
    theirs = [rate(b["seconds"], bytes_) for _, b in rounds]
    copies = [rate(a["streaming_seconds"], COPIED_BYTES) for a, _ in rounds]
    plain = [rate(a["copy_seconds"], COPIED_BYTES) for a, _ in rounds]

    def ratios(above, below):
        return turns.spread([a / b for a, b in zip(above, below)])

    return {"kind": kind, "ours": turns.spread(mine), peer.name: turns.spread(theirs),
            "copy": turns.spread(copies), "plain_copy": turns.spread(plain),
            "ratio": ratios(mine, theirs), "share": ratios(mine, copies),
            "peer_share": ratios(theirs, copies)}


def show(spread, form):
    return f"{spread['median']:{form}} ({spread['min']:{form}} .. {spread['max']:{form}})"


def print_row(row, peer):
    print(f"{row['kind']}: GB/s ours {show(row['ours'], '.1f')}, {peer} {show(row[peer], '.1f')}, copy "
          f"{show(row['copy'], '.1f')}, Copy() {show(row['plain_copy'], '.1f')}\n"
          f"    ours / {peer} {show(row['ratio'], '.3f')}, of a copy: ours {show(row['share'], '.2f')}, "
          f"{peer} {show(row['peer_share'], '.2f')}", flush=True)


def run(args, directory):
    load = os.getloadavg()[0]
    rows = []
    version = ""
    for kind in args.kinds:
        other = (Adam("before", [args.against], kind, args, directory) if args.against else
                 Adam("DeepSpeed", [args.python, HERE / "deepspeed_adamw.py"], kind, args, directory))
        pair = [Adam("ours", [args.binary], kind, args, directory), other]
        started = []
        try:
            for participant in pair:
                participant.start()
                started.append(participant)
                participant.warm_up()
            check_same_work(kind, *pair)
            turns.alternate(pair, args.rounds)
        finally:
            for participant in started:
                participant.stop()
        version = other.answers[0].get("version", "")
        rows.append(summarise(kind, args.elements, *pair))
    print(f"{args.elements} elements, {args.threads} threads; {machine()}, load before {load:.1f}"
          f"{', real-time priority' if args.priority else ''}; {args.rounds} rounds of {args.steps} "
          f"steps, medians (smallest .. largest){'; ' if version else ''}{version}")
    for row in rows:
        print_row(row, other.name)
    if args.json:
        about = {"elements": args.elements, "threads": args.threads, "machine": machine(),
                 "load_before": load, "priority": args.priority, "version": version, "kinds": rows}
        pathlib.Path(args.json).write_text(json.dumps(about, indent=1))


def main():
    args = arguments()
    turns.run_in_directory(args, run)


if __name__ == "__main__":
    main()
