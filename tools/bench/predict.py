#!/usr/bin/env python3
"""The simulator's prediction for small recipes on this machine's CPU, beside the times that they take
there.

    bazel build -c opt //cmd:fsdp-train
    tools/bench/predict.py --out predict.json

The machine is measured first (`fsdp-train calibrate --step`, with steps of a recipe that is none of the
eight), then every recipe is predicted, then all are run, by
turns and several times. The time of a run is the median of its steps after the second one; of several runs
of a recipe the fastest counts, for others on the machine only slow it down, and the slowest is shown beside
it. Bytes on the wire and the memory that is planned have to be the run's to the byte.

With --recipe the recipes that it names take the place of the eight, on one rank, with --set for all of
them.

The verdict: a median error below 10 %, none above 20 %. With --search a dozen configurations of one recipe
are run, too, and what `fsdp-train plan --search` proposes has to be within 5 % of the fastest.
"""

import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile

from turns import raise_priority

ROOT = pathlib.Path(__file__).resolve().parents[2]
MEDIAN, WORST, NEAR_FASTEST = 0.10, 0.20, 0.05
SKIPPED = 2  # Steps of a run.
HALVES = {"mixed_precision": {"param_dtype": "bf16", "reduce_dtype": "bf16"}}

GPT2 = {"family": "gpt2", "hidden_size": 192, "num_hidden_layers": 4, "num_attention_heads": 4,
        "vocab_size": 2048, "max_position_embeddings": 128}
LLAMA = {"family": "llama", "hidden_size": 192, "intermediate_size": 512, "num_hidden_layers": 4,
         "num_attention_heads": 6, "num_key_value_heads": 3, "vocab_size": 2048,
         "max_position_embeddings": 128}
T5 = {"family": "t5", "gated_mlp": True, "hidden_size": 192, "intermediate_size": 512,
      "num_hidden_layers": 3, "num_attention_heads": 4, "head_dim": 48, "vocab_size": 1024}
DHEN = {"family": "dhen", "dense_columns": 4, "table_rows": [200] * 6, "table_width": 32,
        "dense_vectors": 4, "num_vectors": 10, "num_hidden_layers": 2, "num_attention_heads": 2,
        "cross_rank": 16, "intermediate_size": 128}
TOKENS = {"train": {"source": "synthetic"}, "valid": None, "seq_len": 128}
CLICKS = {"train": {"source": "synthetic"}, "valid": None}


def recipe(model, data, micro_batch, batch, fsdp, **train):
    return {"model": model, "data": data, "fsdp": fsdp,
            "train": {"micro_batch_size": micro_batch, "global_batch_size": batch, **train}}


# Name, world, recipe.
RECIPES = [
    ("gpt2, fp32", 1, recipe(GPT2, TOKENS, 4, 4, {})),
    ("gpt2, full_shard, bf16", 2, recipe(GPT2, TOKENS, 4, 8, HALVES)),
    ("gpt2, hybrid_shard, fp32", 2,
     recipe(GPT2, TOKENS, 4, 8, {"sharding_strategy": "hybrid_shard", "shard_size": 1})),
    ("llama, bf16, recompute", 1,
     recipe(LLAMA, TOKENS, 4, 4, HALVES, activation_checkpointing="full")),
    ("llama, shard_grad_op, fp32", 2,
     recipe(LLAMA, TOKENS, 4, 8, {"sharding_strategy": "shard_grad_op"})),
    ("llama, no_shard, fp32, recompute", 2,
     recipe(LLAMA, TOKENS, 4, 8, {"sharding_strategy": "no_shard"},
            activation_checkpointing="selective")),
    ("t5, full_shard, fp32", 2, recipe(T5, TOKENS, 4, 8, {})),
    ("dhen, fp32", 1, recipe(DHEN, CLICKS, 256, 256, {})),
]

# The steps that set the share of its kernels' rates that a step reaches here: none of the above.
WIDE = {**GPT2, "hidden_size": 256, "num_hidden_layers": 3, "vocab_size": 3072}
REFERENCES = [("reference, fp32", recipe(WIDE, TOKENS, 2, 2, {})),
              ("reference, bf16", recipe(WIDE, TOKENS, 2, 2, HALVES))]

# Configurations of one recipe, for --search: micro-batch, strategy, activation checkpointing.
CONFIGURATIONS = [
    {"train.micro_batch_size": size, "fsdp.sharding_strategy": strategy,
     "train.activation_checkpointing": again}
    for size in (1, 2, 4) for strategy in ("full_shard", "no_shard") for again in ("none", "full")
]


class Program:
    """The binary, and where its runs go."""

    def __init__(self, path, scratch, priority):
        self.path, self.scratch, self.runs = path, scratch, 0
        self.front = ["chrt", "-r", "5"] if priority else []

    def call(self, *words, timed=False):
        done = subprocess.run([str(word) for word in [*(self.front if timed else []), self.path,
                                                       *words]],
                              cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                              check=False)
        if done.returncode != 0:
            sys.exit(f"predict: {' '.join(str(word) for word in words)}\nended with "
                     f"{done.returncode}:\n{done.stderr[-2000:]}")
        return done.stdout

    def write(self, name, world, content, steps):
        """The path of a recipe that runs `steps` steps and leaves nothing but records."""
        threads = max(1, len(os.sched_getaffinity(0)) // world)
        whole = {"run": {"name": "predict", "threads": threads}, "schedule": {"name": "constant"},
                 "checkpoint": {"every": None}, "log": {"every": 1}, **content}
        whole["train"] = {**content["train"], "steps": steps}
        path = self.scratch / (name.replace(",", "").replace(" ", "_") + ".yaml")
        path.write_text(json.dumps(whole))  # JSON is YAML.
        return path

    def predict(self, path, world, machine, settings=()):
        return json.loads(self.call("simulate", "--config", path, *settings, "--world-size", world,
                                    "--hardware", machine, "--json"))

    def measure(self, path, world, settings=()):
        """The records of the steps of a run."""
        self.runs += 1
        run = self.scratch / f"run{self.runs}"
        front = ["launch", "--nproc-per-node", world, "--"] if world > 1 else []
        self.call(*front, "--config", path, *settings, "--device", "cpu", "--set", f"run.dir={run}",
                  timed=True)
        lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
        steps = [record for record in lines if record["kind"] == "step"]
        shutil.rmtree(run)
        return steps


def seconds_of(steps):
    return statistics.median(step["step_time_s"] for step in steps[SKIPPED:])


def differences(predicted, step):
    """The bytes of a step that differ from the prediction."""
    wrong = []
    for key, value in step.get("communication", {}).items():
        said = predicted["communication"].get(key)
        if said is not None and said != value:
            wrong.append(f"{key}: {said:.0f} said, {value} sent")
    said, used = predicted["memory"]["allocated_peak"], step["memory"]["allocated_peak"]
    if said != used:
        wrong.append(f"memory: {said} planned, {used} used")
    return wrong


def by_turns(rounds, names, measure):
    """The times of all rounds by name; the order is reversed every round."""
    times = {name: [] for name in names}
    for number in range(rounds):
        for name in names if number % 2 == 0 else names[::-1]:
            times[name].append(measure(name))
        print(f"predict: round {number + 1} of {rounds} is done, load {os.getloadavg()[0]:.1f}",
              file=sys.stderr, flush=True)
    return times


def settings_of(overrides, steps, threads):
    """Flags that make a whole recipe one that runs `steps` steps and leaves nothing but records."""
    whole = [*overrides, f"run.threads={threads}", f"train.steps={steps}", "train.epochs=null",
             "schedule.name=constant", "schedule.warmup_steps=0", "checkpoint.every=null", "eval.every=0",
             "log.every=1", "log.tensorboard=false", "log.trace_steps=[]"]
    return [word for setting in whole for word in ("--set", setting)]


def recipes_of(program, files, overrides, steps):
    """Name -> world, path and flags."""
    if not files:
        return {name: (world, program.write(name, world, content, steps), ())
                for name, world, content in RECIPES}
    settings = settings_of(overrides, steps, len(os.sched_getaffinity(0)))
    return {", ".join([path.stem, *overrides]): (1, path.absolute(), settings) for path in files}


def compare(program, machine, rounds, recipes):
    said = {name: program.predict(path, world, machine, settings)
            for name, (world, path, settings) in recipes.items()}
    wrong = {}

    def measure(name):
        world, path, settings = recipes[name]
        records = program.measure(path, world, settings)
        wrong[name] = differences(said[name], records[-1])
        return seconds_of(records)

    times = by_turns(rounds, list(recipes), measure)
    rows = []
    for name, (world, *_) in recipes.items():
        predicted, measured = said[name]["step_time_s"], min(times[name])
        rows.append({"name": name, "world": world, "predicted_s": predicted, "measured_s": measured,
                     "floor_s": said[name]["floor_s"],
                     "slowest_s": max(times[name]), "error": predicted / measured - 1,
                     "wrong": wrong[name]})
    return rows


def table(rows):
    lines = [f"{'recipe':34} {'ranks':>5} {'floor':>10} {'predicted':>10} {'measured':>10} {'slowest':>10} "
             f"{'error':>8}"]
    for row in rows:
        lines.append(f"{row['name']:34} {row['world']:5} {row['floor_s'] * 1e3:7.1f} ms "
                     f"{row['predicted_s'] * 1e3:7.1f} ms "
                     f"{row['measured_s'] * 1e3:7.1f} ms {row['slowest_s'] * 1e3:7.1f} ms "
                     f"{row['error'] * 100:6.1f} %" + "".join("; " + text for text in row["wrong"]))
    return lines


def verdict(rows):
    """A line, and whether all is as it has to be."""
    errors = [abs(row["error"]) for row in rows]
    middle, worst = statistics.median(errors), max(errors)
    exact = not any(row["wrong"] for row in rows)
    return (f"median {middle * 100:.1f} %, worst {worst * 100:.1f} %; bytes "
            + ("equal" if exact else "differ"),
            middle < MEDIAN and worst <= WORST and exact)


def proposed(text):
    """The --set flags of the first proposal that `plan --search --json` prints."""
    found = json.loads(text)["best"][0]["set"]
    return [word for setting in found for word in ("--set", setting)]


def search(program, machine, rounds, steps, budget):
    """Configurations of a recipe, and the proposal, as name -> seconds."""
    if "--search" not in program.call("plan", "--help"):
        return None
    path = program.write("search", 2, recipe(LLAMA, TOKENS, 1, 8, {}), steps)
    flags = {}
    for settings in CONFIGURATIONS:
        words = [f"{key}={value}" for key, value in settings.items()]
        flags[", ".join(str(value) for value in settings.values())] = [
            part for word in words for part in ("--set", word)]
    flags["proposed"] = proposed(program.call(
        "plan", "--search", "--budget", budget, "--config", path, "--world-size", 2, "--hardware",
        machine, "--json"))
    times = by_turns(rounds, list(flags),
                     lambda name: seconds_of(program.measure(path, 2, flags[name])))
    return {name: min(seconds) for name, seconds in times.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", type=pathlib.Path, default=ROOT / "bazel-bin/cmd/fsdp-train")
    parser.add_argument("--hardware", type=pathlib.Path, help="instead of a calibration now")
    parser.add_argument("--recipe", type=pathlib.Path, nargs="+", default=[], metavar="FILE",
                        help="these in place of the eight")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE",
                        help="of the recipes that --recipe names")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=8, help="of each run, at least 4")
    parser.add_argument("--priority", action="store_true",
                        help="before everything else on the machine, which stands still meanwhile")
    parser.add_argument("--search", action="store_true", help="plan --search, too")
    parser.add_argument("--budget", type=int, default=60, help="seconds of the search")
    parser.add_argument("--out", type=pathlib.Path, help="JSON of all that was found")
    args = parser.parse_args()
    if args.steps < SKIPPED + 2:
        parser.error("--steps: want at least 4")
    if args.set and not args.recipe:
        parser.error("--set needs --recipe")
    if args.priority:
        raise_priority()
    with tempfile.TemporaryDirectory() as scratch:
        program = Program(args.program.absolute(), pathlib.Path(scratch), args.priority)
        machine = args.hardware and args.hardware.absolute()
        if machine is None:
            machine = pathlib.Path(scratch) / "machine.yaml"
            steps = [program.write(name, 1, content, args.steps) for name, content in REFERENCES]
            program.call("calibrate", "--device", "cpu", "--out", machine, "--step", *steps,
                         timed=True)
        load = os.getloadavg()[0]
        recipes = recipes_of(program, args.recipe, args.set, args.steps)
        rows = compare(program, machine, args.rounds, recipes)
        line, fine = verdict(rows)
        print("\n".join([*table(rows), line, f"load at the beginning: {load:.1f}"]))
        found = {"rows": rows, "load": load, "fine": fine}
        if args.search:
            found["search"] = search(program, machine, args.rounds, args.steps, args.budget)
            if found["search"] is None:
                print("this program has no plan --search")
                fine = False
            else:
                fastest = min(value for name, value in found["search"].items() if name != "proposed")
                slower = found["search"]["proposed"] / fastest - 1
                print(f"proposed: {slower * 100:+.1f} % of the fastest of {len(CONFIGURATIONS)}")
                fine = fine and slower <= NEAR_FASTEST
        if args.out:
            args.out.write_text(json.dumps(found, indent=1) + "\n")
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
