#!/usr/bin/env python3
"""Our collectives against Gloo's (torch.distributed) and Open MPI's, by turns in one run.

    bazel build -c opt //cmd:fsdp-train
    $(tools/bench/setup) tools/bench/comm.py [--ranks 2] [--priority]
    tools/bench/comm.py --dtypes bf16 fp32 [--ranks 2] [--priority]

The second is ours alone, in one dtype against others: a size is bytes of that dtype, so a ratio of 1
says that a tensor of half the bytes is there in half the time. All ranks are processes of this host. A rate is bytes of the full tensor a second, the ratio ours / it is
of neighbours in time; memcpy is that of every rank at the same time. While one works the others are
stopped: the ranks of an MPI library poll as they wait. Open MPI needs its compiler and mpirun
(libopenmpi-dev, openmpi-bin) and is left out, said so, where they are missing.
"""

import argparse
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys

import turns
from step import BINARY, HERE, machine, rank_environments

COLLECTIVES = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all", "broadcast")


def arguments():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--dtypes", nargs="+", choices=("fp32", "bf16", "fp16"), metavar="DTYPE",
                        help="ours in the first of them against ours in the others, and nobody else")
    parser.add_argument("--transport", choices=("shm", "thread"), default="shm",
                        help="of ours: ranks are processes, or threads of one")
    parser.add_argument("--sizes", type=int, nargs="+", metavar="BYTES",
                        default=[1 << 10, 64 << 10, 512 << 10, 4 << 20, 64 << 20])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batches", type=int, default=5, help="of calls in a round")
    parser.add_argument("--priority", action="store_true",
                        help="real-time scheduling: for a machine that does other work, too")
    parser.add_argument("--python", default=sys.executable, help="the Python that has torch")
    parser.add_argument("--binary", default=BINARY, type=pathlib.Path)
    parser.add_argument("--json", metavar="FILE", help="everything that was measured")
    args = parser.parse_args()
    if args.ranks < 1 or args.rounds < 1 or args.batches < 1:
        parser.error("--ranks, --rounds and --batches are at least 1")
    if args.dtypes and len(set(args.dtypes)) != len(args.dtypes):
        parser.error("--dtypes has one twice")
    # Whole elements for every rank in any dtype, so all have the same bytes.
    args.sizes = [size - size % (4 * args.ranks) for size in args.sizes]
    if not args.binary.exists():
        parser.error(f"there is no {args.binary}: bazel build -c opt //cmd:fsdp-train")
    return args


def descendants(pid):
    """The process and all that it has started."""
    found = [pid]
    try:
        children = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:  # It has ended.
        children = []
    for child in children:
        found += descendants(int(child))
    return found


class Group:
    """Processes that answer lines, and stand still between turns."""

    def __init__(self, name, commands, args, log, environments=None):
        self.name = name
        self.lines = turns.LineProcesses(commands, args.priority, log, environments)

    def signal_all(self, number):
        for process in self.lines.processes:
            for pid in descendants(process.pid):
                try:
                    os.kill(pid, number)
                except ProcessLookupError:
                    pass

    def turn(self):
        """(collective, bytes) -> its record."""
        self.signal_all(signal.SIGCONT)
        answer = self.lines.ask(1)
        self.signal_all(signal.SIGSTOP)
        return {(r["collective"], r["bytes"]): r for r in answer["collectives"]}

    def stop(self):
        self.signal_all(signal.SIGCONT)
        self.lines.stop()


def participants(args, directory):
    settings = [args.batches, *args.sizes]
    ours = [args.binary, "bench", "comm", "--ask", "--ranks", args.ranks, "--batches", args.batches,
            "--transport", args.transport, "--sizes", *args.sizes]
    for dtype in args.dtypes or []:
        yield lambda: Group(dtype, [[*ours, "--dtype", dtype]], args, directory / f"{dtype}.log")
    if args.dtypes:
        return
    yield lambda: Group("ours", [ours], args, directory / "ours.log")
    gloo = [args.python, HERE / "torch_collectives.py", *settings]
    yield lambda: Group("gloo", [gloo] * args.ranks, args, directory / "gloo.log",
                        rank_environments(args.ranks))
    if not (shutil.which("mpicxx") and shutil.which("mpirun")):
        print("Open MPI is left out: there is no mpicxx and mpirun here (libopenmpi-dev, openmpi-bin)")
        return
    program = directory / "mpi_collectives"
    compiled = subprocess.run(["mpicxx", "-O2", "-std=c++20", HERE / "mpi_collectives.cc", "-o",
                               program], capture_output=True, text=True)
    if compiled.returncode != 0:  # mpicxx comes with openmpi-bin, the headers with libopenmpi-dev.
        print(f"Open MPI is left out: {compiled.stderr.splitlines()[0]}")
        return
    mpi = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-np", args.ranks,
           program, *settings]
    yield lambda: Group("openmpi", [mpi], args, directory / "openmpi.log")


def summarise(groups, rounds):
    rows = []
    for key in rounds[0][0]:
        row = {"collective": key[0], "bytes": key[1]}
        for i, group in enumerate(groups):
            row[group.name] = {"seconds": turns.spread([r[i][key]["seconds"] for r in rounds])}
            if i > 0:
                row[group.name]["ratio"] = turns.spread(
                    [r[i][key]["seconds"] / r[0][key]["seconds"] for r in rounds])
        row["share_of_memcpy"] = turns.spread(
            [r[0][key]["memcpy_seconds"] / r[0][key]["seconds"] for r in rounds])
        rows.append(row)
    return sorted(rows, key=lambda row: COLLECTIVES.index(row["collective"]))


def print_table(groups, rows):
    first = groups[0].name
    heads = "".join(f"{first + ' / ' + group.name:>30}" for group in groups[1:])
    print(f"{'':15} {'bytes':>10} {'us':>10} {'GB/s':>7} {'of memcpy':>9}{heads}")
    for row in rows:
        seconds = row[first]["seconds"]["median"]
        text = (f"{row['collective']:15} {row['bytes']:10} {seconds * 1e6:10.1f} "
                f"{row['bytes'] / seconds * 1e-9:7.2f} {row['share_of_memcpy']['median']:9.2f}")
        for group in groups[1:]:
            r = row[group.name]["ratio"]
            text += f"{r['median']:14.2f} ({r['min']:5.2f} ..{r['max']:6.2f})"
        print(text)


def run(args, directory):
    groups = []
    rounds = []
    load = os.getloadavg()[0]
    try:
        for make in participants(args, directory):
            groups.append(make())
            groups[-1].turn()  # Warms up.
        for r in range(args.rounds):
            order = groups if r % 2 == 0 else groups[::-1]
            answers = {group.name: group.turn() for group in order}
            rounds.append([answers[group.name] for group in groups])
            print(f"round {r + 1}/{args.rounds}", file=sys.stderr, flush=True)
    finally:
        for group in groups:
            group.stop()
    rows = summarise(groups, rounds)
    what = "processes" if args.transport == "shm" else "threads"
    print(f"{args.ranks} {what} of one host; {machine()}, load before {load:.1f}"
          f"{', real-time priority' if args.priority else ''}; {args.rounds} rounds")
    print_table(groups, rows)
    if args.json:
        about = {"ranks": args.ranks, "transport": args.transport, "machine": machine(), "load_before": load,
                 "priority": args.priority, "rounds": args.rounds, "collectives": rows}
        pathlib.Path(args.json).write_text(json.dumps(about, indent=1))


def main():
    args = arguments()
    turns.run_in_directory(args, run)


if __name__ == "__main__":
    main()
