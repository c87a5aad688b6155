#!/usr/bin/env python3
"""A step over a slow link: settings of fsdp by turns on two hosts of one machine.

    bazel build -c opt //cmd:fsdp-train
    sudo tools/bench/two_hosts.py [--rate 1gbit] [--delay 1ms] [--rounds 3] [--ranks 1]

Two network namespaces are the hosts, one rank or more on each, and a link of that rate connects them, with a delay
(half of it each way) where the kernel has netem. Each setting is a whole run; the order is reversed every round, and a ratio is to the first
setting of the same round. `sent` is what the ranks of a host put into the link in a step, as they count it, and `link` that
over the rate: the least that a step can take.
"""

import argparse
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
BINARY = HERE.parent.parent / "bazel-bin/cmd/fsdp-train"
BF16 = "mixed_precision: {param_dtype: bf16, reduce_dtype: bf16}"
FP32_SUMS = "mixed_precision: {param_dtype: bf16}"  # Quantised tensors ignore reduce_dtype.
SETTINGS = {
    "bf16": f"{{{BF16}}}",
    "bf16, gather int8": f"{{{BF16}, quantize: {{gather: int8}}}}",
    "bf16, gather fp8": f"{{{BF16}, quantize: {{gather: fp8}}}}",
    "bf16, reduce int8": f"{{{FP32_SUMS}, quantize: {{reduce: int8}}}}",
    "bf16, reduce int4": f"{{{FP32_SUMS}, quantize: {{reduce: int4}}}}",
    "bf16, gather int8, reduce int4": f"{{{FP32_SUMS}, quantize: {{gather: int8, reduce: int4}}}}",
    "bf16, kept after forward": f"{{{BF16}, sharding_strategy: shard_grad_op}}",
    "bf16, kept, gather int8":
        f"{{{BF16}, sharding_strategy: shard_grad_op, quantize: {{gather: int8}}}}",
    "bf16, kept, gather int8, reduce int4":
        f"{{{FP32_SUMS}, sharding_strategy: shard_grad_op, quantize: {{gather: int8, reduce: int4}}}}",
    "bf16, hpZ": f"{{{BF16}, reshard_after_forward: RANKS}}",  # Kept by the ranks of a host.
    "bf16, hpZ, gather int8, reduce int4":
        f"{{{FP32_SUMS}, reshard_after_forward: RANKS, quantize: {{gather: int8, reduce: int4}}}}",
}
# Hosts share no memory, either.
APART = ("unshare", "--mount", "--mount-proc", "--ipc", "--uts", "--pid", "--fork", "sh", "-c",
         'mount -t tmpfs tmpfs /dev/shm && hostname "host$$" && exec "$@"', "sh")
HOSTS = ("fsdp-bench-a", "fsdp-bench-b")
UNITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", default="1gbit", help="of the link, each way, as tc writes it")
    parser.add_argument("--delay", help="there and back; none without")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=6, help="of a run, of which the first two are left out")
    parser.add_argument("--ranks", type=int, default=1, help="on each host")
    parser.add_argument("--seq-len", type=int, default=128)
    parser.add_argument("--binary", type=pathlib.Path, default=BINARY)
    parser.add_argument("--only", nargs="+", choices=SETTINGS, default=list(SETTINGS))
    return parser.parse_args()


def ip(*words):
    subprocess.run(["ip", *words], check=True)


def connect(rate, delay):
    link = ["tbf", "rate", rate, "burst", "256kb", "latency", "100ms"]
    if delay:
        each_way = re.sub(r"^[0-9.]+", lambda n: str(float(n[0]) / 2), delay)
        link = ["netem", "rate", rate, "delay", each_way, "limit", "100000"]
    for host in HOSTS:
        ip("netns", "add", host)
    ip("link", "add", "veth-a", "netns", HOSTS[0], "type", "veth", "peer", "name", "veth-b", "netns", HOSTS[1])
    for i, host in enumerate(HOSTS):
        device = "veth-" + "ab"[i]
        ip("-n", host, "addr", "add", f"10.98.0.{i + 1}/24", "dev", device)
        for up in (device, "lo"):
            ip("-n", host, "link", "set", up, "up")
        subprocess.run(["ip", "netns", "exec", host, "tc", "qdisc", "add", "dev", device, "root", *link],
                       check=True)


def disconnect():
    for host in HOSTS:
        subprocess.run(["ip", "netns", "del", host], check=False, stderr=subprocess.DEVNULL)


def recipe_flags(options, setting):
    fsdp = SETTINGS[setting].replace("RANKS", str(options.ranks))
    return ["--config", str(HERE / "gpt2_124m.yaml"), "--set", f"fsdp={fsdp}",
            "--set", f"data.seq_len={options.seq_len}", "--set",
            f"train={{steps: {options.steps}, micro_batch_size: 1, global_batch_size: {2 * options.ranks}}}",
            "--set", "run.threads=1", "--set", "log.trace_steps=[]",
            "--set", "checkpoint={every: null, resume: none}"]


# The records of a run with `ranks` ranks on each host, whose recipe the flags give.
def records_of(binary, ranks, flags):
    with tempfile.TemporaryDirectory() as directory:
        launches = []
        for i, host in enumerate(HOSTS):
            launches.append(subprocess.Popen(
                ["ip", "netns", "exec", host, *APART, binary, "launch", "--nnodes", "2", "--node-rank", str(i),
                 "--nproc-per-node", str(ranks), "--rdzv-endpoint", "10.98.0.1:29500", "--", *flags,
                 "--set", f"run.dir={directory}/run"],
                env={**os.environ, "FSDP_TRAIN_SECRET": "two hosts of one machine"}, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT, text=True))
        said = [launch.communicate()[0] for launch in launches]
        if any(launch.returncode for launch in launches):
            sys.exit(f"{' '.join(flags)}: a host failed\n{said[0]}\n{said[1]}")
        return [json.loads(line) for line in (pathlib.Path(directory) / "run/metrics.jsonl").open()]


# The time of a step, and what the ranks of a host put into the link in one: rank 0, which is counted, as much as each.
def run(options, setting):
    records = records_of(options.binary, options.ranks, recipe_flags(options, setting))
    steps = [record for record in records if "step_time_s" in record]
    sent = options.ranks * steps[-1]["communication"]["network_bytes"]
    return statistics.median(step["step_time_s"] for step in steps[2:]), sent


def main():
    options = arguments()
    rate = re.fullmatch(r"([0-9.]+)([kmg]bit)", options.rate)
    if os.geteuid() != 0 or not rate:
        sys.exit("needs root, for network namespaces and tc, and a rate like 1gbit")
    bytes_per_s = float(rate[1]) * UNITS[rate[2]] / 8
    settings = options.only
    times = {setting: [] for setting in settings}
    sent = {}
    disconnect()
    try:
        connect(options.rate, options.delay)
        for done in range(options.rounds):
            for setting in settings if done % 2 == 0 else reversed(settings):
                time, sent[setting] = run(options, setting)
                times[setting].append(time)
                print(f"round {done + 1} of {options.rounds}: {setting}: {time:.3f} s", file=sys.stderr)
    finally:
        disconnect()
    print(f"GPT-2 124M, {options.seq_len} tokens a rank, 2 hosts of {options.ranks}, {options.rate}, delay {options.delay or 'none'}")
    print(f"| setting | step, s | to {settings[0]} | sent, MB | link, s | step / link |\n|---|---|---|---|---|---|")
    for setting in settings:
        ratio = statistics.median(t / f for t, f in zip(times[setting], times[settings[0]]))
        median, link = statistics.median(times[setting]), sent[setting] / bytes_per_s
        print(f"| {setting} | {median:.3f} | {ratio:.3f} | {sent[setting] / 1e6:.0f} | {link:.3f} | {median / link:.2f} |")


if __name__ == "__main__":
    main()
