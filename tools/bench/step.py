#!/usr/bin/env python3
"""A training step of ours against PyTorch's, by turns in one run.

    bazel build -c opt //cmd:fsdp-train
    $(tools/bench/setup) tools/bench/step.py --model gpt2_124m [--world 2] [--bf16] [--priority]

Models: gpt2_124m, llama_100m, llama_10m; t5_small, vit_base, regnet_y_400mf, regnet_y_16gf, dhen_5m
(torch_families.py); moe_71m (torch_moe.py). All begin with the same weights and read the same samples, and the first losses and
gradient norms must agree, or the run fails: only then is it the same work. One works at a time
(turns.py); the first step of a turn warms caches up and does not count.

Participants, besides ours:
  eager, compile   one process; the same with torch.compile (default settings)
  eager-nhwc, compile-nhwc     the same with images and convolutions in the memory format channels_last
  fsdp2            fully_shard of each block and of the root, over Gloo; fsdp2-compile: with compiled
                   blocks
  ddp              DistributedDataParallel over Gloo
  grouped, ...-grouped...   a mixture of experts whose experts are one grouped_mm; the others run them
                   in a loop
  autocast, autocast-compile   one process under torch.autocast in bf16, on fp32 parameters
  casts, casts-compile         the same with parameters cast to bf16 in every forward pass
  fsdp2-bf16, fsdp2-bf16-compile   fsdp2 with MixedPrecisionPolicy: bf16 parameters, fp32 reduction
  ...+malloc       the same with glibc told to keep freed memory, as PyTorch's tuning guide advises in
                   kind: its tensors then do not fault in new pages in every step
  gemm             the matrix products of one of our steps alone, in fp32, with our own kernels: the
                   limit
  NAME:KEY=VALUE,...   ours with other settings; `ranks` may be one of them, and `binary`: another build
"""

import argparse
import json
import os
import pathlib
import socket
import statistics
import subprocess
import sys
import tempfile

import turns

HERE = pathlib.Path(__file__).resolve().parent
BINARY = HERE.parents[1] / "bazel-bin" / "cmd" / "fsdp-train"
# Relative differences of losses and gradient norms that still are the same work. After the first
# step PyTorch's clipping factor is in it: its float32 norm is 6e-4 off for GPT-2's token table.
SAME_FIRST, SAME = 1e-5, 1e-3
# For models with batch norms: the first gradient norm, and everything behind the first update. The norm is
# rounded more: RegNetY-400MF's is 86.953 in float64, 86.914 in ours, 86.906 in eager, 86.952 in eager-nhwc.
# AdamW's first update moves each weight by lr whatever its gradient, so rounding alone turns some updates.
SAME_BATCH_NORM_FIRST, SAME_BATCH_NORM = 1e-3, 1e-2
# In bf16 each rounds in places of its own, by 2^-9 of a value: the loss is a mean over all tokens, a
# gradient's norm has a few roundings a layer in it, most of them in other directions.
SAME_BF16 = 2**-6
CHECKED_STEPS = 3
# Participant -> options of torch_step.py.
PEERS = {"eager": [], "compile": ["--compile"],
         "eager-nhwc": ["--channels-last"], "compile-nhwc": ["--channels-last", "--compile"],
         **{name: ["--experts", "grouped_mm", *options] for name, options in {
             "grouped": [], "grouped-compile": ["--compile"], "grouped-autocast": ["--bf16", "autocast"],
             "grouped-autocast-compile": ["--bf16", "autocast", "--compile"],
             "fsdp2-grouped": ["--wrapper", "fsdp2"],
             "fsdp2-grouped-bf16": ["--wrapper", "fsdp2", "--bf16", "policy"]}.items()},
         "fsdp2": ["--wrapper", "fsdp2"],
         "fsdp2-compile": ["--wrapper", "fsdp2", "--compile"], "ddp": ["--wrapper", "ddp"],
         "autocast": ["--bf16", "autocast"], "autocast-compile": ["--bf16", "autocast", "--compile"],
         "casts": ["--bf16", "casts"], "casts-compile": ["--bf16", "casts", "--compile"],
         "fsdp2-bf16": ["--wrapper", "fsdp2", "--bf16", "policy"],
         "fsdp2-bf16-compile": ["--wrapper", "fsdp2", "--bf16", "policy", "--compile"]}
# Family -> settings that feed ours what torch_families.py has written to the directory {}.
FED = {"t5": ["data.train.paths=[{}/pairs.jsonl]"],
       "vit": ["data.train.paths={}/images.idx", "data.train.labels={}/labels.idx"],
       "dhen": ["data.train.paths={}/clicks.csv"]}
FED["regnet"] = FED["vit"]
PARAM_DTYPE = "fsdp.mixed_precision.param_dtype"
KEEP_FREED = {"MALLOC_MMAP_THRESHOLD_": str(1 << 34), "MALLOC_TRIM_THRESHOLD_": str(1 << 36),
              "MALLOC_TOP_PAD_": str(1 << 26)}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="gpt2_124m",
                        help="a recipe beside this file, or a path (default: %(default)s)")
    parser.add_argument("--world", type=int, default=1, help="ranks, one process each")
    parser.add_argument("--threads", type=int, help="of a rank (default: cores / ranks)")
    parser.add_argument("--against", nargs="+", metavar="PARTICIPANT",
                        help="default: eager compile gemm; more than one rank: fsdp2 gemm; with "
                        "--bf16: ours in fp32, and what PyTorch has in bf16")
    parser.add_argument("--bf16", action="store_true", help="ours with bf16 parameters")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE",
                        help="of the recipe, for everybody")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--turn-seconds", type=float, default=1.0,
                        help="a turn is as many steps as take this long, at least one")
    parser.add_argument("--priority", action="store_true",
                        help="real-time scheduling: for a machine that does other work, too")
    parser.add_argument("--python", default=sys.executable, help="the Python that has torch")
    parser.add_argument("--binary", default=BINARY, type=pathlib.Path)
    parser.add_argument("--json", metavar="FILE", help="everything that was measured")
    parser.add_argument("--plot", metavar="FILE", help="step times and ratios (.png or .svg)")
    parser.add_argument("--keep", metavar="DIR", help="keep logs and run directories here")
    args = parser.parse_args()
    if args.rounds < 1 or args.world < 1:
        parser.error("--rounds and --world are at least 1")
    if args.against is None:
        args.against = ["eager", "compile", "gemm"] if args.world == 1 else ["fsdp2", "gemm"]
        if args.bf16:
            one = ["autocast", "autocast-compile", "casts-compile"] if args.world == 1 else []
            args.against = [f"fp32:{PARAM_DTYPE}=fp32", *one, "fsdp2-bf16", "fsdp2-bf16-compile"]
    if args.bf16:
        args.set.append(f"{PARAM_DTYPE}=bf16")
    for name in args.against:
        if name.removesuffix("+malloc") not in (*PEERS, "gemm") and ":" not in name:
            parser.error(f"there is no participant {name}")
    if not args.binary.exists():
        parser.error(f"there is no {args.binary}: bazel build -c opt //cmd:fsdp-train")
    return args


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def rank_environments(world):
    common = {"WORLD_SIZE": str(world), "LOCAL_WORLD_SIZE": str(world),
              "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    return [{**common, "RANK": str(r), "LOCAL_RANK": str(r)} for r in range(world)]


def resolve(binary, recipe, settings):
    import yaml  # Here, so that what needs no recipe needs no packages.
    command = [binary, "config", "print", "--config", recipe]
    for setting in settings:
        command += ["--set", setting]
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode != 0:
        sys.exit(result.stderr)
    return yaml.safe_load(result.stdout)


class Bench:
    """The files that all participants work on: a recipe, initial weights and tokens, in a
    directory."""

    def __init__(self, args, directory):
        self.args, self.directory = args, directory
        recipe = HERE / f"{args.model}.yaml"
        self.recipe = recipe if recipe.exists() else pathlib.Path(args.model)
        self.plain = resolve(args.binary, self.recipe, args.set)
        self.shape = self.plain["model"]
        self.unit = "samples" if self.shape["family"] in FED else "tokens"
        self.initial = directory / "initial"
        self.tokens = self.initial / "tokens.npy"
        self.write_inputs()

    def settings(self, ranks, threads, extra=()):
        """--set values of a participant. The micro-batch stays as it is, whatever the ranks."""
        recipe = resolve(self.args.binary, self.recipe, self.args.set)
        micro = recipe["train"]["micro_batch_size"]
        rounds = max(1, recipe["train"]["global_batch_size"] // micro)
        return [*self.args.set, f"run.threads={threads}", "run.timeout_s=1000000",
                f"train.global_batch_size={micro * rounds * ranks}", "train.steps=1000000",
                f"model.init_from={self.initial}",
                *self.data(), "data.valid=null", "data.shuffle=false", "log.every=1", "log.trace_steps=[]",
                "log.tensorboard=false", "eval.every=0", "checkpoint.every=null",
                "schedule.name=constant", "schedule.warmup_steps=0", *extra]

    def data(self):
        if self.shape["family"] in FED:
            return [setting.format(self.initial) for setting in FED[self.shape["family"]]]
        return ["data.train.source=tokens", f"data.train.paths=[{self.tokens}]"]

    def work(self, recipe):
        """Tokens of a step, or samples where a model is fed something else."""
        length = 1 if self.unit == "samples" else recipe["data"]["seq_len"]
        return recipe["train"]["global_batch_size"] * length

    def write_inputs(self):
        shape = self.directory / "shape.json"
        shape.write_text(json.dumps(self.shape))
        command = [self.args.python, HERE / "torch_inputs.py", shape, self.initial]
        if self.shape["family"] in FED:
            recipe = self.directory / "recipe.json"
            recipe.write_text(json.dumps(self.plain))
            command += ["--recipe", recipe]
        result = subprocess.run(command, capture_output=True, text=True)
        if result.returncode != 0:
            sys.exit(result.stderr)


class Ours(turns.Participant):
    def __init__(self, bench, name, ranks, threads, extra=(), binary=None):
        self.bench, self.name, self.binary = bench, name, binary or bench.args.binary
        self.ranks, self.threads, self.extra = ranks, threads, list(extra)
        self.steps_of_turn = 1
        self.records = []

    def start(self):
        directory = self.bench.directory / f"run-{self.name.replace(':', '-').replace('/', '-')}"
        settings = self.bench.settings(self.ranks, self.threads, self.extra)
        command = [self.binary, "--config", self.bench.recipe]
        for setting in [*settings, f"run.dir={directory}"]:
            command += ["--set", setting]
        recipe = resolve(self.bench.args.binary, self.bench.recipe, settings)
        self.tokens = self.bench.work(recipe)
        self.log = self.bench.directory / f"{directory.name}.log"
        environments = rank_environments(self.ranks) if self.ranks > 1 else [None]
        with open(self.log, "wb") as log:
            self.processes = turns.Stoppable([
                turns.start(command, self.bench.args.priority, e, stdin=subprocess.DEVNULL,
                            stdout=log, stderr=log) for e in environments])
        self.metrics = directory / "metrics.jsonl"
        self.offset = 0

    def poll(self):
        """Takes the records that are new; the number of steps that are known."""
        if any(p.poll() is not None for p in self.processes.processes):
            self.processes.kill()
            sys.exit(f"{self.name} has ended:\n{turns.log_tail(self.log)}")
        if self.metrics.exists():
            with open(self.metrics, "rb") as file:
                file.seek(self.offset)
                for line in file:
                    if not line.endswith(b"\n"):
                        break
                    self.offset += len(line)
                    record = json.loads(line)
                    if record["kind"] == "step":
                        self.records.append(record)
                    elif record["kind"] == "run":
                        self.parameters = record["parameters"]
        return len(self.records)

    def run_until(self, steps):
        self.processes.go()
        turns.wait_for(lambda: self.poll() >= steps, turns.FIRST_ANSWER_S, self.name)
        self.processes.hold()
        self.poll()  # Reads the records written just before the stop.

    def warm_up(self):
        # The record of a step comes when it ends, so a stopped run stands at a step's begin.
        self.run_until(CHECKED_STEPS)
        self.steps_of_turn = max(
            1, round(self.bench.args.turn_seconds / self.records[-1]["step_time_s"]))

    def turn(self):
        begin = len(self.records)
        self.run_until(begin + 1 + self.steps_of_turn)
        # The first of them was interrupted.
        return [r["step_time_s"] for r in self.records[begin + 1 :]]

    def losses(self):
        return [(r["loss"], r["grad_norm"]) for r in self.records[:CHECKED_STEPS]]

    def peak(self):
        return sum(turns.peak_bytes(p) for p in self.processes.processes)

    def stop(self):
        self.processes.kill()


class Torch(turns.Participant):
    def __init__(self, bench, name, ranks, threads):
        self.bench, self.name, self.ranks, self.threads = bench, name, ranks, threads

    def start(self):
        recipe = resolve(self.bench.args.binary, self.bench.recipe,
                         self.bench.settings(self.ranks, self.threads))
        self.tokens = self.bench.work(recipe)
        file = self.bench.directory / f"{self.name}.json"
        recipe["model"] = self.bench.shape
        file.write_text(json.dumps(recipe))
        command = [self.bench.args.python, HERE / "torch_step.py", "--recipe", file,
                   "--initial", self.bench.initial, "--tokens", self.bench.tokens,
                   "--threads", self.threads, *PEERS[self.name.removesuffix("+malloc")]]
        environments = rank_environments(self.ranks)
        for environment in environments:
            environment["OMP_NUM_THREADS"] = str(self.threads)
            if self.name.endswith("+malloc"):
                environment.update(KEEP_FREED)
        self.lines = turns.LineProcesses([command] * self.ranks, self.bench.args.priority,
                                         self.bench.directory / f"{self.name}.log", environments)
        about = self.lines.answer()
        self.parameters, self.version = about["parameters"], about["torch"]

    def warm_up(self):
        answer = self.lines.ask(f"check {CHECKED_STEPS}")
        self.checked = list(zip(answer["losses"], answer["grad_norms"]))
        self.steps_of_turn = max(1, round(self.bench.args.turn_seconds / answer["seconds"][-1]))

    def turn(self):
        return self.lines.ask(1 + self.steps_of_turn)["seconds"][1:]

    def losses(self):
        return self.checked

    def peak(self):
        return self.lines.peak()

    def stop(self):
        self.lines.stop()


class Gemm(turns.Participant):
    """The matrix products of our step alone, on as many processes and threads."""

    def __init__(self, bench, name, ranks, threads):
        self.bench, self.name, self.ranks, self.threads = bench, name, ranks, threads

    def start(self):
        settings = self.bench.settings(self.ranks, self.threads)
        recipe = resolve(self.bench.args.binary, self.bench.recipe, settings)
        self.tokens = self.bench.work(recipe)
        command = [self.bench.args.binary, "bench", "gemm", "--threads", self.threads,
                   "--world-size", self.ranks, "--ask", "--config", self.bench.recipe]
        for setting in settings:
            command += ["--set", setting]
        self.lines = turns.LineProcesses([command] * self.ranks, self.bench.args.priority,
                                         self.bench.directory / "gemm.log")

    def warm_up(self):
        self.steps_of_turn = 1
        seconds = self.turn()[-1]
        self.steps_of_turn = max(1, round(self.bench.args.turn_seconds / seconds))

    def turn(self):
        answers = self.lines.ask_all(self.steps_of_turn)
        self.parts = answers[0]["parts"]
        return [max(step) for step in zip(*(a["seconds"] for a in answers))]

    def losses(self):
        return None

    def peak(self):
        return self.lines.peak()

    def stop(self):
        self.lines.stop()


def make_participants(bench):
    args = bench.args
    cores = len(os.sched_getaffinity(0))
    threads = args.threads or max(1, cores // args.world)
    participants = [Ours(bench, "ours", args.world, threads)]
    for name in args.against:
        if name == "gemm":
            participants.append(Gemm(bench, name, args.world, threads))
        elif ":" in name:
            name, _, settings = name.partition(":")
            ranks, extra, binary = args.world, [], None
            for setting in settings.split(","):
                if setting.startswith("ranks="):
                    ranks = int(setting.removeprefix("ranks="))
                elif setting.startswith("binary="):
                    binary = pathlib.Path(setting.removeprefix("binary=")).resolve()
                else:
                    extra.append(setting)
            threads_here = args.threads or max(1, cores // ranks)
            participants.append(Ours(bench, name, ranks, threads_here, extra, binary))
        elif args.world == 1 or name.startswith(("fsdp2", "ddp")):
            participants.append(Torch(bench, name, args.world, threads))
        else:
            sys.exit(f"{name} is one process, not {args.world}: compare with fsdp2 or ddp")
    return participants


def difference(a, b):
    return abs(a - b) / max(abs(a), abs(b), 1e-30)


def check_same_work(participants, bf16=False, batch_norm=False):
    """The largest relative difference from ours in losses and norms of the first steps."""
    ours, worst = participants[0], 0.0
    for other in participants[1:]:
        if other.losses() is None:
            continue
        if other.parameters != ours.parameters:
            sys.exit(f"{other.name} has {other.parameters} parameters, ours {ours.parameters}")
        if other.tokens != ours.tokens:
            continue  # Another global batch: other losses.
        for step, (mine, theirs) in enumerate(zip(ours.losses(), other.losses()), start=1):
            for what, a, b in zip(("loss", "gradient norm"), mine, theirs):
                worst = max(worst, difference(a, b))
                same = SAME_BF16 if bf16 else SAME_FIRST if step == 1 else SAME
                if batch_norm and (step > 1 or what == "gradient norm"):
                    same = SAME_BATCH_NORM_FIRST if step == 1 else SAME_BATCH_NORM
                if not difference(a, b) <= same:
                    sys.exit(f"not the same work: {what} of step {step} is {a} for ours, {b} for "
                             f"{other.name}")
    return worst


def summarise(participants, times):
    ours = participants[0]
    rows = []
    for participant, turns_of in zip(participants, times):
        # Each round's ratio is of neighbours in time: tokens a second of ours over the other's.
        ratios = [(statistics.median(theirs) / participant.tokens) /
                  (statistics.median(mine) / ours.tokens)
                  for mine, theirs in zip(times[0], turns_of)]
        seconds = turns.spread([s for turn in turns_of for s in turn])
        rows.append({"name": participant.name, "seconds": seconds,
                     "tokens_per_s": participant.tokens / seconds["median"],
                     "ratio": turns.spread(ratios), "ratios": ratios, "turns": turns_of,
                     "peak_rss_bytes": participant.peak_bytes})
    return rows


def print_table(rows, work="tokens"):
    print(f"{'':16} {'s a step':>9} {'q1 .. q3':>17} {work + '/s':>9} "
          f"{'ours / it':>9} {'min .. max':>14} {'peak RSS, GiB':>14}")
    for row in rows:
        s, r = row["seconds"], row["ratio"]
        ratio = f"{'':9} {'':14}" if row is rows[0] else (
            f"{r['median']:9.3f} {r['min']:6.3f} ..{r['max']:6.3f}")
        print(f"{row['name']:16} {s['median']:9.4g} {s['q1']:8.4g} ..{s['q3']:7.4g} "
              f"{row['tokens_per_s']:9.4g} {ratio} {row['peak_rss_bytes'] / 2**30:14.2f}")


def plot(rows, title, path):
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(9, 3.2), constrained_layout=True)
    for i, row in enumerate(rows):
        steps = [s for turn in row["turns"] for s in turn]
        left.plot(steps, [i] * len(steps), "o", alpha=0.5, markersize=4)
        left.plot(row["seconds"]["median"], i, "k|", markersize=18)
    left.set_yticks(range(len(rows)), [row["name"] for row in rows])
    left.set_xlim(left=0)
    left.invert_yaxis()
    left.set_xlabel("seconds a step (line: median)")
    for i, row in enumerate(rows[1:]):
        right.plot(range(1, len(row["ratios"]) + 1), row["ratios"], "o-", color=f"C{i + 1}",
                   label=row["name"])
    right.axhline(1, color="black", linewidth=0.8)
    right.set_ylim(bottom=0)
    right.set_xlabel("round")
    right.set_ylabel("ours / it, rate")
    right.legend()
    figure.suptitle(title)
    figure.savefig(path, dpi=150)


def machine():
    for line in open("/proc/cpuinfo"):
        if line.startswith("model name"):
            return f"{line.split(':')[1].strip()}, {len(os.sched_getaffinity(0))} cores"
    return "unknown processor"


def run(args, directory):
    bench = Bench(args, directory)
    participants = make_participants(bench)
    load = os.getloadavg()[0]
    started = []
    try:
        for participant in participants:
            print(f"starting {participant.name}", file=sys.stderr, flush=True)
            participant.start()
            started.append(participant)
            participant.warm_up()
        worst = check_same_work(participants, args.bf16, bench.shape["family"] == "regnet")
        times = turns.alternate(participants, args.rounds)
        for participant in participants:
            participant.peak_bytes = participant.peak()
    finally:
        for participant in started:
            participant.stop()
    rows = summarise(participants, times)
    versions = {p.version for p in participants if hasattr(p, "version")}
    about = {"model": bench.recipe.stem, "parameters": participants[0].parameters,
             "world": args.world, "bf16": args.bf16, "threads": participants[0].threads,
             "tokens_per_step": participants[0].tokens, "torch": ", ".join(versions) or None,
             "machine": machine(), "load_before": load, "priority": args.priority,
             "rounds": args.rounds, "largest_difference": worst,
             "ours": subprocess.run([args.binary, "--version"], capture_output=True,
                                    text=True).stdout.strip()}
    title = (f"{about['model']}, {about['parameters'] / 1e6:.1f}M parameters, {args.world} x "
             f"{about['threads']} threads, {about['tokens_per_step']} {bench.unit} a step")
    print(f"{title}\n{about['ours']}; PyTorch {about['torch']}; {about['machine']}, load before "
          f"{load:.1f}{', real-time priority' if args.priority else ''}")
    print(f"losses and gradient norms of the first {CHECKED_STEPS} steps agree to {worst:.1e}")
    print_table(rows, bench.unit)
    peers = [row for p, row in zip(participants, rows) if isinstance(p, Torch)]
    if len(peers) > 1:
        best = min(peers, key=lambda row: row["ratio"]["median"])
        print(f"ours over PyTorch's best, {best['name']}: {best['ratio']['median']:.3f}")
    for participant, row in zip(participants, rows):
        if isinstance(participant, Gemm):
            print(f"share of GEMM-only: {row['ratio']['median'] * 100:.1f} %")
            about["gemm"] = participant.parts
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps({**about, "participants": rows}, indent=1))
    if args.plot:
        plot(rows, title, args.plot)


def main():
    args = arguments()
    if args.priority:
        turns.raise_priority()
    if args.keep:
        pathlib.Path(args.keep).mkdir(parents=True)
        run(args, pathlib.Path(args.keep).resolve())
    else:
        with tempfile.TemporaryDirectory(prefix="fsdp-bench-") as directory:
            run(args, pathlib.Path(directory))


if __name__ == "__main__":
    main()
