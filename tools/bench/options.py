#!/usr/bin/env python3
"""The time and the memory of a step under each sharding option: GPT-2 124M over ranks of this host, by
turns in one run; and a step's timeline.

    bazel build -c opt //cmd:fsdp-train //tools/bench:spill_bench
    $(tools/bench/setup) tools/bench/options.py [--priority] [--timeline docs/benchmarks/timeline.png]

The settings are those of the table in docs/fsdp.md, and of prefetching; hybrid ones get shard groups of
half the ranks. Each turn is a start of its own, whose first step does not count. A step's ratio is of
full_shard's in the same round. Memory is the most that any rank had resident (VmHWM), beside what is
planned; it has the ranks' shared staging and the program itself in it. A setting that spills has a
row for its disk: what all ranks of it read and write there in a step, by nobody else and at once.

--timeline draws rank 0's compute, gather and reduce streams in one step, for backward_prefetch pre,
post and none under each other.
"""

import argparse
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import threading
import types

import turns
from comm import descendants
from step import BINARY, HERE, machine

RECIPE = HERE / "gpt2_124m.yaml"
PAGE = HERE.parents[1] / "docs" / "fsdp.md"
BASE = "fsdp.sharding_strategy=full_shard"
MORE = ("fsdp.backward_prefetch=post", "fsdp.backward_prefetch=none", "fsdp.forward_prefetch=false",
        "fsdp.mixed_precision.param_dtype=bf16")
DISK = HERE.parents[1] / "bazel-bin/tools/bench/spill_bench"
PREFETCHES = ("pre", "post", "none")
LANES = ("compute", "gather", "reduce")
COLORS = {"forward": "#9ecae1", "recompute": "#c7b6e0", "backward": "#fdae6b", "update": "#a1d99b"}


def settings_of(page):
    """The settings in the first column of the table of docs/fsdp.md, full_shard first."""
    table = page.split("## Memory and traffic")[1].split("\n## ")[0]
    found = re.findall(r"^\| `([^`]+)` \|", table, flags=re.M)
    return [BASE, *(setting for setting in (*found, *MORE) if setting != BASE)]


def arguments():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--seq", type=int, default=64, help="tokens of a micro-batch, one sequence")
    parser.add_argument("--micro-batches", type=int, default=2, help="of a step and rank")
    parser.add_argument("--only", nargs="+", metavar="KEY=VALUE",
                        help="these settings beside full_shard, in place of the table's")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=3, help="of a turn that count")
    parser.add_argument("--priority", action="store_true",
                        help="real-time scheduling: for a machine that does other work, too")
    parser.add_argument("--binary", default=BINARY, type=pathlib.Path)
    parser.add_argument("--json", metavar="FILE", help="everything that was measured")
    parser.add_argument("--timeline", metavar="FILE", help="draw steps (.png or .svg), and no table")
    args = parser.parse_args()
    if min(args.ranks, args.seq, args.micro_batches, args.rounds, args.steps) < 1:
        parser.error("--ranks, --seq, --micro-batches, --rounds and --steps are at least 1")
    if args.ranks % 2:
        parser.error("--ranks is even: hybrid strategies halve them")
    if not args.binary.exists():
        parser.error(f"there is no {args.binary}: bazel build -c opt //cmd:fsdp-train")
    return args


class Setting(turns.Participant):
    def __init__(self, args, directory, setting, extra=()):
        self.args, self.directory, self.name = args, directory, setting
        micro = args.micro_batches
        self.settings = [f"data.seq_len={args.seq}", "train.micro_batch_size=1",
                         f"train.global_batch_size={micro * args.ranks}", setting, *extra]
        if "hybrid" in setting:
            self.settings.append(f"fsdp.shard_size={args.ranks // 2}")
        self.waited, self.peak_bytes = [], 0
        self.run_directory = directory / "run"

    def flags(self, settings):
        return ["--config", RECIPE, *(word for s in settings for word in ("--set", s))]

    def planned(self):
        command = [self.args.binary, "plan", *self.flags(self.settings), "--world-size",
                   self.args.ranks, "--json"]
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(done.stderr)
        return json.loads(done.stdout)

    def watch(self, launcher, ended):
        """Keeps the largest resident size of any process until all have ended."""
        while not ended.wait(0.1):
            for pid in descendants(launcher):
                try:
                    process = types.SimpleNamespace(pid=pid)
                    self.peak_bytes = max(self.peak_bytes, turns.peak_bytes(process))
                except (OSError, RuntimeError):
                    pass

    def turn(self):
        steps = self.args.steps + 1
        settings = [*self.settings, "run.threads=1", f"train.steps={steps}", "checkpoint.every=null",
                    "log.tensorboard=false", f"run.dir={self.run_directory}"]
        if not any(s.startswith("log.trace_steps") for s in self.settings):
            settings.append("log.trace_steps=[]")
        command = [self.args.binary, "launch", "--nproc-per-node", self.args.ranks, "--",
                   *self.flags(settings)]
        subprocess.run(["rm", "-rf", self.run_directory], check=True)
        log = self.directory / "log"
        with open(log, "wb") as out:
            process = turns.start(command, self.args.priority, stdout=out, stderr=out)
        ended = threading.Event()
        watcher = threading.Thread(target=self.watch, args=(process.pid, ended))
        watcher.start()
        code = process.wait()
        ended.set()
        watcher.join()
        if code != 0:
            sys.exit(f"{self.name}: exit code {code}\n{turns.log_tail(log)}")
        seconds, waited = step_times((self.run_directory / "metrics.jsonl").read_text())
        self.waited += waited
        return seconds


class Disk(turns.Participant):
    """The bytes that a setting with `spill` moves from and to a disk in a step, and nothing else."""

    def __init__(self, args, setting, directory):
        self.args, self.directory, self.name = args, directory, "its disk, alone"
        offload = setting.planned()["offload"]
        moved = args.ranks * (offload["disk_read_bytes"] + offload["disk_write_bytes"])
        self.mib = -(-moved // 2**20)

    def turn(self):
        process = turns.start([DISK, "--both", self.directory, self.mib], self.args.priority,
                              stdout=subprocess.PIPE, text=True)
        out, _ = process.communicate()
        if process.returncode != 0:
            sys.exit(f"{DISK}: exit code {process.returncode}")
        return [float(out)]


def spill_directory(setting):
    found = re.search(r"\bspill: *([^,}\s]+)", setting)
    return found and found[1]


def step_times(metrics):
    """Seconds of each step but the first, on its compute stream, and those in which that waited for
    communication. (step_time_s is the host's, who may be two steps ahead, or none.)"""
    steps = [record for record in map(json.loads, metrics.splitlines()) if record["kind"] == "step"]
    return ([sum(record["time"].values()) for record in steps[1:]],
            [record["time"]["communication"] for record in steps[1:]])


def summarise(settings, times):
    """Rows of the table. A round's ratio is of medians, this setting's over the first one's."""
    rows = []
    for setting, turns_of in zip(settings, times):
        ratios = [statistics.median(mine) / statistics.median(base)
                  for mine, base in zip(turns_of, times[0])]
        rows.append({"setting": setting.name, "ratio": turns.spread(ratios),
                     "seconds": turns.spread([s for turn in turns_of for s in turn]),
                     "fastest": min(map(statistics.median, turns_of)),  # The least disturbed turn.
                     "waited": turns.spread(setting.waited), "turns": turns_of,
                     "planned_bytes": setting.planned()["memory"]["allocated_peak"],
                     "resident_bytes": setting.peak_bytes})
    return rows


def print_table(rows):
    print(f"{'':54} {'s a step':>8} {'fastest':>7} {'of full_shard':>13} {'min .. max':>14} "
          f"{'waited s':>8} {'planned':>8} {'resident, MiB':>13}")
    for row in rows:
        r = row["ratio"]
        print(f"{row['setting']:54} {row['seconds']['median']:8.2f} {row['fastest']:7.2f} "
              f"{r['median']:13.2f} {r['min']:6.2f} ..{r['max']:5.2f} {row['waited']['median']:8.2f} "
              f"{row['planned_bytes'] / 2**20:8.0f} {row['resident_bytes'] / 2**20:13.0f}")


def lanes(events):
    """A Chrome trace's pieces of work: stream -> (begin, end, unit, pass), in seconds, without waits.

    Seconds. Work on one unit in one pass without a wait in between is one piece."""
    names = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    found = {name: [] for name in LANES}
    open_piece = {}
    for event in sorted((e for e in events if e["ph"] == "X"), key=lambda e: e["ts"]):
        lane, about = names[event["tid"]], event.get("args", {})
        if lane not in found:
            continue
        begin, end = event["ts"] * 1e-6, (event["ts"] + event["dur"]) * 1e-6
        part = (about.get("unit"), about.get("pass"))
        if event["name"] == "wait":
            if end - begin > 1e-4:  # It was there already, otherwise.
                open_piece[lane] = None
        elif part[1] is not None:
            if lane == "compute" and open_piece.get(lane) == part:
                found[lane][-1] = (found[lane][-1][0], end, *part)
            else:
                found[lane].append((begin, end, *part))
            open_piece[lane] = part
    return found


def label(unit):
    """A block's number; the root is R."""
    number = re.search(r"\d+$", unit or "")
    return number[0] if number else "R" if unit == "root" else ""


def draw(steps, title, path):
    """steps: prefetch -> lanes."""
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import patches, pyplot
    begin = {name: min(b for lane in of.values() for b, *_ in lane) for name, of in steps.items()}
    end = max(e - begin[name] for name, of in steps.items() for lane in of.values()
              for _, e, *_ in lane)
    width = 15
    figure, all_axes = pyplot.subplots(len(steps), 1, figsize=(width, 1.55 * len(steps) + 0.7),
                                       sharex=True, constrained_layout=True)
    for axes, (name, of) in zip(all_axes, steps.items()):
        for row, lane in enumerate(LANES):
            for left, right, unit, part in of[lane]:
                left, right = left - begin[name], right - begin[name]
                axes.broken_barh([(left, right - left)], (-row - 0.4, 0.8), facecolor=COLORS[part],
                                 edgecolor="#555555", linewidth=0.3)
                inches = (right - left) / end * width * 0.93
                if inches > 0.05 * len(label(unit)) + 0.01:
                    axes.text((left + right) / 2, -row, label(unit), ha="center", va="center",
                              fontsize=6)
        axes.set_yticks([0, -1, -2], LANES)
        axes.set_ylim(-2.55, 0.55)
        axes.set_xlim(0, end * 1.005)
        axes.set_title(f"backward_prefetch: {name}", loc="left", fontsize=10)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    all_axes[-1].set_xlabel("seconds; numbers are blocks, R the root")
    all_axes[0].legend(handles=[patches.Patch(facecolor=color, edgecolor="#555555", label=part)
                                for part, color in COLORS.items()
                                if any(p == part for of in steps.values() for lane in of.values()
                                       for *_, p in lane)],
                       loc="lower right", bbox_to_anchor=(1, 1.0), ncols=4, fontsize=9, frameon=False)
    figure.suptitle(title, fontsize=10)
    figure.savefig(path, dpi=110)


def timeline(args, directory):
    traced = args.steps + 1
    candidates = {name: [] for name in PREFETCHES}
    for r in range(args.rounds):
        for name in PREFETCHES if r % 2 == 0 else PREFETCHES[::-1]:
            setting = Setting(args, directory, f"fsdp.backward_prefetch={name}",
                              [f"log.trace_steps={list(range(2, traced + 1))}"])
            setting.turn()
            for path in setting.run_directory.glob("traces/step_*_rank_0.json"):
                of = lanes(json.loads(path.read_text())["traceEvents"])
                candidates[name].append(
                    (of["compute"][-1][1] - of["compute"][0][0], of))
            print(f"round {r + 1}/{args.rounds}, {name}, s: "
                  f"{', '.join(f'{s:.2f}' for s, _ in candidates[name])}", file=sys.stderr, flush=True)
    # The median step of each: neither the luckiest nor one that something else has disturbed.
    steps = {name: sorted(all_of, key=lambda step: step[0])[len(all_of) // 2][1]
             for name, all_of in candidates.items()}
    draw(steps, f"A step of GPT-2 124M on rank 0 of {args.ranks}, full_shard, {args.micro_batches} x "
         f"{args.seq} tokens a rank; {machine()}", args.timeline)


def table(args, directory):
    load = os.getloadavg()[0]
    names = [BASE, *args.only] if args.only else settings_of(PAGE.read_text())
    settings = [Setting(args, directory, name) for name in names]
    disks = [Disk(args, s, spill_directory(s.name)) for s in settings if spill_directory(s.name)]
    times = turns.alternate([*settings, *disks], args.rounds)
    rows = summarise(settings, times[:len(settings)])
    limits = [{"setting": disk.name, "mib": disk.mib, "seconds": turns.spread(sum(of, []))}
              for disk, of in zip(disks, times[len(settings):])]
    print(f"GPT-2 124M, {args.ranks} ranks of one thread on one host, {args.micro_batches} x "
          f"{args.seq} tokens a rank; {machine()}, load before {load:.1f}"
          f"{', real-time priority' if args.priority else ''}; {args.rounds} rounds of {args.steps} "
          "steps")
    print_table(rows)
    for limit in limits:
        s = limit["seconds"]
        print(f"{limit['setting']}, {limit['mib']} MiB: {s['median']:.2f} "
              f"({s['min']:.2f} .. {s['max']:.2f}) s")
    if args.json:
        about = {"ranks": args.ranks, "seq": args.seq, "micro_batches": args.micro_batches,
                 "machine": machine(), "load_before": load, "priority": args.priority, "rows": rows,
                 "disks": limits}
        pathlib.Path(args.json).write_text(json.dumps(about, indent=1))


def main():
    args = arguments()
    turns.run_in_directory(args, timeline if args.timeline else table)


if __name__ == "__main__":
    main()
