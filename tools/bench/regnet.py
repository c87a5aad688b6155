#!/usr/bin/env python3
"""A training step of a RegNet of ours against PyTorch's, one after the other, several rounds.

    bazel build -c opt //cmd:fsdp-train
    python tools/bench/regnet.py --preset regnet-y-400mf --batch 16 [--rounds 3] [--compile]

fp32, two threads, 224 x 224 random images, AdamW. PyTorch runs transformers' model in both memory
formats, eager, and with --compile compiled. Prints the median step of each, and ours against the
fastest. The work is the same; the images and weights are not, so losses are not compared: the tests
do that (tests/models/regnet/reference_test.cc).
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
BINARY = HERE.parents[1] / "bazel-bin" / "cmd" / "fsdp-train"
SHAPES = {"regnet-y-400mf": ([1, 3, 6, 6], [48, 104, 208, 440], 8),
          "regnet-y-16gf": ([2, 4, 11, 1], [224, 448, 1232, 3024], 112)}


def ours(preset, batch, steps, threads):
    """Seconds of each step but the first two."""
    with tempfile.TemporaryDirectory() as folder:
        recipe = pathlib.Path(folder) / "recipe.yaml"
        recipe.write_text(f"""
run: {{dir: {folder}/run, threads: {threads}, device: cpu}}
model: {{preset: {preset}}}
data: {{train: {{source: synthetic}}, valid: null}}
train: {{steps: {steps + 2}, micro_batch_size: {batch}, global_batch_size: {batch}}}
optimizer: {{name: adamw, lr: 1.0e-4}}
log: {{every: 1}}
""")
        subprocess.run([BINARY, "--config", recipe], check=True, stdout=subprocess.DEVNULL)
        lines = (pathlib.Path(folder) / "run" / "metrics.jsonl").read_text().splitlines()
        records = [json.loads(line) for line in lines]
        return [r["step_time_s"] for r in records if r.get("kind", r.get("type")) == "step"][2:]


def torch_step(preset, batch, threads, channels_last, compiled):
    """A function that makes one step."""
    import torch
    import transformers
    torch.set_num_threads(threads)
    depths, widths, group = SHAPES[preset]
    model = transformers.RegNetForImageClassification(transformers.RegNetConfig(
        depths=depths, hidden_sizes=widths, groups_width=group, layer_type="y", num_labels=1000))
    pixels = torch.randn(batch, 3, 224, 224)
    if channels_last:
        model = model.to(memory_format=torch.channels_last)
        pixels = pixels.contiguous(memory_format=torch.channels_last)
    labels = torch.randint(0, 1000, (batch,))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    called = torch.compile(model) if compiled else model

    def step():
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(called(pixels).logits, labels)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return step


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--preset", choices=SHAPES, default="regnet-y-400mf")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=3, help="of a round")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--compile", action="store_true", help="compiled PyTorch, too")
    arguments = parser.parse_args()
    peers = {f"{'compile' if compiled else 'eager'}, {'NHWC' if last else 'NCHW'}": (last, compiled)
             for compiled in ([False, True] if arguments.compile else [False])
             for last in (False, True)}
    times = {"ours": []} | {name: [] for name in peers}
    steps = {}
    for name, (last, compiled) in peers.items():
        steps[name] = torch_step(arguments.preset, arguments.batch, arguments.threads, last, compiled)
        steps[name]()
    for _ in range(arguments.rounds):
        times["ours"] += ours(arguments.preset, arguments.batch, arguments.steps, arguments.threads)
        for name, step in steps.items():
            step()
            for _ in range(arguments.steps):
                begin = time.perf_counter()
                step()
                times[name].append(time.perf_counter() - begin)
    medians = {name: statistics.median(values) for name, values in times.items()}
    for name, median in medians.items():
        print(f"{name:14} {median * 1e3:9.1f} ms  ({min(times[name]) * 1e3:.1f} to "
              f"{max(times[name]) * 1e3:.1f})")
    fastest = min(value for name, value in medians.items() if name != "ours")
    print(f"ours is {fastest / medians['ours']:.2f} x as fast as the fastest of them")


if __name__ == "__main__":
    sys.exit(main())
