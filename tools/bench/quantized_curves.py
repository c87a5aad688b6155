#!/usr/bin/env python3
"""The loss that quantised communication costs: the quick start on two hosts of one machine, held out.

    bazel build -c opt //cmd:fsdp-train
    sudo tools/bench/quantized_curves.py [--steps 2000] [--seeds 3]

Two network namespaces are the hosts (two_hosts.py), two ranks on each. Settings are compared in pairs with bf16
of the same seed: the mean of the differences, in nats of the whole held-out text, and its standard error. The
run fails where a setting is outside its limit by more than two of these.
"""

import argparse
import math
import os
import pathlib
import statistics
import sys

import two_hosts

RECIPE = two_hosts.HERE.parents[1] / "configs" / "quickstart.yaml"
BASE = "bf16"
SETTINGS = {  # And how many nats more than bf16 each may cost; None: it is only told.
    BASE: ("{gather: none}", None),
    "gather int8": ("{gather: int8, min_size: 1024}", 0.005),
    "gather int8, reduce int8": ("{gather: int8, reduce: int8, min_size: 1024}", None),
    "gather int8, reduce int4": ("{gather: int8, reduce: int4, min_size: 1024}", 0.02),
    "gather int8, reduce int4, block 64": ("{gather: int8, reduce: int4, block: 64, min_size: 1024}", None),
}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--seeds", type=int, default=3, help="at least 2")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--binary", type=pathlib.Path, default=two_hosts.BINARY)
    options = parser.parse_args()
    if options.seeds < 2:
        parser.error("a standard error takes two seeds")
    return options


def held_out(options, setting, seed):
    flags = ["--config", str(RECIPE)]
    for pair in (f"fsdp={{mixed_precision: {{param_dtype: bf16}}, quantize: {SETTINGS[setting][0]}}}",
                 f"run.seed={seed}", "run.threads=1", f"optimizer.lr={options.lr}",
                 f"train={{steps: {options.steps}, micro_batch_size: 2, global_batch_size: 8}}",
                 f"eval={{every: {options.steps}, steps: 1000000, sample: null}}",
                 "checkpoint={every: null, resume: none}"):
        flags += ["--set", pair]
    records = two_hosts.records_of(options.binary, 2, flags)
    return [record["loss"] for record in records if record["kind"] == "eval"][-1]


def main():
    options = arguments()
    if os.geteuid() != 0:
        sys.exit("needs root, for network namespaces and tc")
    losses = {setting: [] for setting in SETTINGS}
    two_hosts.disconnect()
    try:
        two_hosts.connect("10gbit", None)
        for seed in range(1, options.seeds + 1):
            for setting, of in losses.items():
                of.append(held_out(options, setting, seed))
                print(f"seed {seed}, {setting}: {of[-1]:.4f}", flush=True)
    finally:
        two_hosts.disconnect()
    print("| `quantize` | nats | error | by seed |\n|---|---|---|---|")
    outside = []
    for setting, of in losses.items():
        more = [loss - base for loss, base in zip(of, losses[BASE])]
        mean, error = statistics.mean(more), statistics.stdev(more) / math.sqrt(len(more))
        if setting != BASE:
            print(f"| {setting} | {mean:.4f} | {error:.4f} | {', '.join(f'{m:.4f}' for m in more)} |")
        limit = SETTINGS[setting][1]
        if limit is not None and mean - limit > 2 * error:
            outside.append(f"{setting}: {mean:.4f} nats, want {limit} at most")
    sys.exit("\n".join(outside))


if __name__ == "__main__":
    main()
