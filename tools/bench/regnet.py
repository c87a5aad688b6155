#!/usr/bin/env python3
"""A RegNet's convolutions alone, forward and backward, ours against PyTorch's.

    bazel build -c opt //cmd:fsdp-train
    $(tools/bench/setup) tools/bench/regnet.py --model regnet_y_16gf [--priority]

fp32. Ours: what the trace of a training step says of its convolutions. PyTorch: conv2d and its backward
pass at the shapes of the same layers, one after the other, in both memory formats. Neither counts the
two products of squeeze-and-excitation. The two sides take turns. Prints seconds for all layers, and ours
against the faster format; step.py compares whole steps, and checks that they are the same work.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

import step as bench
import turns

TRACED = 3  # The step that is traced; those before it warm up.
FORMATS = ("contiguous_format", "channels_last")


def convolutions(events):
    """Seconds forward and backward, and the number of layers, of a Chrome trace's events."""
    spans = {part: [e["dur"] * 1e-6 for e in events if e.get("name") == f"convolution_{part}"]
             for part in ("forward", "backward")}
    return sum(spans["forward"]), sum(spans["backward"]), len(spans["forward"])


def ours(args, recipe):
    with tempfile.TemporaryDirectory(prefix="fsdp-regnet-") as folder:
        command = [args.binary, "--config", recipe]
        for setting in ("data.train.source=synthetic", "data.train.paths=[]",
                        "data.train.labels=[]", f"run.dir={folder}/run",
                        f"run.threads={args.threads}", f"train.steps={TRACED}",
                        f"log.trace_steps=[{TRACED}]", "log.tensorboard=false",
                        "checkpoint.every=null"):
            command += ["--set", setting]
        log = pathlib.Path(folder) / "log"
        with open(log, "wb") as out:
            process = turns.start(command, args.priority, stdin=subprocess.DEVNULL, stdout=out,
                                  stderr=out)
            if process.wait() != 0:
                sys.exit(f"ours has ended:\n{turns.log_tail(log)}")
        trace = json.loads((pathlib.Path(folder) / "run/traces" / f"step_{TRACED}.json").read_text())
        return convolutions(trace["traceEvents"] if isinstance(trace, dict) else trace)


def layers_of(shape, batch):
    """(layer, shape of its input) of each convolution that a batch norm follows."""
    import torch
    import torch_models
    model = torch_models.make(shape)
    found = []

    def note(layer, inputs, _):
        if layer.bias is None:
            found.append((layer, tuple(inputs[0].shape)))

    for module in model.modules():
        if isinstance(module, torch.nn.Conv2d):
            module.register_forward_hook(note)
    with torch.no_grad():
        model.eval().model(torch.zeros(1, shape["num_channels"], *[shape["image_size"]] * 2))
    return [(layer, (batch, *size[1:])) for layer, size in found]


def pytorch(layers, layout):
    """Seconds forward and backward of all layers, and their number."""
    import torch
    memory_format = getattr(torch, layout)
    forward = backward = 0.0
    for i, (layer, size) in enumerate(layers):
        weight = layer.weight.detach().to(memory_format=memory_format).requires_grad_()
        x = torch.randn(size).to(memory_format=memory_format).requires_grad_(i > 0)
        wanted = (weight, x) if i > 0 else (weight,)
        seconds = []
        for _ in range(2):  # The first warms up.
            times = [time.perf_counter()]
            y = torch.nn.functional.conv2d(x, weight, None, layer.stride, layer.padding,
                                           layer.dilation, layer.groups)
            times.append(time.perf_counter())
            dy = torch.ones_like(y)
            times.append(time.perf_counter())
            torch.autograd.grad(y, wanted, dy)
            times.append(time.perf_counter())
            seconds = [b - a for a, b in zip(times, times[1:])]
        forward, backward = forward + seconds[0], backward + seconds[2]
    return forward, backward, len(layers)


def print_table(times):
    """times: name -> (forward, backward) of each round."""
    medians = {name: [statistics.median(column) for column in zip(*rounds)]
               for name, rounds in times.items()}
    print(f"{'':20} {'forward, s':>10} {'backward, s':>11} {'both':>7}")
    for name, (forward, backward) in medians.items():
        print(f"{name:20} {forward:10.3f} {backward:11.3f} {forward + backward:7.3f}")
    ratios = [min(sum(times[name][i]) for name in FORMATS) / sum(mine)
              for i, mine in enumerate(times["ours"])]
    print(f"ours over the faster format: {statistics.median(ratios):.3f} "
          f"({min(ratios):.3f} .. {max(ratios):.3f})")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="regnet_y_16gf", help="a recipe beside this file")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--priority", action="store_true", help="real-time scheduling")
    parser.add_argument("--binary", default=bench.BINARY, type=pathlib.Path)
    args = parser.parse_args()
    if args.priority:
        turns.raise_priority()
    import torch
    torch.set_num_threads(args.threads)
    recipe = bench.HERE / f"{args.model}.yaml"
    plain = bench.resolve(args.binary, recipe, [])
    layers = layers_of(plain["model"], plain["train"]["micro_batch_size"])
    sides = {"ours": lambda: ours(args, recipe)} | {
        layout: lambda layout=layout: pytorch(layers, layout) for layout in FORMATS}
    times = {name: [] for name in sides}
    for i in range(args.rounds):
        for name, side in list(sides.items())[:: 1 if i % 2 == 0 else -1]:
            *seconds, count = side()
            if count != len(layers):
                sys.exit(f"{name} has {count} convolutions, PyTorch {len(layers)}")
            times[name].append(seconds)
    print_table(times)


if __name__ == "__main__":
    main()
